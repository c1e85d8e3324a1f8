"""Signing in and out: a plain page without scripts, so that the key passes through one form and nothing else.

The key comes in the body of a POST, is tried at the server, and then lives in the session's sealed cookie. A
connection string may name only the server that the portal belongs to: anything else would let strangers make
this process connect to other machines. A one-time code, printed where only the owner of the server sees it,
does the same as the root key, once.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from dataclasses import dataclass, replace
from html import escape
from time import monotonic, time
from typing import Final
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError, BrokerError, Unauthorized
from bendybus_portal.access import Access, find_rights, in_thread
from bendybus_portal.guard import ROOT, SIGN_IN, cookie_name
from bendybus_portal.sessions import SESSION_LIFE_S, Sessions
from bendybus_portal.theme import ICON_URL, LOGO, SIGN_IN_CSS
from bendybus_portal.tokens import is_token

__all__ = ["SignIn"]

# A connection string and a path.
FORM_BYTES_MAX: Final = 16 * 1024
POLICY_DEFAULT: Final = "RootManageSharedAccessKey"

WRONG_KEY: Final = "The server does not accept this key. Check the key and the policy's name."
WRONG_TOKEN: Final = "The server does not accept this token. It may have expired or belong to another server."

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

# Wrong keys from one address within a minute, before it has to wait.
FAILURES_MAX: Final = 10
FAILURES_WITHIN_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Form:
    secret: str = ""
    policy: str = POLICY_DEFAULT
    entity: str = ""


class SignIn:
    def __init__(self, sessions: Sessions, code: str = "") -> None:
        self._sessions = sessions
        self._code = code
        self._failures: dict[str, deque[float]] = {}
        self._trying = asyncio.Semaphore(4)

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            Route(SIGN_IN, self.show, methods=["GET"]),
            Route(SIGN_IN, self.submit, methods=["POST"]),
            Route(f"{ROOT}/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        code = request.query_params.get("code", "")
        problem = ""
        if code:
            if self._code and hmac.compare_digest(code.encode(), self._code.encode()):
                self._code = ""
                target = self._sessions.target
                access = self._sessions.access(target.key_name, target.key)
                try:
                    return await self._begin(request, access, f"{ROOT}/")
                except BrokerError as error:
                    problem = str(error)
            else:
                problem = "This link has been used already. Sign in with a key."
        return self._page(request, _Form(), problem)

    async def submit(self, request: Request) -> Response:
        form = await _form(request)
        if form is None:
            return self._page(request, _Form(), "The form is too large.", 413)
        peer = _peer(request)
        if self._must_wait(peer):
            return self._page(request, form, "Too many wrong keys. Wait a minute and try again.", 429)
        try:
            access = self._access(form)
        except ArgumentError as error:
            return self._page(request, form, str(error), 400)
        try:
            return await self._begin(request, access, _next(request))
        except ArgumentError as error:
            return self._page(request, form, str(error), 400)
        except Unauthorized:
            self._failed(peer)
            refused = WRONG_TOKEN if access.namespace.signature else WRONG_KEY
            return self._page(request, form, refused, 401)
        except BrokerError as error:
            return self._page(request, form, str(error), 503)

    async def sign_out(self, request: Request) -> Response:
        session = getattr(request.state, "session", None)
        if session is not None:
            self._sessions.end(session)
            await in_thread(session.release)
        response = RedirectResponse(SIGN_IN, 303)
        response.delete_cookie(cookie_name(request.headers.get("host")), path=ROOT)
        return response

    def _access(self, form: _Form) -> Access:
        secret = form.secret.strip()
        if not secret:
            raise ArgumentError("Enter a connection string, a key or a token.")
        token = secret.removeprefix("Bearer ").strip()
        if is_token(token):
            return self._sessions.access("", "", form.entity.strip() or None, token)
        if "endpoint=" not in secret.lower():
            return self._sessions.access(
                form.policy.strip() or POLICY_DEFAULT, secret, form.entity.strip() or None
            )
        given = ConnectionString.parse(secret)
        target = self._sessions.target
        # A server that is told a loopback address does not know under which names others reach it.
        if target.host not in LOOPBACK and given.host.lower() != target.host.lower():
            raise ArgumentError(
                f"This portal belongs to {target.netloc}, and the connection string names another server. "
                "Run 'bendybus portal --connection-string ...' for that one."
            )
        entity = given.entity or form.entity.strip() or None
        return self._sessions.access(given.key_name, given.key, entity, given.signature)

    async def _begin(self, request: Request, access: Access, to: str) -> Response:
        async with self._trying:
            rights = await in_thread(find_rights, access)
        session, cookie = self._sessions.begin(access, rights)
        if access.namespace.entity and to == f"{ROOT}/":
            to = f"{ROOT}/entity?path={quote(access.namespace.entity, safe='')}"
        response = RedirectResponse(to, 303)
        response.set_cookie(
            cookie_name(request.headers.get("host")),
            cookie,
            max_age=max(1, int(session.ends_at - time())),
            path=ROOT,
            httponly=True,
            secure=request.headers.get("x-forwarded-proto", request.url.scheme) == "https",
            samesite="lax",
        )
        return response

    # -- wrong keys ---------------------------------------------------------------

    def _must_wait(self, peer: str) -> bool:
        failures = self._failures.get(peer)
        while failures and failures[0] < monotonic() - FAILURES_WITHIN_S:
            failures.popleft()
        return failures is not None and len(failures) >= FAILURES_MAX

    def _failed(self, peer: str) -> None:
        if len(self._failures) >= ADDRESSES_MAX:
            self._failures.clear()
        self._failures.setdefault(peer, deque()).append(monotonic())

    # -- the page -----------------------------------------------------------------

    def _page(self, request: Request, form: _Form, problem: str = "", status: int = 200) -> Response:
        form = replace(form, secret="")
        alert = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
        action = SIGN_IN + (f"?{escape(request.url.query)}" if "next" in request.query_params else "")
        opened = " open" if form.entity or form.policy != POLICY_DEFAULT else ""
        page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Bendybus</title>
<link rel="icon" href="{ICON_URL}">
<style>{SIGN_IN_CSS}</style>
</head>
<body>
<main>
<div class="brand">{LOGO}<span>Bendybus</span></div>
<h1>Sign in</h1>
<p class="lead">to <strong>{escape(self._sessions.target.netloc)}</strong></p>
{alert}
<form method="post" action="{action}" autocomplete="off">
<label for="secret">Connection string, key or token</label>
<input id="secret" name="secret" type="password" autofocus required autocomplete="off" spellcheck="false"
 placeholder="Endpoint=sb://…">
<details{opened}><summary>Sign in with a key or a token</summary>
<label for="policy">Name of the shared access policy</label>
<input id="policy" name="policy" value="{escape(form.policy)}" autocomplete="off" spellcheck="false">
<label for="entity">Queue or topic <span class="hint">if the policy belongs to one</span></label>
<input id="entity" name="entity" value="{escape(form.entity)}" autocomplete="off" spellcheck="false">
</details>
<button type="submit">Sign in</button>
</form>
<p class="hint">The server prints a connection string when it starts. A token comes from an identity provider
that the server trusts. What you may not do is not offered. You are signed out after
{SESSION_LIFE_S / 3600:.0f} hours.</p>
</main>
</body>
</html>"""
        return HTMLResponse(page, status)


def _next(request: Request) -> str:
    """Where the person wanted to go: a page of the portal and nothing else."""
    wanted = request.query_params.get("next", "")
    if wanted.startswith(f"{ROOT}/") and "\\" not in wanted and "\n" not in wanted and "//" not in wanted:
        return wanted
    return f"{ROOT}/"


def _peer(request: Request) -> str:
    """The address of the browser.

    The server, which comes over a unix socket, and a proxy on this machine write it to the end of the header.
    The rest of it, and the header of any other client, may be invented.
    """
    host = "" if request.client is None else request.client.host
    forwarded = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    return forwarded if forwarded and host in ("", *LOOPBACK) else host


async def _form(request: Request) -> _Form | None:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            return None
    values = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    return _Form(
        secret=values.get("secret", [""])[0],
        policy=values.get("policy", [POLICY_DEFAULT])[0],
        entity=values.get("entity", [""])[0],
    )
