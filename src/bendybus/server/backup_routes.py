"""Backups over HTTP, only for the operator: a namespace's key is not enough.

    POST    /$backup    {"folder": "/absolute/path"}    start one; it continues in the background
    GET     /$backup    its progress, or the result of the last one

Anyone who has the operator's key (operator.py) and can name a folder here could also write there without
the server; and the server does not overwrite anything. The work: backup.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.routing import BaseRoute

from bendybus.errors import ArgumentError
from bendybus.http_bodies import json_body
from bendybus.server.backup import Backups
from bendybus.server.operator import Answer, operator_route, refused_route

__all__ = ["AskBackups", "ask_here", "backup_routes", "refused_backup_routes"]


AskBackups: TypeAlias = Callable[[Path | None], Awaitable[dict[str, Any]]]
"""Begins a backup in this folder, if there is one. Returns the progress."""


def backup_routes(ask: AskBackups, operator_key: str) -> list[BaseRoute]:
    """To be tried before the routes of namespaces."""

    async def backup(request: Request) -> Answer:
        if request.method == "POST":
            return await ask(_folder(await json_body(request))), HTTPStatus.ACCEPTED
        return await ask(None), HTTPStatus.OK

    return [operator_route("/$backup", ["GET", "POST"], operator_key, backup)]


def ask_here(backups: Backups) -> AskBackups:
    """For a server with one broker."""

    async def ask(folder: Path | None) -> dict[str, Any]:
        if folder is not None:
            backups.begin(folder)
        return backups.progress

    return ask


def refused_backup_routes() -> list[BaseRoute]:
    """For a broker of a cluster: its stores are databases elsewhere, and so is its catalog."""
    why = (
        "This server is one of a cluster, and a backup of a cluster cannot be made yet. Stop all its "
        "brokers, and back up its databases with the tools of PostgreSQL."
    )
    return [refused_route("/$backup", ["GET", "POST"], why)]


def _folder(body: object) -> Path:
    folder = body.get("folder") if isinstance(body, dict) else None
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise ArgumentError("'folder' must be the absolute path of a folder that does not exist yet.")
    return Path(folder)
