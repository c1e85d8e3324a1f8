"""Fan-in over partitions: who is asked, what is kept, what goes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted
from bendybus.broker import writer
from bendybus.domain.commands import Enqueue, Peek
from bendybus.domain.messages import Message, SubQueue
from bendybus.engine.events import OutcomesReceived
from bendybus.envelope import admit
from bendybus.errors import InvalidOperation, MessageLockLost, StoreCorrupted, StoreUnavailable
from bendybus.gateway.holdings import Holdings
from bendybus.gateway.joined_outcomes import JoinedOutcomes
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.settlement import refused
from bendybus.names import Instant, SequenceNumber
from fix_async import until
from fix_broker import GatedQueue, GatedStore, gated_queue
from fix_holdings import holdings_in

MAIN = SubQueue.MAIN


@dataclass
class FakeLink:
    """As much of a `SendingLink` as a receiver uses."""

    credit: int = 0
    drain: bool = False
    crowded: bool = False
    snd_settle_mode: int = 0
    sent: list[str] = field(default_factory=list)
    tags: list[bytes] = field(default_factory=list)
    drains_answered: int = 0

    def send(self, outgoing: Sequence[tuple[bytes, bytes, bytes]], *, settled: bool, overrun: bool) -> int:
        self.sent += [decode_message(head + body).properties.message_id for _, head, body in outgoing]
        self.tags += [tag for tag, _, _ in outgoing]
        self.credit -= len(outgoing)
        return len(outgoing)

    def drained(self) -> None:
        self.drains_answered += 1
        self.credit, self.drain = 0, False


@dataclass
class FakeConnection:
    writable: bool = True
    holdings: Holdings = field(default_factory=holdings_in)
    observer: None = None
    joined_outcomes: JoinedOutcomes = field(default_factory=JoinedOutcomes)

    def flush_soon(self) -> None: ...

    def sent(self, size: int) -> None: ...


def receiver_on(gated: GatedQueue, **link: int) -> tuple[Receiver, FakeLink]:
    fake = FakeLink(**link)
    return Receiver(FakeConnection(), fake, gated.queue, MAIN), fake


async def put(gated: GatedQueue, partition: int, *ids: str) -> None:
    messages = [
        admit(
            encode_message(properties=Properties(message_id=each), data=b"x"),
            Instant(0),
            gated.queue.description,
        )[0]
        for each in ids
    ]
    await gated.queue.hosts[partition].ask(Enqueue(messages))
    await gated.settled()


def waiting(gated: GatedQueue) -> int:
    return sum(host.available(MAIN) for host in gated.queue.hosts)


def hold_reads(store: GatedStore) -> threading.Event:
    """From now on payloads come out of the store only when the event is set."""
    gate, read = threading.Event(), store.read

    def held(places: Sequence[int]) -> list[bytes | None]:
        assert gate.wait(10)
        return read(places)

    store.read = held
    return gate


async def slow_and_quick(gated: GatedQueue) -> threading.Event:
    """A message in a store that answers when the event is set, and one in memory."""
    gated.cache.limit_bytes = 0
    await put(gated, 0, "slow")
    gated.cache.limit_bytes = 1 << 20
    await put(gated, 1, "quick")
    return hold_reads(gated.store)


@pytest.mark.row("P-25")
async def test_a_receive_asks_all_partitions():
    async with gated_queue(partitions=3) as gated:
        await put(gated, 0, "a")
        await put(gated, 2, "b")
        receiver, link = receiver_on(gated, credit=5)
        receiver.flow()
        assert sorted(link.sent) == ["a", "b"]


async def test_credit_is_never_exceeded():
    async with gated_queue(partitions=3) as gated:
        for partition in range(3):
            await put(gated, partition, *(f"{partition}{number}" for number in range(4)))
        receiver, link = receiver_on(gated, credit=5)
        receiver.flow()
        assert len(link.sent) == 5
        assert waiting(gated) == 7


@pytest.mark.row("P-27")
async def test_a_stalled_store_holds_up_neither_a_drain_nor_what_others_have():
    async with gated_queue(partitions=2, stores=2) as gated:
        gate = await slow_and_quick(gated)
        receiver, link = receiver_on(gated, credit=5, drain=True)
        receiver.flow()
        assert (link.sent, link.drains_answered) == (["quick"], 0)
        await until(lambda: gated.attached.reader.step is not None)
        gated.pass_time(3)
        assert link.drains_answered == 1
        gate.set()
        await gated.recovered()
        link.credit = 5
        receiver.flow()
        await gated.read_back()
        assert link.sent == ["quick", "slow"]


@pytest.mark.row("P-27")
async def test_a_read_behind_a_long_load_holds_up_no_drain_and_is_asked_for_again(monkeypatch):
    async with gated_queue(partitions=2) as gated:
        gated.cache.limit_bytes = 0
        await put(gated, 0, "cold")
        gate, begun, load = threading.Event(), threading.Event(), gated.store.load

        def long(key):
            begun.set()
            assert gate.wait(10)
            return load(key)

        monkeypatch.setattr(gated.store, "load", long)
        gated.queue.hosts[1].fail(StoreCorrupted("garbled"))
        gated.queue.hosts[1].load()
        await asyncio.to_thread(begun.wait, 10)
        gated.queue.hosts[1]._late(gated.queue.hosts[1]._load_count)
        receiver, link = receiver_on(gated, credit=5, drain=True)
        receiver.flow()
        assert link.drains_answered == 0
        gated.pass_time(3)
        assert link.drains_answered == 1
        assert waiting(gated) == 1, "it was given back"
        link.credit = 5
        receiver.flow()
        gate.set()
        await gated.read_back()
        assert link.sent == ["cold"]


def test_a_settlement_in_a_partition_that_is_away_is_told_that_its_lock_is_lost():
    told = refused(StoreUnavailable("store-1 is away"))
    assert isinstance(told, MessageLockLost)
    assert "store-1 is away" in str(told)
    assert isinstance(refused(InvalidOperation("no")), InvalidOperation)


@pytest.mark.row("P-26")
async def test_one_partition_gives_its_oldest_first():
    async with gated_queue() as gated:
        await put(gated, 0, *"abcdef")
        receiver, link = receiver_on(gated, credit=4)
        receiver.flow()
        link.credit = 4
        receiver.flow()
        assert link.sent == list("abcdef")


async def test_who_waits_is_woken_by_a_message():
    async with gated_queue(partitions=2) as gated:
        receiver, link = receiver_on(gated, credit=1)
        receiver.flow()
        await put(gated, 1, "a", "b")
        assert link.sent == ["a"]
        assert waiting(gated) == 1


async def test_waiting_receivers_take_turns():
    async with gated_queue() as gated:
        both = [receiver_on(gated, credit=10) for _ in range(2)]
        for receiver, _ in both:
            receiver.flow()
        await put(gated, 0, "a")
        await put(gated, 0, "b")
        assert [link.sent for _, link in both] == [["a"], ["b"]]


@pytest.mark.row("P-27")
async def test_a_slow_store_delays_only_its_own_messages():
    async with gated_queue(partitions=2) as gated:
        gate = await slow_and_quick(gated)
        receiver, link = receiver_on(gated, credit=2)
        receiver.flow()
        assert link.sent == ["quick"]
        gate.set()
        await gated.read_back()
        assert link.sent == ["quick", "slow"]


@pytest.mark.row("P-27")
async def test_receive_and_delete_takes_what_is_ready_and_removes_no_more_than_its_credit():
    async with gated_queue(partitions=2, stores=2) as gated:
        gate = await slow_and_quick(gated)
        receiver, link = receiver_on(gated, credit=1, snd_settle_mode=1)
        receiver.flow()
        await gated.others[0].writer.drain()
        assert link.sent == ["quick"]
        gate.set()
        await gated.read_back()
        await gated.settled()
        assert (link.sent, link.credit) == (["quick"], 0)
        assert len(list(gated.host.partition.confirmed())) == 1
        link.credit = 1
        receiver.flow()
        await gated.settled()
        assert link.sent == ["quick", "slow"]
        assert list(gated.host.partition.confirmed()) == []


@pytest.mark.row("P-27")
async def test_receive_and_delete_removes_where_the_store_answers(monkeypatch):
    async with gated_queue(partitions=2, stores=2) as gated:
        await put(gated, 0, "slow")
        await put(gated, 1, "quick")
        monkeypatch.setattr(writer, "PROMPT_S", 0.0)
        gated.store.shut()
        receiver, link = receiver_on(gated, credit=1, snd_settle_mode=1)
        receiver.flow()
        await until(lambda: bool(link.sent))
        assert link.sent == ["quick"]
        gated.store.open_gate()
        await gated.settled()
        assert (link.sent, len(list(gated.host.partition.confirmed()))) == (["quick"], 1)
        receiver.close()
        assert gated.host.available(MAIN) == 1


@pytest.mark.row("P-25")
async def test_what_was_overtaken_is_kept_for_the_next_credit():
    async with gated_queue(partitions=2) as gated:
        gate = await slow_and_quick(gated)
        receiver, link = receiver_on(gated, credit=1)
        receiver.flow()
        gate.set()
        await gated.read_back()
        assert link.sent == ["quick"]
        other, other_link = receiver_on(gated, credit=5)
        other.flow()
        assert other_link.sent == []
        link.credit = 1
        receiver.flow()
        assert link.sent == ["quick", "slow"]


@pytest.mark.row("P-28")
async def test_what_was_kept_goes_back_uncounted_when_the_link_goes():
    async with gated_queue(partitions=2) as gated:
        gate = await slow_and_quick(gated)
        receiver, _ = receiver_on(gated, credit=1)
        receiver.flow()
        gate.set()
        await gated.read_back()
        receiver.close()
        (message,) = gated.queue.hosts[0].lock(1, 1 << 20, MAIN)
        assert message.delivery_count == 0


async def receiver_that_keeps_one(gated: GatedQueue) -> tuple[Receiver, FakeLink, Message]:
    """Its payload came from the store when the credit was gone."""
    gated.cache.limit_bytes = 0
    await put(gated, 0, "a")
    receiver, link = receiver_on(gated, credit=1)
    gate = hold_reads(gated.store)
    receiver.flow()
    link.credit = 0
    gate.set()
    await gated.read_back()
    (kept,) = gated.host.partition.confirmed()
    return receiver, link, kept


async def test_what_is_kept_too_long_goes_back_before_its_lock_runs_out():
    async with gated_queue() as gated:
        receiver, _, kept = await receiver_that_keeps_one(gated)
        receiver.tick(Instant(kept.locked_until - 40_000))
        assert waiting(gated) == 0
        receiver.tick(Instant(kept.locked_until - 20_000))
        assert waiting(gated) == 1


async def test_what_is_kept_is_not_sent_once_its_lock_is_lost():
    async with gated_queue() as gated:
        receiver, link, kept = await receiver_that_keeps_one(gated)
        gated.host.release([kept.lock_token])
        (taken,) = gated.host.lock(1, 1 << 20, MAIN)
        assert taken is kept
        link.credit = 1
        receiver.flow()
        assert link.sent == []


@pytest.mark.row("P-28")
async def test_what_is_kept_is_not_sent_under_a_lock_from_before_the_partition_was_loaded_again():
    async with gated_queue() as gated:
        receiver, link, kept = await receiver_that_keeps_one(gated)
        token = kept.lock_token
        gated.host.withdraw()
        assert not gated.host.holds(token, gated.host.now())
        gated.host.load()
        await gated.host.loaded()
        assert not gated.host.holds(token, gated.host.now())
        # Only the partition says what is locked. What left memory is not changed any more.
        assert kept.lock_token == token
        link.credit = 1
        receiver.flow()
        await gated.read_back()
        (sent,) = link.sent
        assert sent[0] != token


async def test_a_receiver_that_cannot_be_written_to_takes_nothing():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        link, connection = FakeLink(credit=1), FakeConnection()
        connection.writable = False
        Receiver(connection, link, gated.queue, MAIN).flow()
        assert link.sent == []
        assert waiting(gated) == 1


async def test_a_crowded_link_goes_on_when_something_is_settled():
    async with gated_queue() as gated:
        await put(gated, 0, "a", "b")
        receiver, link = receiver_on(gated, credit=1)
        link.crowded = True
        receiver.flow()
        assert link.sent == ["a"]
        link.credit, link.crowded = 1, False
        receiver.outcomes(OutcomesReceived(link, [], Accepted(), settled=True))
        assert link.sent == ["a", "b"]


async def test_a_drain_is_answered_after_everything_available():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        receiver, link = receiver_on(gated, credit=5)
        link.drain = True
        receiver.flow()
        assert link.sent == ["a"]
        assert link.drains_answered == 1
        await put(gated, 0, "b")
        assert link.sent == ["a"]


async def test_a_drain_waits_for_partitions_that_are_loading():
    """A client that comes right after a restart must not be told that there is nothing."""

    async with gated_queue(partitions=2) as gated:
        await put(gated, 1, "a")
        gated.queue.hosts[1].load()
        receiver, link = receiver_on(gated, credit=5)
        link.drain = True
        receiver.flow()
        assert link.drains_answered == 0
        await gated.queue.hosts[1].ask(Peek(SequenceNumber(0), 0))
        await gated.read_back()
        assert link.sent == ["a"]
        assert link.drains_answered == 1


async def test_a_drain_without_credit_waits_for_no_partition():
    """Whoever has no credit left is not woken when the partition is known: the drain was never answered."""

    async with gated_queue(partitions=2) as gated:
        gated.queue.hosts[1].load()
        receiver, link = receiver_on(gated, credit=1)
        link.drain = True
        receiver.flow()
        assert link.drains_answered == 0
        await put(gated, 0, "a")
        assert link.sent == ["a"]
        assert link.drains_answered == 1
        await gated.queue.hosts[1].loaded()


async def test_receive_and_delete_sends_only_what_is_durably_gone():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        receiver, link = receiver_on(gated, credit=1, snd_settle_mode=1)
        gated.store.shut()
        receiver.flow()
        await gated.at_the_gate()
        assert link.sent == []
        gated.store.open_gate()
        await gated.settled()
        assert link.sent == ["a"]
        # There is no lock. The Python SDK takes any other tag for a token.
        assert link.tags == [b""]
        assert gated.queue.hosts[0].partition.size_bytes == 0
