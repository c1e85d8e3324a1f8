"""Requests about a whole server, for whoever can read its data folder: no namespace's key is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from bendybus.auth.connection_strings import ConnectionString
from bendybus.cli.target import find_certificate
from bendybus.errors import ConfigError
from bendybus.management.json_api import ask_json
from bendybus.server.announcement import find_operated

__all__ = ["Ask", "operated"]

Ask: TypeAlias = Callable[..., dict[str, Any]]


def operated(data: Path) -> Ask:
    """A client of the server that runs on this data folder."""
    found = find_operated(data)
    if found is None:
        raise ConfigError(
            f"no server runs on the data folder '{data}': name the folder of one that does by --data, "
            "or start it"
        )
    certificate = find_certificate(None, data, {})
    return partial(ask_json, ConnectionString.parse(found), certificate=certificate)
