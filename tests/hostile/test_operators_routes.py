"""What the server keeps to itself: emptying a namespace, and the names of its own routes."""

from __future__ import annotations

import os
import time
from http.client import HTTPConnection

import pytest

from bendybus.admin.documents import EntryAddress, entry
from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.auth.sas import make_token
from bendybus.names import Instant
from fix_server import ServerProcess, StartServer


def ask(server: ServerProcess, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    token = make_token("sb://127.0.0.1/", ROOT_RULE_NAME, server.key, int(time.time()) + 600)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, body, {"Authorization": token})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.row("B-08")
def test_a_namespace_is_emptied_only_on_a_server_for_development(start_server: StartServer) -> None:
    for options, status, left in (
        ((), 400, 200),
        (("--emulator",), 400, 200),
        (("--development",), 200, 204),
    ):
        server = start_server({"q": {}}, None, *options)
        assert ask(server, "POST", "/q/messages", "precious")[0] == 201
        answered, body = ask(server, "POST", "/$reset")
        assert (answered, "--development" in body) == (status, status == 400)
        assert ask(server, "DELETE", "/q/messages/head?timeout=0")[0] == left
        assert server.stop() == os.EX_OK


@pytest.mark.parametrize("kind", ["QueueDescription", "TopicDescription"])
def test_no_entity_is_named_like_a_route(start_server: StartServer, kind: str) -> None:
    server = start_server({})
    at = Instant(0)
    body = entry(EntryAddress.alone("http://x"), "x", kind, "", at, at, "n").encode()
    for name in ("health", "Metrics", "HEALTH"):
        status, answer = ask(server, "PUT", f"/{name}?api-version=2021-05", body)
        assert (status, "the server itself answers" in answer) == (400, True)
    assert ask(server, "PUT", "/healthy?api-version=2021-05", body)[0] == 201
    assert server.stop() == os.EX_OK
