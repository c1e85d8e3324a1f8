"""Sessions over HTTP: who holds them, what is refused, and how messages are waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, new_elements
from bendybus.operations.peeking import session_filter
from fix_server import Kind, ServerProcess
from interop.test_rest import Rest, refused

pytestmark = pytest.mark.one_broker("sessions over HTTP")

NO_LOCK = "7f2c1b8e-6b1c-4b52-9a3f-0d6a1f1f4a11"


@pytest.fixture
def rest(server: ServerProcess, kind: Kind) -> Iterator[Rest]:
    """An HTTP client at a queue with sessions."""
    name = f"rest-sessions-{kind}"
    described = {"RequiresSession": True, "EnablePartitioning": kind is Kind.PARTITIONED}
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        management.create(name, QUEUE.element, new_elements(QUEUE, described))
        client = Rest(server, name)
        yield client
        client.connection.close()
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        management.delete(name)


def send(rest: Rest, *bodies: str, session: str) -> None:
    for body in bodies:
        rest.send(body, {"SessionId": session})


def accept(rest: Rest, session: str = "") -> str:
    """Where the accepted session is."""
    answer = rest.ask("POST", f"/{rest.queue}/sessions{session and '/' + session}?timeout=20")
    assert answer.status == 201, answer
    return answer.place


def test_the_next_session_is_waited_for_and_a_second_client_gets_another_or_none(rest: Rest) -> None:
    assert rest.ask("POST", f"/{rest.queue}/sessions?timeout=0").status == 204
    send(rest, "1", session="a")
    send(rest, "2", session="b")
    held = {accept(rest), accept(rest)}
    assert len(held) == 2
    assert rest.ask("POST", f"/{rest.queue}/sessions?timeout=0").status == 204
    for place in held:
        assert rest.ask("DELETE", f"{place}/messages/head?timeout=20").status == 200


def test_a_request_that_waits_gets_a_message_that_is_sent_meanwhile(
    rest: Rest, server: ServerProcess
) -> None:
    place = accept(rest, "a")
    other = Rest(server, rest.queue)
    sending = threading.Timer(0.2, send, (other, "late"), {"session": "a"})
    sending.start()
    answer = rest.ask("DELETE", f"{place}/messages/head?timeout=20")
    sending.join()
    other.connection.close()
    assert (answer.status, answer.body) == (200, b"late")
    assert rest.ask("DELETE", f"{place}/messages/head?timeout=0").status == 204


def test_a_session_that_is_released_gives_its_messages_to_the_next_holder(
    rest: Rest, server: ServerProcess
) -> None:
    send(rest, "1", "2", session="a")
    place = accept(rest, "a")
    locked = rest.ask("POST", f"{place}/messages/head?timeout=20")
    assert rest.ask("DELETE", place).status == 200
    refused(rest.ask("DELETE", locked.place), 404)
    refused(rest.ask("POST", place), 410)
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        receiver = client.receiver(rest.queue, filters=session_filter("a"))
        first = receiver.receive(1, timeout_s=20)
        assert [(each.body, each.delivery_count) for each in first] == [(b"1", 0)]


def test_a_lock_that_nobody_has_opens_nothing(rest: Rest) -> None:
    send(rest, "1", session="a")
    accept(rest, "a")
    place = f"/{rest.queue}/sessions/a/{NO_LOCK}"
    for method, below in (
        ("POST", ""),
        ("DELETE", ""),
        ("GET", "/state"),
        ("PUT", "/state"),
        ("DELETE", "/state"),
        ("POST", "/messages/head?timeout=0"),
        ("DELETE", "/messages/head?timeout=0"),
        ("POST", "/messages/deferred/1"),
    ):
        refused(rest.ask(method, place + below), 410)


def test_a_message_is_settled_only_in_its_own_session(rest: Rest) -> None:
    send(rest, "1", session="a")
    send(rest, "2", session="b")
    one, other = accept(rest, "a"), accept(rest, "b")
    locked = rest.ask("POST", f"{one}/messages/head?timeout=20")
    below = locked.place.removeprefix(one)
    refused(rest.ask("DELETE", other + below), 404)
    refused(rest.ask("DELETE", f"/{rest.queue}{below}"), 400)
    assert rest.ask("DELETE", locked.place).status == 200


def test_a_state_is_removed_and_may_be_empty(rest: Rest) -> None:
    place = accept(rest, "a")
    assert rest.ask("PUT", f"{place}/state", b"").status == 200
    empty = rest.ask("GET", f"{place}/state")
    assert (empty.status, empty.body) == (200, b"")
    assert rest.ask("DELETE", f"{place}/state").status == 200
    assert rest.ask("GET", f"{place}/state").status == 204


def test_a_queue_without_sessions_has_none_over_http(server: ServerProcess, new_queue, kind: Kind) -> None:
    client = Rest(server, new_queue(kind))
    refused(client.ask("POST", f"/{client.queue}/sessions/a"), 400)
    client.connection.close()
