"""A store that fails, stalls or comes back: who is told what, and when."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from bendybus.broker import writer
from bendybus.broker.lifecycle import Availability, RecoveryState, StoreState
from bendybus.domain.commands import Complete, Enqueue, Enqueued, Peek, Tick
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import PartitionMoved, StoreCorrupted, StoreUnavailable
from bendybus.names import SequenceNumber
from fix_broker import Yard, message, open_yard

UNAVAILABLE = Availability.UNAVAILABLE
AWAY = StoreUnavailable("no route to host")
FAR = 1 << 20


def lock(yard: Yard, partition: int = 0) -> list[Message]:
    return yard.queue.hosts[partition].lock(10, FAR, SubQueue.MAIN)


def states(yard: Yard) -> list[Availability]:
    return [host.availability for host in yard.queue.hosts]


async def stall(yard: Yard, *texts: str) -> None:
    """A commit with these messages hangs in the store."""
    yard.store.shut()
    yard.host.submit(Enqueue([message(text) for text in texts or ("stuck",)]), yard.replies.append)
    await yard.at_the_gate()


async def test_a_stalled_commit_is_answered_in_bounded_time():  # P-17
    async with open_yard() as yard:
        await stall(yard)
        yard.host.submit(Enqueue([message("behind it")]), yard.replies.append)
        yard.pass_time(1.6)
        assert yard.replies == []
        yard.pass_time(1)
        assert [type(reply) for reply in yard.replies] == [StoreUnavailable, StoreUnavailable]
        assert yard.host.availability is UNAVAILABLE


async def test_a_stall_makes_only_its_own_partitions_unavailable():  # P-04 P-27
    async with open_yard(partitions=4, stores=2) as yard:
        await stall(yard)
        yard.pass_time(3)
        assert states(yard) == [UNAVAILABLE, Availability.AVAILABLE] * 2
        reply = await yard.queue.hosts[1].ask(Enqueue([message()]))
        assert isinstance(reply, Enqueued)
        with pytest.raises(StoreUnavailable, match="retry"):
            await yard.queue.hosts[2].ask(Enqueue([message()]))


async def test_a_slow_store_is_passed_over_before_anything_is_given_up():  # P-16 P-33
    async with open_yard(partitions=2, stores=2) as yard:
        await stall(yard)
        yard.pass_time(1.4)
        assert yard.attached.state is StoreState.SLOW
        assert states(yard) == [Availability.AVAILABLE] * 2
        assert yard.queue.limited
        assert {yard.queue.place(None).number for _ in range(4)} == {1}
        yard.store.open_gate()
        await yard.settled()
        yard.pass_time(0.2)
        assert states(yard) == [Availability.AVAILABLE] * 2
        assert isinstance(yard.replies[0], Enqueued)
        assert not yard.queue.limited


async def test_where_all_are_slow_a_slow_one_is_taken():  # P-16
    async with open_yard(partitions=2) as yard:
        await stall(yard)
        yard.pass_time(1.4)
        assert {yard.queue.place(None).number for _ in range(4)} == {0, 1}


async def test_what_a_stall_reported_as_failed_is_taken_back_when_it_was_stored_late():  # P-16
    """The sender has sent it again, or it went to another partition."""

    async with open_yard() as yard:
        await yard.host.ask(Enqueue([message("before")]))
        await stall(yard, "late", "late too")
        yard.pass_time(3)
        yard.store.open_gate()
        await yard.recovered()
        assert len(yard.store.groups) >= 2, "the commit did land"
        assert [each.sequence_number for each in lock(yard)] == [1]
        await yard.settled()
        assert len(yard.store.load(yard.host.key).messages) == 1
        reply = await yard.host.ask(Enqueue([message("after")]))
        assert reply == Enqueued(SequenceNumber(4), 1)


async def test_what_failed_and_never_came_to_be_stored_takes_nothing_back():
    async with open_yard() as yard:
        yard.store.fails_once = AWAY
        yard.host.submit(Enqueue([message("lost")]), yard.replies.append)
        await yard.settled()
        await yard.recovered()
        for _ in range(2):
            await yard.host.ask(Enqueue([message("has the number of the lost one")]))
        await yard.recovered()
        assert [each.sequence_number for each in lock(yard)] == [1, 2]


async def test_messages_of_another_owner_are_never_taken_back():
    async with open_yard() as yard:
        await stall(yard)
        yard.pass_time(3)
        yard.store.open_gate()
        while yard.attached.writer.stuck:
            await asyncio.sleep(0.001)
        yard.store.claim([yard.host.key])
        await yard.recovered()
        assert len(lock(yard)) == 1


async def test_nothing_lands_after_the_partition_was_claimed_again():
    """A commit that was given up either is there when the partition is loaded, or never."""

    async with open_yard() as yard:
        await stall(yard)
        yard.pass_time(3)
        yard.attached.recover()
        yard.pass_time(3)
        assert yard.attached.state is StoreState.AWAY, "no claim while the commit may yet be written"
        yard.store.open_gate()
        await yard.recovered()
        assert [len(group[0].stored) for group in yard.store.groups[:1]] == [1]


async def test_an_answer_that_comes_after_the_stall_was_declared_is_given_once():
    async with open_yard() as yard:
        await stall(yard)
        yard.pass_time(3)
        yard.store.open_gate()
        await yard.recovered()
        assert [type(reply) for reply in yard.replies] == [StoreUnavailable]


async def test_a_failing_store_takes_all_its_partitions_with_it_and_they_come_back_together():  # P-04
    async with open_yard(partitions=3) as yard:
        for host in yard.queue.hosts:
            await host.ask(Enqueue([message("kept")]))
        yard.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await yard.host.ask(Enqueue([message("lost")]))
        assert states(yard) == [UNAVAILABLE] * 3
        yard.store.outage = None
        await yard.recovered()
        assert [len(lock(yard, number)) for number in range(3)] == [1, 1, 1]


async def test_a_store_that_is_away_is_probed_once_for_all_its_partitions(monkeypatch):
    async with open_yard(partitions=5) as yard:
        yard.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await yard.host.ask(Enqueue([message()]))
        claims = []
        real = yard.store.claim
        monkeypatch.setattr(yard.store, "claim", lambda keys: (claims.append(len(keys)), real(keys))[1])
        yard.attached.recover()
        yard.attached.recover()
        while not claims:
            await asyncio.sleep(0.001)
        yard.store.outage = None
        while yard.attached.recovery.state is RecoveryState.PROBING:
            await asyncio.sleep(0.001)
        await yard.recovered()
        assert claims == [5, 5]


async def test_an_outage_is_told_once_and_so_is_its_end(caplog):
    caplog.set_level(logging.INFO)
    async with open_yard(partitions=3) as yard:
        yard.store.outage = AWAY
        for host in yard.queue.hosts:
            host.submit(Enqueue([message()]), yard.replies.append)
        await yard.settled()
        for _ in range(3):
            yard.attached.recover()
            while yard.attached.recovery.state is RecoveryState.PROBING:
                await asyncio.sleep(0.001)
        yard.store.outage = None
        await yard.recovered()

    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "away" in text]) <= 2, told
    assert len([text for text in told if "is back after" in text]) == 1


async def test_a_moved_partition_does_not_make_its_store_unavailable():
    async with open_yard(partitions=2) as yard:
        yard.store.fails_once = PartitionMoved("claimed")
        yard.host.submit(Enqueue([message()]), yard.replies.append)
        await yard.settled()
        assert states(yard) == [UNAVAILABLE, Availability.AVAILABLE]
        assert yard.attached.state is StoreState.AVAILABLE


async def test_a_damaged_partition_leaves_the_others_of_its_store_alone(monkeypatch):
    async with open_yard(partitions=2) as yard:
        damaged = yard.queue.hosts[0].key
        real = yard.store.load

        def load(key):
            if key == damaged:
                raise StoreCorrupted("garbled")
            return real(key)

        monkeypatch.setattr(yard.store, "load", load)
        yard.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await yard.host.ask(Enqueue([message()]))
        yard.store.outage = None
        yard.attached.recover()
        while yard.queue.hosts[1].availability is not Availability.AVAILABLE:
            await asyncio.sleep(0.001)
        assert isinstance(await yard.queue.hosts[1].ask(Enqueue([message()])), Enqueued)
        assert yard.attached.state is StoreState.DAMAGED
        assert yard.host.availability is not Availability.AVAILABLE


async def test_a_settlement_in_a_stalled_store_is_answered_and_the_message_comes_again():
    async with open_yard() as yard:
        await yard.host.ask(Enqueue([message("one")]))
        (held,) = lock(yard)
        yard.store.shut()
        yard.store.fails_once = AWAY
        yard.host.submit(Complete([held.lock_token]), yard.replies.append)
        await yard.at_the_gate()
        yard.pass_time(3)
        assert [type(reply) for reply in yard.replies] == [StoreUnavailable]
        yard.store.open_gate()
        await yard.recovered()
        assert [each.sequence_number for each in lock(yard)] == [1]


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


async def test_a_stalled_read_is_answered_and_its_store_is_away(monkeypatch):  # P-27
    async with open_yard() as yard:
        yard.cache._limit = 0
        await yard.host.ask(Enqueue([message("cold")]))
        hung = Hung(yard.store.read)
        monkeypatch.setattr(yard.store, "read", hung)
        answers = []
        yard.host.read(lock(yard), answers.append)
        await hung.reached()
        yard.pass_time(3)
        assert [type(answer) for answer in answers] == [StoreUnavailable]
        assert yard.attached.state is StoreState.AWAY
        yard.attached.recover()
        assert yard.attached.recovery.state is not RecoveryState.PROBING, (
            "while a read hangs nothing can be loaded"
        )
        hung.let_go()
        await yard.recovered()
        assert await yard.host.payloads(lock(yard)) == [b"cold"]


async def test_a_load_that_takes_long_holds_up_nobody_and_is_used_when_it_comes(monkeypatch):  # P-16
    async with open_yard() as yard:
        await yard.host.ask(Enqueue([message("kept")]))
        hung = Hung(yard.store.load)
        monkeypatch.setattr(yard.store, "load", hung)
        yard.store.fails_once = AWAY
        yard.host.submit(Enqueue([message()]), lambda _: None)
        await yard.settled()
        yard.attached.recover()
        await hung.reached()
        yard.host.submit(Peek(SequenceNumber(0), 1), yard.replies.append)
        assert yard.host.availability is Availability.LOADING
        # The writer's thread may still be on its way out of the probe; only the load is to take long.
        while yard.attached.writer.step is not None:
            await asyncio.sleep(0.001)
        yard.pass_time(11)
        assert [type(reply) for reply in yard.replies] == [StoreUnavailable]
        assert yard.host.availability is UNAVAILABLE
        assert not yard.queue.loading, "a drain is not held up"
        assert yard.attached.state is StoreState.AVAILABLE, "a long load is no failure"
        hung.let_go()
        while yard.host.availability is UNAVAILABLE:
            await asyncio.sleep(0.001)
        assert len(lock(yard)) == 1


async def test_an_errand_in_a_stalled_store_is_refused_in_bounded_time_and_never_done_later():  # P-32
    async with open_yard() as yard:
        done = []
        await stall(yard)
        errand = asyncio.ensure_future(yard.attached.run(lambda: done.append("late")))
        await asyncio.sleep(0)
        yard.pass_time(3)
        with pytest.raises(StoreUnavailable):
            await errand
        with pytest.raises(StoreUnavailable, match="'gated' is away"):
            await yard.attached.run(lambda: done.append("while away"))
        yard.store.open_gate()
        await yard.recovered()
        assert done == []


async def test_an_idle_store_that_hangs_is_noticed(monkeypatch):  # P-33
    async with open_yard() as yard:
        hung = Hung(yard.store.tidy)
        monkeypatch.setattr(yard.store, "tidy", hung)
        await hung.reached()
        yard.pass_time(3)
        assert yard.attached.state is StoreState.AWAY
        hung.let_go()
        await yard.recovered()


async def test_a_store_that_is_away_is_not_tidied(monkeypatch):
    """It may never have been open; and its errors would be told every second."""

    async with open_yard() as yard:
        monkeypatch.setattr(writer, "TIDY_AFTER_S", 0.001)
        tidied = []
        monkeypatch.setattr(yard.store, "tidy", lambda: tidied.append(yard.attached.state))
        yard.store.outage = AWAY
        with pytest.raises(StoreUnavailable):
            await yard.host.ask(Enqueue([message()]))
        tidied.clear()
        yard.store.outage = None
        await yard.recovered()
        while not tidied:
            await asyncio.sleep(0.001)
        assert StoreState.AWAY not in tidied


async def test_timers_of_others_run_on_beside_a_stalled_store():
    async with open_yard(partitions=2, stores=2) as yard:
        await stall(yard)
        await yard.queue.hosts[1].ask(Enqueue([message("one")]))
        yard.pass_time(3)
        assert lock(yard, 1)
        assert await yard.queue.hosts[1].ask(Tick()) is not None


async def test_a_store_that_fails_as_soon_as_it_is_back_is_tried_ever_more_seldom():
    async with open_yard() as yard:
        delays = []
        for _ in range(7):
            yard.store.fails_once = AWAY
            yard.host.submit(Enqueue([message()]), yard.replies.append)
            await yard.settled()
            delays.append(yard.attached.recovery.delay_s)
            await yard.recovered()
        assert delays == [1, 2, 4, 8, 16, 30, 30]


async def test_stopping_does_not_wait_for_a_store_that_is_stuck():
    async with open_yard() as yard:
        await stall(yard)
        yard.pass_time(3)
        yard.attached.stop()
        assert yard.attached.writer._thread.is_alive()


# -- damage -------------------------------------------------------------------------


async def test_a_store_that_meets_damage_says_so_until_none_is_met_any_more(caplog):  # P-33
    with caplog.at_level(logging.ERROR):
        async with open_yard(partitions=2) as yard:
            yard.store.fails_once = StoreCorrupted("gated.db is damaged: page 7")
            with pytest.raises(StoreUnavailable):
                await yard.host.ask(Enqueue([message()]))
            assert yard.attached.state is StoreState.DAMAGED
            assert yard.attached.reason == "gated.db is damaged: page 7"
            assert yard.attached.damages == 1
            assert yard.queue.limited
            # Only what met the damage is lost: the other partitions go on.
            assert states(yard) == [UNAVAILABLE, Availability.AVAILABLE]
            await yard.queue.hosts[1].ask(Enqueue([message()]))
            yard.pass_time(60)
            assert yard.attached.state is StoreState.DAMAGED, "one partition is still not loaded"
            await yard.attached.recovered()
            await yard.loaded()
            yard.pass_time(1)
            assert yard.attached.state is StoreState.AVAILABLE
            assert yard.attached.reason == ""
            assert not yard.queue.limited

    assert "store gated is damaged" in caplog.text


async def test_damage_that_is_met_in_an_idle_moment_or_a_read_is_told(monkeypatch):  # P-33
    async with open_yard() as yard:

        def damaged(*_: object) -> bool:
            raise StoreCorrupted("gated.db is damaged: page 7")

        monkeypatch.setattr(yard.store, "read", damaged)
        await yard.read_back()
        assert yard.attached.state is StoreState.DAMAGED
        yard.pass_time(20)
        assert yard.attached.state is StoreState.AVAILABLE
        monkeypatch.setattr(writer, "TIDY_AFTER_S", 0.001)
        monkeypatch.setattr(yard.store, "tidy", damaged)
        yard.attached.writer.when_written(lambda: None)
        while yard.attached.state is not StoreState.DAMAGED:
            await asyncio.sleep(0.001)
        yard.attached.fail(StoreUnavailable("gone altogether"))
        assert yard.attached.state is StoreState.AWAY
