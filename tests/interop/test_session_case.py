"""Session ids are the same whatever their case, through the SDK; and what was stored before stays whole."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import SessionCannotBeLockedError

from bendybus.amqp.types import Int, Timestamp
from bendybus.client import BusClient
from bendybus.client.settings import ClientSettings
from bendybus.domain.routing import partition_of as partition_of_key
from fix_kinds import SdkBus, on_each_kind, on_partitioned_kinds, partition_of
from fix_server import ServerProcess, StartServer

IDS = ("Alpha", "ALPHA", "alpha")
ALL_SESSIONS = Timestamp(253_402_300_800_000)


def bus_client(server: ServerProcess, entity: str) -> BusClient:
    return BusClient(ClientSettings.from_connection_string(server.connection_string, entity=entity))


def listed(server: ServerProcess, entity: str) -> list[str]:
    with closing(bus_client(server, entity)) as client:
        answer = client.management().request(
            "com.microsoft:get-message-sessions",
            {"last-updated-time": ALL_SESSIONS, "skip": Int(0), "top": Int(100)},
        )
    return [] if answer is None else list(answer["sessions-ids"].values)


def accept(bus: SdkBus, queue: str, session_id: object):
    return bus.receiver(queue, session_id=session_id, max_wait_time=10)


@pytest.mark.row("P-13")
@on_each_kind
def test_a_session_is_one_in_whatever_case_it_is_written(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    sender = bus.sender(queue)
    for number, session_id in enumerate(IDS * 2):
        sender.send_messages(ServiceBusMessage(str(number), session_id=session_id))
    assert listed(bus.server, queue) == ["Alpha"]
    holder = accept(bus, queue, "aLPHA")
    messages = bus.receive(holder, 6)
    assert [str(message) for message in messages] == list("012345")
    assert [message.session_id for message in messages] == [*IDS, *IDS]
    assert {partition_of(message) for message in messages} == {partition_of_key("alpha", bus.partitions)}
    with pytest.raises(SessionCannotBeLockedError):
        accept(bus, queue, "ALPHA").__enter__()
    assert holder.session.session_id == "aLPHA"
    holder.session.set_state(b"kept")
    holder.session.renew_lock()
    assert len(holder.peek_messages(10, sequence_number=1)) == 6
    holder.defer_message(messages[0])
    (deferred,) = holder.receive_deferred_messages(messages[0].sequence_number)
    for message in (deferred, *messages[1:]):
        holder.complete_message(message)
    holder.close()
    again = accept(bus, queue, "ALPHA")
    assert bytes(again.session.get_state()) == b"kept"
    assert listed(bus.server, queue) == ["Alpha"]
    again.session.set_state(None)
    again.close()
    assert listed(bus.server, queue) == []


@on_each_kind
def test_the_next_session_has_the_id_of_its_first_message(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True)
    for session_id in IDS:
        bus.sender(queue).send_messages(ServiceBusMessage("m", session_id=session_id))
    holder = accept(bus, queue, NEXT_AVAILABLE_SESSION)
    assert len(bus.take(holder, 3)) == 3
    assert holder.session.session_id == "Alpha"


@pytest.mark.row("P-15", "P-18")
@on_partitioned_kinds
def test_a_batch_and_a_duplicate_go_by_the_session_whatever_its_case(bus: SdkBus) -> None:
    queue = bus.queue(requires_session=True, requires_duplicate_detection=True)
    sender = bus.sender(queue)
    sender.send_messages([ServiceBusMessage("m", session_id=each, message_id="one") for each in IDS])
    sender.send_messages(ServiceBusMessage("other", session_id="ALPHA", message_id="two"))
    holder = accept(bus, queue, "alpha")
    assert [str(message) for message in bus.take(holder, 2)] == ["m", "other"]


@pytest.mark.row("P-13")
@on_each_kind
def test_a_subscription_has_one_session_in_whatever_case_it_is_written(bus: SdkBus) -> None:
    topic = bus.topic()
    bus.admin.create_subscription(topic, "s", requires_session=True)
    for session_id in IDS:
        bus.topic_sender(topic).send_messages(ServiceBusMessage("m", session_id=session_id))
    holder = bus.receiver(topic, "s", session_id="ALPHA", max_wait_time=10)
    assert [message.session_id for message in bus.take(holder, 3)] == list(IDS)


# -- what an earlier version has stored ---------------------------------------------------------


def age(server: ServerProcess) -> None:
    """Make its catalog what the versions wrote for which case counted in keys."""
    with closing(sqlite3.connect(server.data / "catalog.db")) as catalog:
        for path, text in catalog.execute("SELECT path, description FROM entity").fetchall():
            description = json.loads(text)
            assert description.pop("exact_keys") is False
            catalog.execute(
                "UPDATE entity SET description = ? WHERE path = ?", (json.dumps(description), path)
            )
        catalog.commit()


def sent_and_found(server: ServerProcess, queue: str) -> dict[str, list[tuple[int, str]]]:
    """One more message for each id; then what each of the sessions has, by partition."""
    found: dict[str, list[tuple[int, str]]] = {}
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            for session_id in IDS:
                sender.send_messages(ServiceBusMessage(session_id, session_id=session_id))
        for session_id in IDS:
            with client.get_queue_receiver(queue, session_id=session_id, max_wait_time=10) as receiver:
                messages = receiver.peek_messages(10)
                found[session_id] = [(partition_of(each), str(each)) for each in messages]
    return found


@pytest.mark.one_broker("files")
@pytest.mark.row("P-12", "P-13")
def test_an_entity_keeps_the_rule_about_case_by_which_its_messages_are_stored(
    start_server: StartServer,
) -> None:
    queues = {"old": {"RequiresSession": True, "EnablePartitioning": True}}
    server = start_server(queues)
    assert server.stop() == 0
    age(server)
    server.start()
    before = sent_and_found(server, "old")
    assert before == {each: [(partition_of_key(each, 16), each)] for each in IDS}
    assert len({partition for ((partition, _),) in before.values()}) > 1, "or nothing is shown"
    server.kill()
    server.start()
    after = sent_and_found(server, "old")
    assert after == {each: [(partition_of_key(each, 16), each)] * 2 for each in IDS}
    assert sorted(listed(server, "old")) == sorted(IDS)
