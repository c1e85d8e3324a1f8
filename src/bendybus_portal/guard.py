"""The checks that every request to the portal has to pass. A request from another site is refused, WebSockets
included: its `Origin` is not the host that it calls. Without a session only the sign-in page and static files
are served. No answer may be framed, sniffed or, if it is a page, cached; scripts, styles and connections come
from this server alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from bendybus.errors import BrokerError, Unauthorized
from bendybus_portal.access import find_rights, in_thread
from bendybus_portal.sessions import Session, Sessions

__all__ = ["ROOT", "Guard", "cookie_name", "is_foreign"]

ROOT: Final = "/portal"
SIGN_IN: Final = f"{ROOT}/sign-in"

# Files that are the same for everybody.
_OPEN: Final = (SIGN_IN, f"{ROOT}/_nicegui/", f"{ROOT}/favicon.ico", f"{ROOT}/static/")

# Vue compiles templates in the browser, hence unsafe-eval; NiceGUI's own page has inline scripts.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def cookie_name(host: str | None) -> str:
    """Browsers send cookies to every port of a host: two servers on one machine must not share one."""
    try:
        port = urlsplit(f"//{host or ''}").port
    except ValueError:
        port = None
    return f"bendybus-portal-{port or 'default'}"


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin has made this request."""
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    # A link that somebody follows is fine; a picture, a script or a frame of another site is not.
    fetched = headers.get("sec-fetch-site", "none")
    navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return fetched not in ("same-origin", "none") and not navigates


class Guard:
    """An ASGI application before another one."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        writes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if is_foreign(headers) or (writes and "origin" not in headers):
            await _refuse(
                PlainTextResponse("A page of another site made this request.\n", 403), scope, receive, send
            )
            return
        path: str = scope["path"]
        # Pages send files to addresses beside the static ones, so only reading is open.
        if not path.startswith(_OPEN) or (writes and path != SIGN_IN):
            session = await self._session(HTTPConnection(scope))
            if session is None:
                await _refuse(_to_sign_in(scope), scope, receive, send)
                return
            scope.setdefault("state", {})["session"] = session

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered[name] = value
                if not path.startswith(f"{ROOT}/_nicegui/"):
                    answered["cache-control"] = "no-store"
            await send(message)

        await self._app(scope, receive, send_guarded)

    async def _session(self, connection: HTTPConnection) -> Session | None:
        sessions = self._sessions
        cookie = connection.cookies.get(cookie_name(connection.headers.get("host")))
        found = sessions.find(cookie)
        reopened = None if found is not None else sessions.reopened(cookie)
        if reopened is None:
            return found
        access, number, ends_at = reopened
        try:
            rights = await in_thread(find_rights, access)
        except Unauthorized:
            return None
        except BrokerError:
            # The server is being restarted: the browser retries.
            return None
        return sessions.resume(number, access, rights, ends_at)


def _to_sign_in(scope: Scope) -> Response:
    if scope["type"] == "websocket" or scope["method"] != "GET":
        return PlainTextResponse("Sign in first.\n", 401)
    wanted = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
    suffix = "" if wanted in (ROOT, f"{ROOT}/") else f"?next={quote(wanted, safe='')}"
    return RedirectResponse(SIGN_IN + suffix, 303)


async def _refuse(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    for name, value in _HEADERS.items():
        refusal.headers[name] = value
    refusal.headers["cache-control"] = "no-store"
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(refusal)
    else:
        await refusal(scope, receive, send)
