"""Signing in: who has tried too many wrong keys."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import Unauthorized
from bendybus_portal import signing_in
from bendybus_portal.sessions import Sessions
from bendybus_portal.signing_in import FAILURES_MAX, SignIn

TARGET = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=Root;SharedAccessKey=k;UseDevelopmentEmulator=true"


@pytest.fixture
def sign_in(monkeypatch):
    def refuse(access):
        raise Unauthorized("wrong key")

    monkeypatch.setattr(signing_in, "find_rights", refuse)
    return SignIn(Sessions(ConnectionString.parse(TARGET)))


def tried(sign_in: SignIn, peer: str | None, forwarded: str | None = None) -> int:
    """The status of the answer to a wrong key. `peer` is None behind the server's unix socket."""

    async def receive():
        return {"type": "http.request", "body": urlencode({"secret": "wrong"}).encode()}

    headers = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/portal/sign-in",
        "query_string": b"",
        "headers": headers,
        "client": None if peer is None else (peer, 1),
    }
    return asyncio.run(sign_in.submit(Request(scope, receive))).status_code


def test_a_client_cannot_evade_the_limit_by_naming_other_addresses(sign_in):
    statuses = [tried(sign_in, "203.0.113.1", f"10.0.0.{number}") for number in range(FAILURES_MAX + 1)]
    assert statuses == [401] * FAILURES_MAX + [429]


@pytest.mark.parametrize("peer", [None, "127.0.0.1"], ids=["the server", "a proxy on this machine"])
def test_behind_a_proxy_each_address_has_its_own_limit(sign_in, peer):
    for number in range(FAILURES_MAX):
        assert tried(sign_in, peer, f"10.0.0.{number}, 203.0.113.1") == 401
    assert tried(sign_in, peer, "203.0.113.1") == 429
    assert tried(sign_in, peer, "203.0.113.2") == 401
