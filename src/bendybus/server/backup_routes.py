"""Backups over HTTP, only for the operator: a namespace's key is not enough.

    POST    /$backup    {"folder": "/absolute/path"}    start one; it continues in the background
    GET     /$backup    its progress, or the result of the last one

The operator's key is new at each start and is in the data folder, where only the server's own user
can read it (announcement.py). So anyone who can name a folder here could also write there without the server;
and the server does not overwrite anything. Bodies and answers are JSON. The work: backup.py.
"""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus import audit
from bendybus.auth.http import authorise
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.errors import ArgumentError, BrokerError, NotSupported
from bendybus.http_bodies import json_body
from bendybus.server.announcement import OPERATOR_RULE_NAME
from bendybus.server.backup import Backups

__all__ = ["backup_routes", "refused_backup_routes"]


def backup_routes(backups: Backups, operator_key: str) -> list[BaseRoute]:
    """To be tried before the routes of namespaces."""
    keys = KeyRing([AccessRule(OPERATOR_RULE_NAME, operator_key, "", Right.MANAGE)])

    async def backup(request: Request) -> Response:
        try:
            authorise(request.headers, keys, "", Right.MANAGE, now())
            if request.method == "POST":
                backups.begin(_folder(await json_body(request)))
                return JSONResponse(backups.progress, HTTPStatus.ACCEPTED)
            return JSONResponse(backups.progress)
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            return JSONResponse({"error": refusal.description}, refusal.status)

    return [Route("/$backup", backup, methods=["GET", "POST"])]


def refused_backup_routes() -> list[BaseRoute]:
    """For one broker of several: a backup would need one moment over all their stores."""

    async def refuse(request: Request) -> Response:
        refusal = NotSupported(
            "This server has several brokers, and a backup of several cannot be made yet. Stop the server "
            "and copy its data folder, or start it with one broker."
        )
        return JSONResponse({"error": refusal.description}, refusal.status)

    return [Route("/$backup", refuse, methods=["GET", "POST"])]


def _folder(body: object) -> Path:
    folder = body.get("folder") if isinstance(body, dict) else None
    if not isinstance(folder, str) or not folder or "\0" in folder:
        raise ArgumentError("'folder' must be the absolute path of a folder that does not exist yet.")
    return Path(folder)
