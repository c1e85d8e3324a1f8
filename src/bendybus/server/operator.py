"""What only the operator may ask for over HTTP: who that is, and how a request is answered.

The operator's key is new at each start and is in the data folder, where only the server's own user can
read it (announcement.py). A namespace's key is not enough. Bodies and answers are JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bendybus import audit
from bendybus.auth.http import authorise
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.errors import BrokerError, NotSupported
from bendybus.server.announcement import OPERATOR_RULE_NAME

__all__ = ["Answer", "operator_route", "refused_route"]

Answer: TypeAlias = tuple[dict[str, Any], HTTPStatus]
"""What becomes JSON, and the status."""


def operator_route(
    path: str,
    methods: Sequence[str],
    operator_key: str,
    answer: Callable[[Request], Awaitable[Answer]],
) -> Route:
    """A route for the operator's key alone."""
    keys = KeyRing([AccessRule(OPERATOR_RULE_NAME, operator_key, "", Right.MANAGE)])

    async def answered(request: Request) -> Response:
        try:
            authorise(request.headers, keys, "", Right.MANAGE, now())
            return JSONResponse(*await answer(request))
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            return JSONResponse({"error": refusal.description}, refusal.status)

    return Route(path, answered, methods=list(methods))


def refused_route(path: str, methods: Sequence[str], why: str) -> Route:
    """The same for a server that cannot do it."""

    async def refuse(request: Request) -> Response:
        refusal = NotSupported(why)
        return JSONResponse({"error": refusal.description}, refusal.status)

    return Route(path, refuse, methods=list(methods))
