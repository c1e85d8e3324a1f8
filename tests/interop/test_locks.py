"""Message locks and lifetimes: how long a message is held, and how long it lives."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from fix_server import Shape
from interop.conftest import MakeSdkQueues
from interop.sdk import SdkQueue, bodies, receive

# A live test of the SDK for Go compares this text.
LOST = (
    "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
    "from the queue"
)


def lock_end(message: ServiceBusReceivedMessage) -> datetime:
    assert message.locked_until_utc is not None
    return message.locked_until_utc


def trust_server_alone(message: ServiceBusReceivedMessage) -> None:
    """Let the SDK ask the server about a lock which it would refuse by its own clock."""
    message._expiry = datetime.now(UTC) + timedelta(hours=1)


def test_renewing_moves_the_end_of_a_lock(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("slow work")
    message = sdk_queue.receive_one()
    before = lock_end(message)
    # Ends are told in milliseconds; two renewals within one would be no failure.
    deadline = time.monotonic() + 10
    while sdk_queue.receiver.renew_message_lock(message) <= before:
        assert time.monotonic() < deadline
    assert before < lock_end(message) <= datetime.now(UTC) + timedelta(minutes=1)
    sdk_queue.complete(message)


def test_a_lock_runs_out_unless_it_is_renewed(make_sdk_queues: MakeSdkQueues) -> None:
    held = []
    with ExitStack() as renewing:
        for sdk_queue in make_sdk_queues(Shape.BRIEF_LOCK):
            sdk_queue.send("kept")
            kept = sdk_queue.receive_one()
            sdk_queue.send("lost")
            lost = sdk_queue.receive_one()
            renewer = renewing.enter_context(sdk_queue.sdk.renewer())
            renewer.register(sdk_queue.receiver, kept, max_lock_renewal_duration=60)
            held.append((sdk_queue, kept, lock_end(kept), lost))
        for sdk_queue, kept, first_end, lost in held:
            (again,) = receive(sdk_queue.another_receiver(), 1)
            assert (str(again), again.delivery_count) == ("lost", 1)
            assert lock_end(again) > lock_end(lost)
            assert datetime.now(UTC) > lock_end(lost)
            assert lock_end(kept) > first_end
    for sdk_queue, kept, _, lost in held:
        trust_server_alone(lost)
        with pytest.raises(MessageLockLostError, match=LOST):
            sdk_queue.receiver.renew_message_lock(lost)
        with pytest.raises(MessageLockLostError, match=LOST):
            sdk_queue.complete(lost)
        sdk_queue.complete(kept)
        assert bodies(sdk_queue.receiver.peek_messages(10, sequence_number=1)) == ["lost"]


def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(make_sdk_queues: MakeSdkQueues) -> None:
    sdk_queues = make_sdk_queues(Shape.DEAD_LETTERING)
    for sdk_queue in sdk_queues:
        sdk_queue.send("stale", time_to_live=timedelta(milliseconds=100))
        sdk_queue.send("fresh", time_to_live=timedelta(hours=1))
    for sdk_queue in sdk_queues:
        dead = sdk_queue.receive_dead_letter()
        assert (str(dead), dead.dead_letter_reason) == ("stale", "TTLExpiredException")
        fresh = sdk_queue.receive_one()
        assert str(fresh) == "fresh"
        assert fresh.expires_at_utc is not None and fresh.enqueued_time_utc is not None
        assert fresh.expires_at_utc - fresh.enqueued_time_utc == timedelta(hours=1)


def test_an_expired_message_is_gone_otherwise(make_sdk_queues: MakeSdkQueues) -> None:
    sdk_queues = make_sdk_queues()
    for sdk_queue in sdk_queues:
        sdk_queue.send("stale", time_to_live=timedelta(milliseconds=100))
    deadline = time.monotonic() + 20
    for sdk_queue in sdk_queues:
        while sdk_queue.receiver.peek_messages(1, sequence_number=1):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert sdk_queue.dead_letters.peek_messages(1, sequence_number=1) == []


def test_an_expired_message_is_not_delivered(make_sdk_queues: MakeSdkQueues) -> None:
    for sdk_queue in make_sdk_queues():
        sdk_queue.send("over at once", time_to_live=timedelta(milliseconds=1))
        sdk_queue.send("lasting")
        assert str(sdk_queue.receive_one()) == "lasting"
