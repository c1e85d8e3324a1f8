"""Backups over HTTP, only for the operator: a namespace's key is not enough.

    POST    /$backup    {"folder": "/absolute/path"}    start one; it continues in the background
    GET     /$backup    its progress, or the result of the last one

Anyone who has the operator's key (operator.py) and can name a folder here could also write there without
the server; and the server does not overwrite anything. The work: backup.py.
"""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.routing import BaseRoute

from bendybus.errors import ArgumentError
from bendybus.http_bodies import json_body
from bendybus.server.backup import Backups
from bendybus.server.operator import Answer, operator_route, refused_route

__all__ = ["backup_routes", "refused_backup_routes"]


def backup_routes(backups: Backups, operator_key: str) -> list[BaseRoute]:
    """To be tried before the routes of namespaces."""

    async def backup(request: Request) -> Answer:
        if request.method == "POST":
            backups.begin(_folder(await json_body(request)))
            return backups.progress, HTTPStatus.ACCEPTED
        return backups.progress, HTTPStatus.OK

    return [operator_route("/$backup", ["GET", "POST"], operator_key, backup)]


def refused_backup_routes() -> list[BaseRoute]:
    """For one broker of several: a backup would need one moment over all their stores."""
    why = (
        "This server has several brokers, and a backup of several cannot be made yet. Stop the server "
        "and copy its data folder, or start it with one broker."
    )
    return [refused_route("/$backup", ["GET", "POST"], why)]


def _folder(body: object) -> Path:
    folder = body.get("folder") if isinstance(body, dict) else None
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise ArgumentError("'folder' must be the absolute path of a folder that does not exist yet.")
    return Path(folder)
