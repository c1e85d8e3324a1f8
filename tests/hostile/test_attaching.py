"""`POST /$stores`: a key of a namespace opens no file and no connection that the operator has not allowed."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest

from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.auth.sas import make_token
from fix_server import ServerProcess, StartServer

NAMESPACES: Final = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": name,
                "Queues": [{"Name": "q"}],
                "AuthorizationRules": [
                    {"Name": "owner", "PrimaryKey": f"key-of-the-{name}", "Rights": ["Manage"]}
                ],
            }
            for name in ("shop", "bank")
        ]
    }
}


def ask(
    server: ServerProcess, method: str, path: str, body: object = None, rule: str = "", key: str = ""
) -> tuple[int, dict[str, Any]]:
    token = make_token("sb://127.0.0.1/", rule or ROOT_RULE_NAME, key or server.key, int(time.time()) + 600)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, json.dumps(body), {"Authorization": token})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def attach(server: ServerProcess, url: str, **who: str) -> tuple[int, str]:
    status, answer = ask(server, "POST", "/$stores", {"url": url}, **who)
    return status, str(answer.get("error", answer.get("name")))


class Trap:
    """A database of the caller's choice: notes what it is sent."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.callers = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            self.callers += 1
            caller.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def trap() -> Iterator[Trap]:
    trap = Trap()
    yield trap
    trap.close()


def test_no_file_of_the_server_is_sent_to_a_database_of_the_callers_choice(
    start_server: StartServer, trap: Trap, tmp_path: Path
) -> None:
    server = start_server({"q": {}}, None, "--allow-store", str(tmp_path))
    there = f"postgresql://x@127.0.0.1:{trap.port}/x"
    for url in (
        f"{there}?password_file={server.data}/root.key&sslmode=disable",
        f"{there}?passfile={server.data}/root.key",
        there,
    ):
        status, error = attach(server, url)
        assert (status, "--allow-store" in error) == (403, True), error
    assert trap.callers == 0


def test_no_file_is_made_where_the_operator_has_not_allowed_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server({"q": {}})
    assert attach(server, f"sqlite://{tmp_path}/b.db")[0] == 403
    assert attach(server, f"sqlite://{server.data}/namespaces.json")[0] == 403
    assert not (tmp_path / "b.db").exists()
    assert not (server.data / "namespaces.json").exists()


def test_the_key_of_one_of_several_namespaces_attaches_nothing(trap: Trap, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, NAMESPACES)
    server.start()
    try:
        for who in ({"rule": "owner", "key": "key-of-the-bank"}, {}):
            for url in (
                f"postgresql://x@127.0.0.1:{trap.port}/x?password_file={server.data}/root.key",
                f"sqlite://{tmp_path}/b.db",
            ):
                status, error = attach(server, url, **who)
                assert (status, "several namespaces" in error) == (403, True), error
        # Its own stores are still its own.
        own = {"rule": "owner", "key": "key-of-the-bank"}
        assert ask(server, "GET", "/$stores", **own)[0] == 200
        assert not (tmp_path / "b.db").exists()
    finally:
        assert server.stop() == os.EX_OK
    server.refuse_trouble()
    assert trap.callers == 0


@pytest.mark.parametrize("what", ["fifo", "folder", "device", "fifo beside"])
def test_what_is_not_a_file_is_refused_and_holds_up_nothing(
    start_server: StartServer, tmp_path: Path, what: str
) -> None:
    places = tmp_path / "stores"
    places.mkdir()
    server = start_server(
        {"q": {}}, None, "--allow-store", str(places), "--allow-store", "sqlite:///dev/zero"
    )
    url = f"sqlite://{places}/b.db"
    match what:
        case "fifo":
            os.mkfifo(places / "b.db")
        case "folder":
            (places / "b.db").mkdir()
        case "device":
            url = "sqlite:///dev/zero"
        case "fifo beside":
            os.mkfifo(places / "b.db-wal")
    status, error = attach(server, url)
    assert (status, "is not a regular file" in error) == (400, True), error
    # Store management goes on, and so does the server's end.
    assert attach(server, f"sqlite://{places}/c.db") == (201, "c")
    assert ask(server, "DELETE", "/$stores/c")[0] == 200
    assert server.stop() == os.EX_OK
