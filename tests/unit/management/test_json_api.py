"""Requests over connections that are kept for the next one."""

from __future__ import annotations

import http.server
import threading

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError, ConnectionLost
from bendybus.management.json_api import IDLE_MAX, JsonApi


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        connections = self.server.connections  # type: ignore[attr-defined]
        connections.append(self.client_address)
        body = b'{"path": "%s"}' % self.path.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        # Closed though the client has not been told, as an idle connection is.
        self.close_connection = self.path == "/then-closed"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as made:
        made.connections = []
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def api(server):
    port = server.server_address[1]
    made = JsonApi(
        ConnectionString.parse(
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
    )
    yield made
    made.close()


def test_the_next_request_uses_the_same_connection(server, api):
    for path in ("/a", "/b"):
        assert api.ask("GET", path) == {"path": path}
    assert len(set(server.connections)) == 1
    api.close()
    assert api.ask("GET", "/c") == {"path": "/c"}
    assert len(set(server.connections)) == 2


def test_a_connection_that_the_server_has_closed_is_opened_again(server, api):
    for path in ("/then-closed", "/after"):
        assert api.ask("GET", path) == {"path": path}
    assert len(set(server.connections)) == 2


def test_a_change_is_never_asked_for_twice(server, api):
    api.ask("GET", "/then-closed")
    # On a connection of its own: nobody could tell whether the first one had arrived.
    assert api.ask("PUT", "/change", {}) == {"path": "/change"}
    assert len(server.connections) == 2


def test_threads_have_connections_of_their_own_and_few_are_kept(server, api):
    barrier = threading.Barrier(IDLE_MAX + 3)

    def ask() -> None:
        barrier.wait()
        api.ask("GET", "/")

    threads = [threading.Thread(target=ask) for _ in range(IDLE_MAX + 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.connections) == IDLE_MAX + 3
    assert len(api._idle) <= IDLE_MAX


def test_a_server_that_is_away_is_an_error():
    port_of_nobody = ConnectionString.parse(
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    )
    with pytest.raises(ConnectionLost):
        JsonApi(port_of_nobody).ask("GET", "/")


def test_an_answer_that_is_no_object_is_an_error(api):
    with pytest.raises(ArgumentError):
        api.ask("GET", '/"]')
