"""Rows of the contract that go beyond Azure, on entities of 16, 2 and 1 partition (B-02 to B-06)."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import SqlRuleFilter

from bendybus.auth.connection_strings import ConnectionString
from bendybus.auth.sas import make_token
from bendybus.client import BusClient, ClientSettings
from bendybus.management.client import ManagementClient
from bendybus.management.properties import SUBSCRIPTION, new_elements
from bendybus.operations.peeking import State, peeked
from bendybus.operations.purging import Purging
from fix_kinds import SdkBus, keys_for, on_each_kind


def own_client(bus: SdkBus) -> BusClient:
    return BusClient(ClientSettings.from_connection_string(bus.server.connection_string))


@pytest.mark.row("B-02")
@on_each_kind
def test_an_abandoned_message_waits_as_long_as_its_receiver_asks(bus: SdkBus) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(ServiceBusMessage("later", partition_key="k"))
    with own_client(bus) as client:
        receiver = client.receiver(queue)
        (message,) = receiver.receive(1, timeout_s=20)
        receiver.abandon([message], {"x-opt-retry-delay": 0.5})
        assert receiver.receive(1, timeout_s=0) == []
        (again,) = receiver.receive(1, timeout_s=20)
        assert (again.sequence_number, again.delivery_count) == (message.sequence_number, 1)


@pytest.mark.row("B-03")
@on_each_kind
def test_a_peek_gives_as_many_as_asked_for_and_filters(bus: SdkBus) -> None:
    queue = bus.queue()
    keys = keys_for(bus.partitions)
    with bus.sender(queue) as sender:
        for number in range(48):
            properties: dict[str | bytes, object] = {"size": number}
            sender.send_messages(
                ServiceBusMessage(
                    str(number), partition_key=keys[number % len(keys)], application_properties=properties
                )
            )
    with own_client(bus) as client:
        management = client.management(queue)
        answer = management.request("bendybus:peek", {"message-count": 40})
        assert answer is not None and len(answer["messages"]) == 40
        found = [int(each.body) for each in peeked(management, selector="size >= 20", state=State.ACTIVE)]
        assert sorted(found) == [*range(20, 48)]
        assert list(peeked(management, state=State.DEFERRED)) == []


@pytest.mark.row("B-04")
@on_each_kind
def test_a_whole_session_is_dead_lettered_or_purged_in_one_operation(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    with bus.sender(queue) as sender:
        for session in ("bad", "worse", "good"):
            for number in range(5):
                sender.send_messages(ServiceBusMessage(f"{session} {number}", session_id=session))
    with own_client(bus) as client:
        states = (State.ACTIVE, State.DEFERRED)
        bury = Purging(client, queue, states, "bad", dead_letter=("Poisoned", ""))
        assert list(bury.run()) == [5]
        assert list(Purging(client, queue, list(State), "worse").run()) == [5]
        letters = list(peeked(client.management(f"{queue}/$DeadLetterQueue")))
        assert [letter.body.decode() for letter in letters] == [f"bad {number}" for number in range(5)]
        assert {letter.application_properties["DeadLetterReason"] for letter in letters} == {"Poisoned"}
        left = [message.body.decode() for message in peeked(client.management(queue))]
        assert left == [f"good {number}" for number in range(5)]


@pytest.mark.row("B-05")
@on_each_kind
def test_what_no_subscription_takes_is_caught(bus: SdkBus) -> None:
    topic = bus.topic("big")
    bus.admin.delete_rule(topic, "big", "$Default")
    bus.admin.create_rule(topic, "big", "big", filter=SqlRuleFilter("size > 5"))
    with ManagementClient(ConnectionString.parse(bus.server.connection_string)) as management:
        described = new_elements(SUBSCRIPTION, {"CatchUnmatched": "true"})
        management.create(f"{topic}/Subscriptions/rest", SUBSCRIPTION.element, described)
    with bus.topic_sender(topic) as sender:
        for size in range(10):
            sender.send_messages(
                ServiceBusMessage(str(size), partition_key=str(size), application_properties={"size": size})
            )
    caught = bus.take(bus.receiver(topic, "rest"), 6)
    assert sorted(int(str(message)) for message in caught) == [*range(6)]
    taken = bus.take(bus.receiver(topic, "big"), 4)
    assert sorted(int(str(message)) for message in taken) == [*range(6, 10)]


@contextmanager
def http_to(bus: SdkBus) -> Iterator[tuple[http.client.HTTPConnection, dict[str, str]]]:
    given = ConnectionString.parse(bus.server.connection_string)
    connection = http.client.HTTPConnection(given.host, given.port, timeout=20)
    token = make_token(f"sb://{given.host}/", given.key_name, given.key, int(time.time()) + 600)
    try:
        yield connection, {"Authorization": token}
    finally:
        connection.close()


@pytest.mark.row("B-06")
@on_each_kind
def test_a_message_is_deferred_and_received_over_http(bus: SdkBus) -> None:
    queue = bus.queue()
    bus.sender(queue).send_messages(ServiceBusMessage("hello", partition_key="k"))
    with http_to(bus) as (connection, headers):

        def ask(method: str, path: str) -> tuple[int, http.client.HTTPMessage, bytes]:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

        status, told, body = ask("POST", f"/{queue}/messages/head?timeout=20")
        assert (status, body) == (201, b"hello")
        number = json.loads(told["BrokerProperties"])["SequenceNumber"]
        assert ask("POST", f"{urlsplit(told['Location']).path}/defer")[0] == 200
        assert ask("POST", f"/{queue}/messages/head?timeout=0")[0] == 204
        status, told, body = ask("POST", f"/{queue}/messages/deferred/{number}")
        assert (status, body) == (201, b"hello")
        assert ask("DELETE", urlsplit(told["Location"]).path)[0] == 200


@pytest.mark.row("B-06")
@on_each_kind
def test_a_session_is_accepted_received_from_and_given_a_state_over_http(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    bus.sender(queue).send_messages([ServiceBusMessage(str(n), session_id="order/7") for n in range(3)])
    with http_to(bus) as (connection, headers):

        def ask(
            method: str, path: str, body: bytes | None = None
        ) -> tuple[int, http.client.HTTPMessage, bytes]:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

        status, told, _ = ask("POST", f"/{queue}/sessions?timeout=20")
        assert status == 201
        assert json.loads(told["BrokerProperties"])["SessionId"] == "order/7"
        session = urlsplit(told["Location"]).path
        assert ask("POST", f"/{queue}/sessions/order%2F7")[0] == 410, "it is locked"
        assert ask("GET", f"{session}/state")[0] == 204
        assert ask("PUT", f"{session}/state", b"half done")[0] == 200
        assert ask("GET", f"{session}/state")[2] == b"half done"
        assert ask("POST", session)[0] == 200
        status, told, body = ask("POST", f"{session}/messages/head?timeout=20")
        assert (status, body) == (201, b"0")
        message = urlsplit(told["Location"]).path
        assert message.startswith(session)
        assert ask("POST", f"{message}/defer")[0] == 200
        number = json.loads(told["BrokerProperties"])["SequenceNumber"]
        assert ask("DELETE", f"{session}/messages/head?timeout=20")[2] == b"1"
        status, told, body = ask("POST", f"{session}/messages/deferred/{number}")
        assert (status, body) == (201, b"0")
        assert ask("DELETE", urlsplit(told["Location"]).path)[0] == 200
        assert ask("DELETE", session)[0] == 200
    receiver = bus.receiver(queue, session_id="order/7")
    assert [str(message) for message in bus.take(receiver, 1)] == ["2"]
    assert bytes(receiver.session.get_state()) == b"half done"
