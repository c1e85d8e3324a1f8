"""A session's link: order when payloads are read from the store, and what a lost partition means."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import RELEASED, Source
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Complete, Enqueue
from bendybus.domain.messages import SubQueue
from bendybus.domain.session_commands import SessionLock
from bendybus.envelope import admit
from bendybus.errors import BrokerError, OperationTimeout, SessionLockLost
from bendybus.gateway import session_receiver
from bendybus.gateway.holdings import Holdings
from bendybus.gateway.joined_outcomes import JoinedOutcomes
from bendybus.gateway.ready_sessions import ReadySessions
from bendybus.gateway.session_filters import SESSION_FILTER, answer_source, wanted_session
from bendybus.gateway.session_receiver import SessionReceiver
from bendybus.names import Instant, LockToken, SessionId, SessionKey
from fix_broker import GatedQueue, GatedStore, gated_queue
from fix_holdings import holdings_in

MAIN = SubQueue.MAIN
S = SessionId("s")


@dataclass
class FakeLink:
    """As much of a `SendingLink` as a session's receiver uses."""

    source: Source
    properties: dict[str, object] = field(default_factory=dict)
    name: str = "link"
    credit: int = 0
    drain: bool = False
    crowded: bool = False
    snd_settle_mode: int = 0
    accepted: bool = False
    sent: list[str] = field(default_factory=list)
    tags: list[LockToken] = field(default_factory=list)

    def accept(self, *, source: Source, properties: dict[str, object]) -> None:
        self.accepted = True

    def send(self, outgoing: Sequence[tuple[bytes, bytes, bytes]], *, settled: bool, overrun: bool) -> int:
        if not overrun:
            outgoing = outgoing[: self.credit]
        self.sent += [decode_message(head + body).properties.message_id for _, head, body in outgoing]
        self.tags += [LockToken(tag) for tag, _, _ in outgoing]
        self.credit -= len(outgoing)
        return len(outgoing)


@dataclass
class FakeLinks:
    ended: asyncio.Future[BrokerError] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def end(self, link: object, reason: BrokerError) -> None:
        self.ended.set_result(reason)


@dataclass
class FakeConnection:
    links: FakeLinks = field(default_factory=FakeLinks)
    writable: bool = True
    holdings: Holdings = field(default_factory=holdings_in)
    session_locks: dict[tuple[Queue, SessionKey], SessionLock] = field(default_factory=dict)
    session_links: dict[tuple[Queue, str], SessionId] = field(default_factory=dict)
    observer: None = None
    joined_outcomes: JoinedOutcomes = field(default_factory=JoinedOutcomes)
    ready_sessions: ReadySessions = field(init=False)

    def __post_init__(self) -> None:
        self.ready_sessions = ReadySessions(self)

    def flush_soon(self) -> None:
        self.ready_sessions.deliver()

    def sent(self, size: int) -> None: ...


def receiver_on(
    gated: GatedQueue, session_id: str | None = "s", **options: object
) -> tuple[SessionReceiver, FakeLink, FakeConnection]:
    link = FakeLink(Source(filter={SESSION_FILTER: session_id}), **options)
    connection = FakeConnection()
    wanted = wanted_session(link.source)
    assert wanted is not None
    receiver = SessionReceiver(connection, link, gated.queue, wanted)
    receiver.accept()
    return receiver, link, connection


def use_credit(receiver: SessionReceiver, connection: FakeConnection) -> None:
    receiver.flow()
    connection.flush_soon()


async def put(gated: GatedQueue, *ids: str) -> None:
    messages = []
    for each in ids:
        properties = Properties(message_id=each, group_id="s")
        payload = encode_message(properties=properties, data=b"x")
        messages.append(admit(payload, Instant(0), gated.queue.description)[0])
    await gated.queue.host_for("s").ask(Enqueue(messages))
    await gated.settled()


def hold_reads(store: GatedStore) -> threading.Event:
    """From now on payloads come out of the store only when the event is set."""
    gate, read = threading.Event(), store.read

    def held(places: Sequence[int]) -> list[bytes | None]:
        assert gate.wait(10)
        return read(places)

    store.read = held
    return gate


def test_the_answer_names_the_session_and_repeats_the_rest_of_the_source():
    asked = Source(
        "q", 1, "never", 7, False, {"a": 1}, "move", {SESSION_FILTER: None}, RELEASED, ["o"], ["queue"]
    )
    lock = SessionLock(S, LockToken(bytes(16)), SessionKey("s"), None)
    assert answer_source(asked, lock) == replace(asked, filter={SESSION_FILTER: "s"})


async def test_a_receiver_that_finds_no_session_is_refused_after_its_timeout():
    async with gated_queue(requires_session=True) as gated:
        properties: dict[str, object] = {"com.microsoft:timeout": 20}
        receiver, link, connection = receiver_on(gated, None, properties=properties)
        assert isinstance(await asyncio.wait_for(connection.links.ended, 10), OperationTimeout)
        assert not link.accepted
        receiver.close()
        await put(gated, "1")
        _, link, connection = receiver_on(gated, None, properties=properties)
        assert link.accepted
        await asyncio.sleep(0.05)
        assert not connection.links.ended.done()


@pytest.mark.row("P-13")
async def test_what_was_read_for_credit_that_is_gone_goes_back_in_order():
    async with gated_queue(requires_session=True) as gated:
        gated.cache.limit_bytes = 0
        await put(gated, "1", "2", "3")
        gate = hold_reads(gated.store)
        receiver, link, connection = receiver_on(gated)
        link.credit = 3
        use_credit(receiver, connection)
        link.credit = 1
        gate.set()
        await gated.read_back()
        assert link.sent == ["1"]
        link.credit = 2
        use_credit(receiver, connection)
        await gated.read_back()
        assert link.sent == ["1", "2", "3"]
        assert [message.delivery_count for message in gated.host.partition.confirmed()] == [0, 0, 0]


@pytest.mark.row("P-28")
async def test_a_link_that_closes_while_its_payloads_are_read_gives_all_back():
    async with gated_queue(requires_session=True) as gated:
        gated.cache.limit_bytes = 0
        await put(gated, "1", "2")
        gate = hold_reads(gated.store)
        receiver, link, connection = receiver_on(gated)
        link.credit = 2
        use_credit(receiver, connection)
        receiver.close()
        gate.set()
        await gated.read_back()
        assert link.sent == []
        assert connection.session_locks == {} == connection.session_links
        assert gated.host.available(MAIN) == 1
        assert gated.host.partition.counts().locked == 0


async def test_holders_are_told_when_their_partition_is_read_anew():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "1")
        receiver, link, connection = receiver_on(gated)
        link.credit = 1
        use_credit(receiver, connection)
        gated.store.fails_once = OSError("no space left")
        gated.host.submit(Complete(link.tags), gated.replies.append)
        reason = await asyncio.wait_for(connection.links.ended, 10)
        assert isinstance(reason, SessionLockLost)
        assert "'s'" in str(reason)


async def test_who_deletes_is_told_late_that_its_session_is_lost(monkeypatch: pytest.MonkeyPatch):
    """Python's live tests wait for messages as long as their lock lasts, and begin to wait after it began."""
    monkeypatch.setattr(session_receiver, "LOST_AFTER_S", 0.05)
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "1")
        receiver, link, connection = receiver_on(gated, snd_settle_mode=1)
        receiver.lost()
        assert not connection.links.ended.done()
        assert isinstance(await asyncio.wait_for(connection.links.ended, 10), SessionLockLost)
        receiver_that_locks, _, connection = receiver_on(gated, "other")
        receiver_that_locks.lost()
        assert connection.links.ended.done()
        assert link.accepted


async def test_a_named_session_waits_for_a_partition_that_is_being_read():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "1")
        gated.host.load()
        _, link, _ = receiver_on(gated)
        link.credit = 1
        assert not link.accepted
        await gated.loaded()
        assert link.accepted
        await gated.read_back()
        assert link.sent == ["1"]


async def test_who_waits_for_the_next_session_is_served_first_come_first_served():
    async with gated_queue(partitions=3, requires_session=True) as gated:
        _, first, _ = receiver_on(gated, None)
        _, second, _ = receiver_on(gated, None)
        await put(gated, "1")
        assert (first.accepted, second.accepted) == (True, False)
