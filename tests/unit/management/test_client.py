"""The management client where it meets what our own server does not say: Azure's ways, and strangers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import BrokerError, EntityNotFound, QuotaExceeded, RequestError, Unavailable
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, new_elements

ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><title>q</title><content><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
NOTHING = (
    b'<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Publicly Listed Services</title></feed>'
)

Scripted = Callable[[int, bytes], tuple[ManagementClient, list[Message]]]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A client of an HTTP server that always gives one answer, and the headers that reach it."""
    servers: list[HTTPServer] = []

    def start(status: int, body: bytes) -> tuple[ManagementClient, list[Message]]:
        seen: list[Message] = []

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                seen.append(self.headers)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that http.server looks for

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        target = ConnectionString.parse(
            f"Endpoint=sb://127.0.0.1:{server.server_port};SharedAccessKeyName=n;SharedAccessKey=k;"
            "UseDevelopmentEmulator=true"
        )
        return ManagementClient(target), seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_azures_empty_feed_is_an_entity_that_is_not_there(scripted: Scripted) -> None:
    client, _ = scripted(200, NOTHING)
    with client, pytest.raises(EntityNotFound):
        client.get("missing")


def test_a_page_of_another_server_is_told_as_that(scripted: Scripted) -> None:
    client, _ = scripted(200, b"<html>Welcome!</html>")
    with client, pytest.raises(Unavailable, match="does the endpoint name another server"):
        list(client.list("$Resources/queues"))


def test_who_forwards_shows_that_he_may_send_there(scripted: Scripted) -> None:
    client, seen = scripted(201, ENTRY)
    with client:
        client.create("q", QUEUE.element, new_elements(QUEUE, {"ForwardTo": "next"}))
        client.create("q", QUEUE.element, new_elements(QUEUE, {"ForwardDeadLetteredMessagesTo": "next"}))
        client.create("q", QUEUE.element, [])
    headers = ("ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization")
    assert [[header in request for header in headers] for request in seen] == [
        [True, False],
        [False, True],
        [False, False],
    ]


def test_only_an_update_says_that_something_is_there(scripted: Scripted) -> None:
    client, seen = scripted(200, ENTRY)
    with client:
        client.create("q", QUEUE.element, [])
        client.update("q", QUEUE.element, [])
    assert [request.get("If-Match") for request in seen] == [None, "*"]


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (403, QuotaExceeded, "too many"),
        (404, EntityNotFound, "'q' could not be found"),
        (418, RequestError, "418: too many"),
        (500, Unavailable, "500: too many"),
    ],
)
def test_a_refusal_is_the_error_that_it_stands_for(
    scripted: Scripted, status: int, kind: type[BrokerError], told: str
) -> None:
    detail = "SubCode=40300. too many. TrackingId:1"
    client, _ = scripted(status, f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode())
    with client, pytest.raises(kind, match=told):
        client.delete("q")
