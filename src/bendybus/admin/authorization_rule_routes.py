"""Authorization rules over HTTP, as JSON: our own routes, for tools and people.

    GET             /[{entity}/]$authorizationRules                        all of them
    PUT GET DELETE  /[{entity}/]$authorizationRules/{rule}                 one
    POST            /[{entity}/]$authorizationRules/{rule}/regenerateKey   another key

Without an entity they are the rules of the namespace. All routes need Manage, because they
show keys. No entity name contains a dollar sign, so the paths are unambiguous. The rules of an
entity are also in its description (authorization_rules_xml.py). How rules are kept and
changed: authorization_rules.py.
"""

from __future__ import annotations

import json
import re
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from bendybus import audit
from bendybus.admin.authorization_rules import AuthorizationRules, WhichKey, check_key
from bendybus.admin.documents import error_response
from bendybus.atom import format_time
from bendybus.auth.http import authorise
from bendybus.auth.key_ring import KeyRing
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.domain.access import AuthorizationRule
from bendybus.errors import ArgumentError, BrokerError, MethodNotAllowed
from bendybus.http_bodies import RequestBody

__all__ = ["AuthorizationRuleRoutes"]

# A rule has a name, three rights and two keys.
BODY_BYTES_MAX: Final = 16 * 1024

_PATH: Final = re.compile(
    r"(?:(?P<entity>.+)/)?\$authorizationrules(?:/(?P<name>[^/]+)(?P<regenerate>/regeneratekey)?)?",
    re.IGNORECASE,
)
_KEYS: Final[dict[str, WhichKey]] = {"primary": "primary", "secondary": "secondary"}


class AuthorizationRuleRoutes(BaseRoute):
    """One route for all paths above. It must come before the management API, which takes every path."""

    def __init__(self, rules: AuthorizationRules, keys: KeyRing) -> None:
        self._rules = rules
        self._keys = keys

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or not (found := _PATH.fullmatch(scope["path"].strip("/"))):
            return Match.NONE, {}
        return Match.FULL, {"bendybus.rule": found}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        body = RequestBody(receive, request.headers.get("content-length"))
        path = scope["path"].strip("/")
        try:
            authorise(request.headers, self._keys, path, Right.MANAGE, now())
            response = await self._answer(request.method, scope["bendybus.rule"], body)
        except BrokerError as refusal:
            audit.record_refused_change(request.method, path, refusal)
            response = error_response(refusal, path, now())
        if not await body.discard():
            response.headers["connection"] = "close"
        await response(scope, receive, send)

    async def _answer(self, method: str, found: re.Match[str], body: RequestBody) -> Response:
        scope, name = found["entity"] or "", found["name"] or ""
        operation = "regenerate" if found["regenerate"] else "one" if name else "all"
        match operation, method:
            case "all", "GET" | "HEAD":
                return JSONResponse({"rules": [_shown(rule) for rule in self._rules.rules(scope)]})
            case "one", "GET" | "HEAD":
                return JSONResponse(_shown(self._rules.find(scope, name)))
            case "one", "PUT":
                return await self._put(body, scope, name)
            case "one", "DELETE":
                await self._rules.remove(scope, name)
                return Response(status_code=200)
            case "regenerate", "POST":
                return await self._regenerate(body, scope, name)
            case _:
                raise MethodNotAllowed(f"{method[:60]} is not a request that this path answers.")

    async def _put(self, sent: RequestBody, scope: str, name: str) -> Response:
        body = await _members(sent, "rights", "primaryKey", "secondaryKey")
        rights = body.get("rights")
        if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
            raise ArgumentError('\'rights\' must be a list such as ["Send", "Listen"].')
        rule, is_new = await self._rules.put(
            scope, name, rights, _key(body, "primaryKey", name), _key(body, "secondaryKey", name)
        )
        return JSONResponse(_shown(rule), 201 if is_new else 200)

    async def _regenerate(self, sent: RequestBody, scope: str, name: str) -> Response:
        body = await _members(sent, "which", "key")
        which = body.get("which")
        if not isinstance(which, str) or which not in _KEYS:
            raise ArgumentError('\'which\' must be "primary" or "secondary".')
        rule = await self._rules.regenerate(scope, name, _KEYS[which], _key(body, "key", name))
        return JSONResponse(_shown(rule))


def _shown(rule: AuthorizationRule) -> dict[str, object]:
    return {
        "name": rule.name,
        "rights": list(rule.rights),
        "primaryKey": rule.primary_key,
        "secondaryKey": rule.secondary_key,
        "createdAt": format_time(rule.created_at),
        "modifiedAt": format_time(rule.modified_at),
    }


def _key(body: dict[str, object], field: str, name: str) -> str | None:
    key = body.get(field)
    if key is None:
        return None
    if not isinstance(key, str):
        raise ArgumentError(f"'{field}' must be a string.")
    return check_key(name, key)


async def _members(sent: RequestBody, *known: str) -> dict[str, object]:
    """The JSON object of the body. An unknown member is refused, because the client expects an effect."""
    text = await sent.read_document(BODY_BYTES_MAX)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ArgumentError("The body is not a JSON object.")
    for name in body:
        if name not in known:
            raise ArgumentError(
                f"The body has the unknown member '{name[:60]}'; known are {', '.join(known)}."
            )
    return body
