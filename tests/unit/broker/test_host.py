"""The output-commit rule: what leaves a partition, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bendybus.broker.clock import now
from bendybus.broker.lifecycle import Availability
from bendybus.domain.commands import (
    Abandon,
    CancelScheduled,
    Complete,
    Enqueue,
    Enqueued,
    Peek,
    Settled,
    Transfer,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.schedule import postpone
from bendybus.errors import MessageNotFound, StoreUnavailable
from bendybus.names import Instant, SequenceNumber
from fix_broker import GatedQueue, gated_queue, message


async def send(gated: GatedQueue, *texts: str) -> list[Message]:
    messages = [message(text) for text in texts]
    await gated.host.ask(Enqueue(messages))
    return messages


def lock(gated: GatedQueue, count: int = 10) -> list[Message]:
    return gated.host.lock(count, 1 << 20, SubQueue.MAIN)


def tokens(messages: list[Message]):
    return [each.lock_token for each in messages]


async def test_a_send_is_answered_only_when_it_is_durable():
    async with gated_queue() as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.at_the_gate()
        assert gated.replies == []
        gated.store.open_gate()
        await gated.settled()
        assert gated.replies == [Enqueued(SequenceNumber(1), 1)]


async def test_a_message_cannot_be_locked_before_it_is_durable():
    async with gated_queue() as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.at_the_gate()
        assert lock(gated) == []
        gated.store.open_gate()
        await gated.settled()
        assert len(lock(gated)) == 1


async def test_locking_waits_for_nobody_elses_commit():
    async with gated_queue() as gated:
        await send(gated, "durable")
        gated.store.shut()
        gated.host.submit(Enqueue([message("pending")]), gated.replies.append)
        await gated.at_the_gate()
        assert [each.payload for each in lock(gated)] == [b"durable"]


async def test_a_completion_is_answered_only_when_it_is_durable():
    async with gated_queue() as gated:
        await send(gated, "one")
        held = lock(gated)
        gated.store.shut()
        gated.host.submit(Complete(tokens(held)), gated.replies.append)
        await gated.at_the_gate()
        assert gated.replies == []
        gated.store.open_gate()
        await gated.settled()
        assert gated.replies == [Settled([])]


async def test_a_failed_commit_is_retryable_and_leaves_no_trace():
    async with gated_queue() as gated:
        await send(gated, "kept")
        gated.store.outage = StoreUnavailable("the disk is away")
        gated.host.submit(Enqueue([message("lost")]), gated.replies.append)
        await gated.settled()
        (refusal,) = gated.replies
        assert isinstance(refusal, StoreUnavailable)
        assert refusal.retryable
        assert "partition 0 of 'orders'" in str(refusal).lower()
        assert gated.host.availability is Availability.UNAVAILABLE
        gated.store.outage = None
        gated.host.load()
        await gated.loaded()
        assert [each.sequence_number for each in lock(gated)] == [1]


async def test_what_was_submitted_during_a_failing_commit_fails_with_it():
    """It was made from memory that is thrown away; written later it would contradict what is read back."""

    async with gated_queue() as gated:
        await send(gated, "one")
        held = lock(gated)
        gated.store.shut()
        gated.store.fails_once = StoreUnavailable("the disk is away")
        gated.host.submit(Enqueue([message("two")]), gated.replies.append)
        await gated.at_the_gate()
        gated.host.submit(Complete(tokens(held)), gated.replies.append)
        gated.store.open_gate()
        await gated.settled()
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable, StoreUnavailable]
        gated.host.load()
        await gated.loaded()
        assert [each.sequence_number for each in lock(gated)] == [1]
        assert len(gated.store.groups) == 1


async def test_commands_wait_while_a_partition_loads():
    async with gated_queue() as gated:
        await send(gated, "one")
        gated.host.load()
        gated.host.submit(Peek(SequenceNumber(0), 10), gated.replies.append)
        assert gated.replies == []
        await gated.loaded()
        assert len(gated.replies) == 1


async def test_a_partition_that_is_away_answers_at_once():
    async with gated_queue() as gated:
        gated.host.fail(StoreUnavailable("away"))
        with pytest.raises(StoreUnavailable):
            await gated.host.ask(Peek(SequenceNumber(0), 1))
        assert lock(gated) == []


async def test_a_refused_command_is_answered_with_its_reason():
    async with gated_queue() as gated:
        from bendybus.domain.commands import LockDeferred

        with pytest.raises(MessageNotFound):
            await gated.host.ask(LockDeferred([SequenceNumber(7)], bytes(14)))


async def test_an_update_is_written_as_it_was_when_it_was_answered():
    """The thread reads later than the loop goes on: what changes meanwhile belongs to a later commit."""

    async with gated_queue() as gated:
        await send(gated, "one")
        gated.store.shut()
        gated.host.submit(Abandon(tokens(lock(gated))), gated.replies.append)
        await gated.at_the_gate()
        gated.host.submit(Abandon(tokens(lock(gated))), gated.replies.append)
        gated.store.open_gate()
        await gated.settled()
        counts = [change.updated[0].delivery_count for group in gated.store.groups[1:] for change in group]
        assert counts == [1, 2]


async def test_payloads_beyond_the_cache_are_read_back_from_the_store():
    async with gated_queue() as gated:
        gated.cache.limit_bytes = 3
        messages = await send(gated, "abc", "def")
        await asyncio.sleep(0)
        assert [each.payload for each in messages] == [b"abc", None]
        assert await gated.host.payloads(messages) == [b"abc", b"def"]
        await gated.host.ask(Complete(tokens(lock(gated))))
        assert gated.cache.used_bytes == 0


def scheduled(text: str, delay_ms: int) -> Message:
    waits = message(text)
    postpone(waits, now(), Instant(now() + delay_ms))
    return waits


async def test_a_due_message_can_be_locked_only_when_its_new_number_is_durable():
    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([scheduled("due", 0)]))
        gated.store.shut()
        assert gated.host.tick(now())
        await gated.at_the_gate()
        assert lock(gated) == []
        gated.store.open_gate()
        await gated.settled()
        (held,) = lock(gated)
        assert held.sequence_number == 2


async def test_an_activation_that_cannot_be_committed_is_made_up_for():
    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([scheduled("due", 0)]))
        gated.store.fails_once = StoreUnavailable("full")
        gated.host.tick(now())
        await gated.settled()
        assert gated.host.availability is Availability.UNAVAILABLE
        gated.host.load()
        await gated.loaded()
        assert lock(gated) == []
        gated.host.tick(now())
        await gated.settled()
        assert [each.sequence_number for each in lock(gated)] == [2]


async def test_payloads_of_scheduled_messages_stay_on_disk():
    async with gated_queue() as gated:
        waits, goes = scheduled("later", 60_000), message("now")
        await gated.host.ask(Enqueue([waits, goes]))
        assert (waits.payload, goes.payload) == (None, b"now")
        assert gated.cache.used_bytes == goes.size
        assert await gated.host.payloads([waits]) == [b"later"]
        await gated.host.ask(CancelScheduled([waits.sequence_number]))
        assert gated.cache.used_bytes == goes.size


@pytest.mark.row("P-15")
async def test_a_duplicate_is_answered_no_sooner_than_the_message_it_repeats():
    async with gated_queue(requires_duplicate_detection=True) as gated:
        gated.store.shut()
        for text in ("first", "again"):
            gated.host.submit(Enqueue([message(text)], ["m"]), gated.replies.append)
        await gated.at_the_gate()
        assert gated.replies == []
        gated.store.open_gate()
        await gated.settled()
        assert gated.replies == [Enqueued(SequenceNumber(1), 1), Enqueued(SequenceNumber(2), 0, False, (0,))]
        assert [each.payload for each in lock(gated)] == [b"first"]
        assert gated.cache.used_bytes == len("first")


async def test_an_update_during_a_load_is_not_lost():
    async with gated_queue() as gated:
        loading = gated.attached.load

        def load(key, epoch, read, loaded, late):
            def read_and_update(*arguments):
                found = read(*arguments)
                gated.queue.description = replace(gated.queue.description, max_delivery_count=3)
                return found

            loading(key, epoch, read_and_update, loaded, late)

        gated.attached.load = load
        gated.host.fail(StoreUnavailable("read error"))
        gated.host.load()
        await gated.loaded()
        assert gated.host.partition.description.max_delivery_count == 3


@pytest.mark.row("P-28")
async def test_locks_that_a_lost_partition_had_granted_are_void():
    # P-28. Found by a simulation: a link kept the message for its next credit and sent it, though
    # another had got and completed it since.
    async with gated_queue() as gated:
        await send(gated, "one")
        (kept,) = lock(gated)
        assert kept.lock_token is not None
        assert gated.host.holds(kept.lock_token, gated.host.now())
        assert not gated.host.holds(kept.lock_token, kept.locked_until)
        gated.store.fails_once = StoreUnavailable("the disk is away")
        gated.host.submit(Enqueue([message("two")]), gated.replies.append)
        await gated.settled()
        assert not gated.host.holds(kept.lock_token, gated.host.now())


async def test_a_repeated_transfer_takes_no_room_in_the_cache():
    async with gated_queue() as gated:
        for numbers in ([1, 2], [1, 2], [2, 3]):
            transfer = Transfer("source/0", [SequenceNumber(number) for number in numbers])
            await gated.host.ask(Enqueue([message() for _ in numbers], transfer=transfer))
        assert gated.cache.used_bytes == 3
        given = lock(gated)
        await gated.host.ask(Complete(tokens(given)))
        assert (len(given), gated.cache.used_bytes) == (3, 0)
