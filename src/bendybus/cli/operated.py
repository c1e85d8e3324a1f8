"""Requests about a whole server. They need access to its data folder, and no key of a namespace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bendybus.auth.connection_strings import ConnectionString
from bendybus.cli.target import find_certificate, find_folder
from bendybus.errors import ConfigError
from bendybus.management.json_api import ask_json
from bendybus.server.announcement import find_operated

__all__ = ["Ask", "connection_string_of", "namespaces", "operated"]

Ask: TypeAlias = Callable[..., dict[str, Any]]


def operated(data: Path | None) -> Ask:
    """A client of the server that runs on this data folder, or of the one that is found without it."""
    folder = find_folder(data)
    found = find_operated(folder)
    if found is None:
        raise ConfigError(
            f"no server runs on the data folder '{folder}': name the folder of one that does by --data, "
            "or start it"
        )
    certificate = find_certificate(None, folder, {})
    return partial(ask_json, ConnectionString.parse(found), certificate=certificate)


def namespaces(data: Path | None) -> list[dict[str, Any]]:
    """All namespaces of a server on this machine, with their connection strings."""
    return list(operated(data)("GET", "/$namespaces")["namespaces"])


def connection_string_of(name: str, data: Path | None) -> str:
    """What clients of one of its namespaces need."""
    found = namespaces(data)
    for each in found:
        if each["name"].lower() == name.lower():
            return str(each["connectionString"])
    raise ConfigError(
        f"the server has no namespace '{name}'; it has {', '.join(each['name'] for each in found)}"
    )
