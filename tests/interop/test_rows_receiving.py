"""What the contract says of receiving, on 16, on 2 and on 1 partition (fix_kinds.py)."""

from __future__ import annotations

import http.client
import time
from contextlib import closing

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue

from bendybus.auth.sas import make_token
from fix_kinds import SdkBus, on_each_kind, partition_of

KEYS = [f"key-{number}" for number in range(40)]


def fill(bus: SdkBus, queue: str, keys: list[str] = KEYS) -> None:
    """A message for each key: enough to have some in every partition."""
    sender = bus.sender(queue)
    for key in keys:
        sender.send_messages(ServiceBusMessage(key, partition_key=key))


@pytest.mark.row("P-05", "P-25")
@on_each_kind
def test_a_receiver_that_asks_for_one_gets_all_one_by_one(bus: SdkBus) -> None:
    queue = bus.queue()
    fill(bus, queue)
    receiver = bus.receiver(queue)
    taken = [str(bus.take(receiver, 1)[0]) for _ in KEYS]
    assert sorted(taken) == sorted(KEYS)
    assert receiver.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-26")
@on_each_kind
def test_from_one_partition_the_oldest_comes_first(bus: SdkBus) -> None:
    queue = bus.queue()
    fill(bus, queue)
    by_partition: dict[int, list[int]] = {}
    for message in bus.take(bus.receiver(queue), len(KEYS)):
        assert message.sequence_number is not None
        by_partition.setdefault(partition_of(message), []).append(message.sequence_number)
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


@pytest.mark.row("P-25", "P-28")
@on_each_kind
def test_what_was_kept_for_a_receiver_that_left_comes_again_uncounted(bus: SdkBus) -> None:
    queue = bus.queue()
    fill(bus, queue)
    with bus.client.get_queue_receiver(queue, prefetch_count=100) as leaving:
        (first,) = bus.receive(leaving, 1)
        leaving.complete_message(first)
    messages = bus.take(bus.receiver(queue), len(KEYS) - 1)
    assert {message.delivery_count for message in messages} == {0}
    assert {str(message) for message in messages} == set(KEYS) - {str(first)}


@pytest.mark.row("P-30", "P-31")
@on_each_kind
def test_repeated_peeks_reach_everything_exactly_once(bus: SdkBus) -> None:
    queue = bus.queue()
    fill(bus, queue)
    receiver = bus.receiver(queue)
    seen: list[str] = []
    while found := receiver.peek_messages(7):
        seen += map(str, found)
    assert sorted(seen) == sorted(KEYS)


@pytest.mark.row("P-05", "P-35")
@on_each_kind
def test_every_settlement_and_its_way_back(bus: SdkBus) -> None:
    queue = bus.queue(max_delivery_count=2)
    fill(bus, queue, ["complete", "abandon", "defer", "dead-letter"])
    receiver = bus.receiver(queue)
    messages = {str(message): message for message in bus.receive(receiver, 4)}
    end = messages["complete"].locked_until_utc
    assert end is not None and receiver.renew_message_lock(messages["complete"]) >= end
    receiver.complete_message(messages["complete"])
    receiver.abandon_message(messages["abandon"])
    receiver.defer_message(messages["defer"])
    receiver.dead_letter_message(messages["dead-letter"], reason="why", error_description="not")
    (again,) = bus.receive(receiver, 1)
    assert (str(again), again.delivery_count) == ("abandon", 1)
    receiver.abandon_message(again)
    (deferred,) = receiver.receive_deferred_messages([messages["defer"].sequence_number])
    receiver.complete_message(deferred)
    dead = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    letters = {str(letter): letter.dead_letter_reason for letter in bus.take(dead, 2)}
    assert letters == {"dead-letter": "why", "abandon": "MaxDeliveryCountExceeded"}
    assert receiver.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-05", "P-25")
@on_each_kind
def test_receive_and_delete_takes_everything_once(bus: SdkBus) -> None:
    queue = bus.queue()
    fill(bus, queue)
    receiver = bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert sorted(map(str, bus.receive(receiver, len(KEYS)))) == sorted(KEYS)
    assert receiver.peek_messages(1, sequence_number=1) == []


@pytest.mark.row("P-29")
@on_each_kind
def test_http_receives_from_every_partition_and_has_no_content_when_all_is_locked(
    bus: SdkBus,
) -> None:
    queue = bus.queue()
    fill(bus, queue)
    server = bus.server
    token = make_token("https://h", "RootManageSharedAccessKey", server.key, int(time.time()) + 600)

    def ask(connection: http.client.HTTPConnection) -> tuple[int, str, str]:
        connection.request("POST", f"/{queue}/messages/head?timeout=1", headers={"Authorization": token})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("Location", "")

    seen = []
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as kept:
        for number in range(len(KEYS)):
            # Over the kept connection, and over one of its own.
            if number % 8:
                status, text, _ = ask(kept)
            else:
                with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as own:
                    status, text, _ = ask(own)
            assert status == 201
            seen.append(text)
        assert sorted(seen) == sorted(KEYS)
        assert ask(kept) == (204, "", "")
