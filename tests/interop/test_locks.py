"""Message locks and lifetimes: how long a message is held, and how long it lives."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from fix_server import Shape
from interop.conftest import MakeDesks
from interop.sdk import Desk, bodies, receive


def lock_end(message: ServiceBusReceivedMessage) -> datetime:
    assert message.locked_until_utc is not None
    return message.locked_until_utc


def trust_server_alone(message: ServiceBusReceivedMessage) -> None:
    """Let the SDK ask the server about a lock which it would refuse by its own clock."""
    message._expiry = datetime.now(UTC) + timedelta(hours=1)


def test_renewing_moves_the_end_of_a_lock(desk: Desk) -> None:
    desk.send("slow work")
    message = desk.receive_one()
    before = lock_end(message)
    # Ends are told in milliseconds; two renewals within one would be no failure.
    deadline = time.monotonic() + 10
    while desk.receiver.renew_message_lock(message) <= before:
        assert time.monotonic() < deadline
    assert before < lock_end(message) <= datetime.now(UTC) + timedelta(minutes=1)
    desk.complete(message)


def test_a_lock_runs_out_unless_it_is_renewed(make_desks: MakeDesks) -> None:
    held = []
    with ExitStack() as renewing:
        for desk in make_desks(Shape.BRIEF_LOCK):
            desk.send("kept")
            kept = desk.receive_one()
            desk.send("lost")
            lost = desk.receive_one()
            renewer = renewing.enter_context(desk.sdk.renewer())
            renewer.register(desk.receiver, kept, max_lock_renewal_duration=60)
            held.append((desk, kept, lock_end(kept), lost))
        for desk, kept, first_end, lost in held:
            (again,) = receive(desk.another_receiver(), 1)
            assert (str(again), again.delivery_count) == ("lost", 1)
            assert lock_end(again) > lock_end(lost)
            assert datetime.now(UTC) > lock_end(lost)
            assert lock_end(kept) > first_end
    for desk, kept, _, lost in held:
        trust_server_alone(lost)
        with pytest.raises(MessageLockLostError):
            desk.receiver.renew_message_lock(lost)
        with pytest.raises(MessageLockLostError):
            desk.complete(lost)
        desk.complete(kept)
        assert bodies(desk.receiver.peek_messages(10, sequence_number=1)) == ["lost"]


def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(make_desks: MakeDesks) -> None:
    desks = make_desks(Shape.DEAD_LETTERING)
    for desk in desks:
        desk.send("stale", time_to_live=timedelta(milliseconds=100))
        desk.send("fresh", time_to_live=timedelta(hours=1))
    for desk in desks:
        dead = desk.receive_dead_letter()
        assert (str(dead), dead.dead_letter_reason) == ("stale", "TTLExpiredException")
        fresh = desk.receive_one()
        assert str(fresh) == "fresh"
        assert fresh.expires_at_utc is not None and fresh.enqueued_time_utc is not None
        assert fresh.expires_at_utc - fresh.enqueued_time_utc == timedelta(hours=1)


def test_an_expired_message_is_gone_otherwise(make_desks: MakeDesks) -> None:
    desks = make_desks()
    for desk in desks:
        desk.send("stale", time_to_live=timedelta(milliseconds=100))
    deadline = time.monotonic() + 20
    for desk in desks:
        while desk.receiver.peek_messages(1, sequence_number=1):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert desk.dead_letters.peek_messages(1, sequence_number=1) == []


def test_an_expired_message_is_not_delivered(make_desks: MakeDesks) -> None:
    for desk in make_desks():
        desk.send("over at once", time_to_live=timedelta(milliseconds=1))
        desk.send("lasting")
        assert str(desk.receive_one()) == "lasting"
