"""A store that fails, stalls or comes back: who is told what, and when."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from bendybus.broker import writer
from bendybus.broker.lifecycle import Availability, RecoveryState, StoreState
from bendybus.domain.commands import Complete, Enqueue, Enqueued, Peek, Reserve, Tick
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import PartitionMoved, StoreCorrupted, StoreUnavailable
from bendybus.names import SequenceNumber
from fix_async import until
from fix_broker import GatedQueue, gated_queue, message

UNAVAILABLE = Availability.UNAVAILABLE
AWAY = StoreUnavailable("no route to host")
FAR = 1 << 20


def lock(gated: GatedQueue, partition: int = 0) -> list[Message]:
    return gated.queue.hosts[partition].lock(10, FAR, SubQueue.MAIN)


def states(gated: GatedQueue) -> list[Availability]:
    return [host.availability for host in gated.queue.hosts]


async def stall(gated: GatedQueue, *texts: str) -> None:
    """A commit with these messages hangs in the store."""
    gated.store.shut()
    gated.host.submit(Enqueue([message(text) for text in texts or ("stuck",)]), gated.replies.append)
    await gated.at_the_gate()


async def probed(gated: GatedQueue) -> None:
    """The probe that is under way has been answered."""
    recovery = gated.attached.recovery
    await gated.attached.changes.until(lambda: recovery.state is not RecoveryState.PROBING)


@pytest.mark.row("P-17")
async def test_a_stalled_commit_is_answered_in_bounded_time():
    async with gated_queue() as gated:
        await stall(gated)
        gated.host.submit(Enqueue([message("behind it")]), gated.replies.append)
        gated.pass_time(1.6)
        assert gated.replies == []
        gated.pass_time(1)
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable, StoreUnavailable]
        assert gated.host.availability is UNAVAILABLE


async def test_a_large_commit_is_given_the_time_that_a_busy_disk_takes_to_write_it():
    async with gated_queue() as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([Message(b"large", size=60 << 20)]), gated.replies.append)
        await gated.at_the_gate()
        gated.pass_time(4)
        assert (gated.replies, gated.attached.state) == ([], StoreState.SLOW)
        gated.pass_time(2)
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable]


@pytest.mark.row("P-04", "P-27")
async def test_a_stall_makes_only_its_own_partitions_unavailable():
    async with gated_queue(partitions=4, stores=2) as gated:
        await stall(gated)
        gated.pass_time(3)
        assert states(gated) == [UNAVAILABLE, Availability.AVAILABLE] * 2
        reply = await gated.queue.hosts[1].ask(Enqueue([message()]))
        assert isinstance(reply, Enqueued)
        with pytest.raises(StoreUnavailable, match="retry"):
            await gated.queue.hosts[2].ask(Enqueue([message()]))


@pytest.mark.row("P-16", "P-33")
async def test_a_slow_store_is_passed_over_before_anything_is_given_up():
    async with gated_queue(partitions=2, stores=2) as gated:
        await stall(gated)
        gated.pass_time(1.4)
        assert gated.attached.state is StoreState.SLOW
        assert states(gated) == [Availability.AVAILABLE] * 2
        assert gated.queue.limited
        assert {gated.queue.host_for(None).number for _ in range(4)} == {1}
        gated.store.open_gate()
        await gated.settled()
        gated.pass_time(0.2)
        assert states(gated) == [Availability.AVAILABLE] * 2
        assert isinstance(gated.replies[0], Enqueued)
        assert not gated.queue.limited


@pytest.mark.row("P-16")
async def test_where_all_are_slow_a_slow_one_is_taken():
    async with gated_queue(partitions=2) as gated:
        await stall(gated)
        gated.pass_time(1.4)
        assert {gated.queue.host_for(None).number for _ in range(4)} == {0, 1}


@pytest.mark.row("P-16")
async def test_what_a_stall_reported_as_failed_is_taken_back_when_it_was_stored_late():
    """The sender has sent it again, or it went to another partition."""

    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([message("before")]))
        await stall(gated, "late", "late too")
        gated.pass_time(3)
        gated.store.open_gate()
        await gated.recovered()
        assert len(gated.store.groups) >= 2, "the commit did land"
        assert [each.sequence_number for each in lock(gated)] == [1]
        await gated.settled()
        assert len(gated.store.load(gated.host.key).messages) == 1
        reply = await gated.host.ask(Enqueue([message("after")]))
        assert reply == Enqueued(SequenceNumber(4), 1)


async def test_what_failed_and_never_came_to_be_stored_takes_nothing_back():
    async with gated_queue() as gated:
        gated.store.fails_once = AWAY
        gated.host.submit(Enqueue([message("lost")]), gated.replies.append)
        await gated.settled()
        await gated.recovered()
        for _ in range(2):
            await gated.host.ask(Enqueue([message("has the number of the lost one")]))
        await gated.recovered()
        assert [each.sequence_number for each in lock(gated)] == [1, 2]


async def test_messages_of_another_owner_are_never_taken_back():
    async with gated_queue() as gated:
        await stall(gated)
        gated.pass_time(3)
        gated.store.open_gate()
        await gated.returned()
        gated.store.claim([gated.host.key])
        await gated.recovered()
        assert len(lock(gated)) == 1


async def test_nothing_lands_after_the_partition_was_claimed_again():
    """A commit that was given up either is there when the partition is loaded, or never."""

    async with gated_queue() as gated:
        await stall(gated)
        gated.pass_time(3)
        gated.attached.recover()
        gated.pass_time(3)
        assert gated.attached.state is StoreState.AWAY, "no claim while the commit may yet be written"
        gated.store.open_gate()
        await gated.recovered()
        assert [len(group[0].stored) for group in gated.store.groups[:1]] == [1]


async def test_an_answer_that_comes_after_the_stall_was_declared_is_given_once():
    async with gated_queue() as gated:
        await stall(gated)
        gated.pass_time(3)
        gated.store.open_gate()
        await gated.recovered()
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable]


@pytest.mark.row("P-04")
async def test_a_failing_store_takes_all_its_partitions_with_it_and_they_come_back_together():
    async with gated_queue(partitions=3) as gated:
        for host in gated.queue.hosts:
            await host.ask(Enqueue([message("kept")]))
        gated.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await gated.host.ask(Enqueue([message("lost")]))
        assert states(gated) == [UNAVAILABLE] * 3
        gated.store.outage = None
        await gated.recovered()
        assert [len(lock(gated, number)) for number in range(3)] == [1, 1, 1]


async def test_a_store_that_is_away_is_probed_once_for_all_its_partitions(monkeypatch):
    async with gated_queue(partitions=5) as gated:
        gated.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await gated.host.ask(Enqueue([message()]))
        claims = []
        real = gated.store.claim
        monkeypatch.setattr(gated.store, "claim", lambda keys: (claims.append(len(keys)), real(keys))[1])
        gated.attached.recover()
        gated.attached.recover()
        await probed(gated)
        assert claims
        gated.store.outage = None
        await gated.recovered()
        assert claims == [5, 5]


async def test_an_outage_is_told_once_and_so_is_its_end(caplog):
    caplog.set_level(logging.INFO)
    async with gated_queue(partitions=3) as gated:
        gated.store.outage = AWAY
        for host in gated.queue.hosts:
            host.submit(Enqueue([message()]), gated.replies.append)
        await gated.settled()
        for _ in range(3):
            gated.attached.recover()
            await probed(gated)
        gated.store.outage = None
        await gated.recovered()

    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "away" in text]) <= 2, told
    assert len([text for text in told if "is back after" in text]) == 1


async def test_a_moved_partition_does_not_make_its_store_unavailable():
    async with gated_queue(partitions=2) as gated:
        gated.store.fails_once = PartitionMoved("claimed")
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.settled()
        assert states(gated) == [UNAVAILABLE, Availability.AVAILABLE]
        assert gated.attached.state is StoreState.AVAILABLE


async def test_a_damaged_partition_leaves_the_others_of_its_store_alone(monkeypatch):
    async with gated_queue(partitions=2) as gated:
        damaged = gated.queue.hosts[0].key
        real = gated.store.load

        def load(key, between_pages):
            if key == damaged:
                raise StoreCorrupted("garbled")
            return real(key, between_pages)

        monkeypatch.setattr(gated.store, "load", load)
        gated.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await gated.host.ask(Enqueue([message()]))
        gated.store.outage = None
        gated.attached.recover()
        other = gated.queue.hosts[1]
        await gated.attached.changes.until(lambda: other.availability is Availability.AVAILABLE)
        assert isinstance(await gated.queue.hosts[1].ask(Enqueue([message()])), Enqueued)
        assert gated.attached.state is StoreState.DAMAGED
        assert gated.host.availability is not Availability.AVAILABLE


async def test_a_settlement_in_a_stalled_store_is_answered_and_the_message_comes_again():
    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([message("one")]))
        (held,) = lock(gated)
        gated.store.shut()
        gated.store.fails_once = AWAY
        gated.host.submit(Complete([held.lock_token]), gated.replies.append)
        await gated.at_the_gate()
        gated.pass_time(3)
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable]
        gated.store.open_gate()
        await gated.recovered()
        assert [each.sequence_number for each in lock(gated)] == [1]


# -- reads and loads ------------------------------------------------------------------


class Hung:
    """A call of a store that hangs until it is let go."""

    def __init__(self, real):
        self._real = real
        self.entered, self._go = threading.Event(), threading.Event()

    def __call__(self, *arguments):
        self.entered.set()
        assert self._go.wait(10), "the test never let it go"
        return self._real(*arguments)

    async def reached(self):
        await asyncio.to_thread(self.entered.wait, 10)

    def let_go(self):
        self._go.set()


@pytest.mark.row("P-27")
async def test_a_stalled_read_is_answered_and_its_store_is_away(monkeypatch):
    async with gated_queue() as gated:
        gated.cache.limit_bytes = 0
        await gated.host.ask(Enqueue([message("cold")]))
        hung = Hung(gated.store.read)
        monkeypatch.setattr(gated.store, "read", hung)
        answers = []
        gated.host.read(lock(gated), answers.append)
        await hung.reached()
        gated.pass_time(3)
        assert [type(answer) for answer in answers] == [StoreUnavailable]
        assert gated.attached.state is StoreState.AWAY
        gated.attached.recover()
        assert gated.attached.recovery.state is not RecoveryState.PROBING, (
            "while a read hangs nothing can be loaded"
        )
        hung.let_go()
        await gated.recovered()
        assert await gated.host.payloads(lock(gated)) == [b"cold"]


@pytest.mark.row("P-16")
async def test_a_load_that_takes_long_holds_up_nobody_and_is_used_when_it_comes(monkeypatch):
    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([message("kept")]))
        hung = Hung(gated.store.load)
        monkeypatch.setattr(gated.store, "load", hung)
        gated.store.fails_once = AWAY
        gated.host.submit(Enqueue([message()]), lambda _: None)
        await gated.settled()
        gated.attached.recover()
        await hung.reached()
        gated.host.submit(Peek(SequenceNumber(0), 1), gated.replies.append)
        assert gated.host.availability is Availability.LOADING
        # The writer's thread may still be on its way out of the probe; only the load is to take long.
        await until(lambda: gated.attached.writer.step is None)
        gated.pass_time(11)
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable]
        assert gated.host.availability is UNAVAILABLE
        assert not gated.queue.loading, "a drain is not held up"
        assert gated.attached.state is StoreState.AVAILABLE, "a long load is no failure"
        hung.let_go()
        await gated.attached.changes.until(lambda: gated.host.availability is not UNAVAILABLE)
        assert len(lock(gated)) == 1


@pytest.mark.row("P-32")
async def test_an_errand_in_a_stalled_store_is_refused_in_bounded_time_and_never_done_later():
    async with gated_queue() as gated:
        done = []
        await stall(gated)
        errand = asyncio.ensure_future(gated.attached.run(lambda: done.append("late")))
        await asyncio.sleep(0)
        gated.pass_time(3)
        with pytest.raises(StoreUnavailable):
            await errand
        with pytest.raises(StoreUnavailable, match="'gated' is away"):
            await gated.attached.run(lambda: done.append("while away"))
        gated.store.open_gate()
        await gated.recovered()
        assert done == []


@pytest.mark.row("P-33")
async def test_an_idle_store_that_hangs_is_noticed(monkeypatch):
    async with gated_queue() as gated:
        hung = Hung(gated.store.tidy)
        monkeypatch.setattr(gated.store, "tidy", hung)
        await hung.reached()
        gated.pass_time(3)
        assert gated.attached.state is StoreState.AWAY
        hung.let_go()
        await gated.recovered()


async def test_a_store_that_is_away_is_not_tidied(monkeypatch):
    """It may never have been open; and its errors would be told every second."""

    async with gated_queue() as gated:
        monkeypatch.setattr(writer, "TIDY_AFTER_S", 0.001)
        tidied = []
        monkeypatch.setattr(gated.store, "tidy", lambda: tidied.append(gated.attached.state))
        gated.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await gated.host.ask(Enqueue([message()]))
        tidied.clear()
        gated.store.outage = None
        await gated.recovered()
        await until(lambda: bool(tidied))
        assert StoreState.AWAY not in tidied


async def test_timers_of_others_run_on_beside_a_stalled_store():
    async with gated_queue(partitions=2, stores=2) as gated:
        await stall(gated)
        await gated.queue.hosts[1].ask(Enqueue([message("one")]))
        gated.pass_time(3)
        assert lock(gated, 1)
        assert await gated.queue.hosts[1].ask(Tick()) is not None


async def test_a_store_that_fails_as_soon_as_it_is_back_is_tried_ever_more_seldom():
    async with gated_queue() as gated:
        delays = []
        for _ in range(7):
            gated.store.fails_once = AWAY
            gated.host.submit(Enqueue([message()]), gated.replies.append)
            await gated.settled()
            delays.append(gated.attached.recovery.delay_s)
            await gated.recovered()
        assert delays == [1, 2, 4, 8, 16, 30, 30]


async def test_a_partition_whose_load_failed_shortly_before_its_store_came_back_is_loaded_later():
    # Found by the simulation: it was to be tried 50 ms after the probe, and no other probe was planned.
    async with gated_queue(partitions=2) as gated:
        first, second = gated.queue.hosts
        gated.attached.fail(AWAY)
        second.fail(AWAY)
        gated.attached.recover()
        await gated.attached.changes.until(lambda: first.availability is Availability.AVAILABLE)
        assert (gated.attached.state, second.availability) == (StoreState.AVAILABLE, UNAVAILABLE)
        assert gated.attached.recovery.state is RecoveryState.PLANNED


async def test_a_partition_that_fails_while_its_store_is_probed_is_loaded_later(monkeypatch):
    async with gated_queue(partitions=2) as gated:
        first, second = gated.queue.hosts
        gated.attached.fail(AWAY)
        second.load()
        await gated.attached.changes.until(lambda: second.availability is Availability.AVAILABLE)
        answer, claim = threading.Event(), gated.store.claim
        monkeypatch.setattr(gated.store, "claim", lambda keys: claim(keys) if answer.wait(10) else [])
        gated.attached.recover()
        second.fail(AWAY)
        assert gated.attached.recovery.state is RecoveryState.PROBING
        answer.set()
        await gated.attached.changes.until(lambda: first.availability is Availability.AVAILABLE)
        assert second.availability is UNAVAILABLE
        assert gated.attached.recovery.state is RecoveryState.PLANNED


async def test_a_probe_before_the_time_of_a_partition_leaves_it_for_later():
    async with gated_queue() as gated:
        gated.host.fail(AWAY)
        gated.attached.recover()
        assert (gated.attached.state, gated.host.availability) == (StoreState.AVAILABLE, UNAVAILABLE)
        assert gated.attached.recovery.state is RecoveryState.PLANNED


async def test_stopping_does_not_wait_for_a_store_that_is_stuck():
    async with gated_queue() as gated:
        await stall(gated)
        gated.pass_time(3)
        gated.attached.stop()
        assert gated.attached.writer.stuck


# -- damage -------------------------------------------------------------------------


@pytest.mark.row("P-33")
async def test_a_store_that_meets_damage_says_so_until_none_is_met_any_more(caplog):
    with caplog.at_level(logging.ERROR):
        async with gated_queue(partitions=2) as gated:
            gated.store.fails_once = StoreCorrupted("gated.db is damaged: page 7")
            with pytest.raises(StoreUnavailable):
                await gated.host.ask(Enqueue([message()]))
            assert gated.attached.state is StoreState.DAMAGED
            assert gated.attached.reason == "gated.db is damaged: page 7"
            assert gated.attached.damages == 1
            assert gated.queue.limited
            # Only what met the damage is lost: the other partitions go on.
            assert states(gated) == [UNAVAILABLE, Availability.AVAILABLE]
            await gated.queue.hosts[1].ask(Enqueue([message()]))
            gated.pass_time(60)
            assert gated.attached.state is StoreState.DAMAGED, "one partition is still not loaded"
            await gated.attached.recovered()
            await gated.loaded()
            gated.pass_time(1)
            assert gated.attached.state is StoreState.AVAILABLE
            assert gated.attached.reason == ""
            assert not gated.queue.limited

    assert "store gated is damaged" in caplog.text


@pytest.mark.row("P-33")
async def test_damage_that_is_met_in_an_idle_moment_or_a_read_is_told(monkeypatch):
    async with gated_queue() as gated:

        def damaged(*_: object) -> bool:
            raise StoreCorrupted("gated.db is damaged: page 7")

        monkeypatch.setattr(gated.store, "read", damaged)
        await gated.read_back()
        assert gated.attached.state is StoreState.DAMAGED
        await gated.returned()
        gated.pass_time(20)
        assert gated.attached.state is StoreState.AVAILABLE
        monkeypatch.setattr(writer, "TIDY_AFTER_S", 0.001)
        monkeypatch.setattr(gated.store, "tidy", damaged)
        gated.attached.writer.when_written(lambda: None)
        await gated.attached.changes.until(lambda: gated.attached.state is StoreState.DAMAGED)
        gated.attached.fail(StoreUnavailable("gone altogether"))
        assert gated.attached.state is StoreState.AWAY


async def test_numbers_that_a_transaction_has_reserved_are_not_given_again():
    # They were given to other messages after the load, so two messages had one number.
    async with gated_queue() as gated:
        reserved = await gated.host.ask(Reserve(2))
        gated.attached.fail(AWAY)
        await gated.recovered()
        sent = await gated.host.ask(Enqueue([message()]))
        assert isinstance(reserved, Enqueued)
        assert sent == Enqueued(SequenceNumber(reserved.first + 2), 1)
