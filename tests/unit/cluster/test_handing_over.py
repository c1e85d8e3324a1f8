"""A store passes to another broker by plan: locks, sessions and order stay, and no command fails (N-05)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.transactions import commit
from bendybus.cluster import handing_over
from bendybus.cluster.remote import RemotePartition
from bendybus.domain.commands import (
    Command,
    Complete,
    Enqueue,
    Enqueued,
    Given,
    Peek,
    Post,
    Reassign,
    Renew,
    Renewed,
    Settled,
    Undeliverable,
)
from bendybus.domain.entities import QueueDescription
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.outbox import HOPS_EXCEEDED
from bendybus.domain.session_commands import (
    AcceptSession,
    ReleaseSession,
    RenewSession,
    SessionAccepted,
    SessionLock,
    SetSessionState,
)
from bendybus.envelope import admit
from bendybus.errors import (
    ConsumerLeaseHeld,
    PartitionMoved,
    SessionCannotBeLocked,
    SessionLockLost,
    StoreUnavailable,
    Unavailable,
)
from bendybus.names import EntityPath, LockToken, PartitionNumber, SequenceNumber, SessionId
from fix_async import until
from fix_nodes import NodeMember, Nodes, nodes

pytestmark = pytest.mark.row("N-05")

PAGE = 1024 * 1024
MAIN = SubQueue.MAIN
STORE = "s0"
BARE = b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x75\xa0\x01x"


def made(*texts: str, session: str | None = None) -> list[Message]:
    return [
        Message(text.encode(), len(text), session_id=None if session is None else SessionId(session))
        for text in texts
    ]


def orders(member: NodeMember) -> Queue:
    return member.broker.queues.get("orders")


def token_of(message: Message) -> LockToken:
    assert message.lock_token is not None
    return message.lock_token


class Holder:
    """A receiver of a session, with credit for so many messages."""

    def __init__(self, queue: Queue, number: int, lock: SessionLock, credit: int = 100) -> None:
        self.queue = queue
        self.number = number
        self.lock = lock
        self.credit = credit
        self.taken: list[Message] = []
        self.is_lost = False
        self.port.hold_session(lock, self)
        self.wake()

    @property
    def port(self) -> ReceivingPort:
        return self.queue.hosts[self.number]

    def wake(self) -> None:
        while self.credit and (taken := self.port.lock_in_session(self.lock, self.credit, PAGE)):
            self.taken += taken
            self.credit -= len(taken)

    def lost(self) -> None:
        self.is_lost = True

    async def receives(self, *texts: str) -> None:
        """Return once it has received these since the beginning."""
        await until(lambda: len(self.taken) == len(texts))
        assert await self.port.payloads(self.taken) == [text.encode() for text in texts]

    async def settle(self) -> None:
        tokens = [token_of(message) for message in self.taken]
        assert await self.port.ask(Complete(tokens)) == Settled([])


async def held(member: NodeMember, session: str, credit: int = 100) -> Holder:
    queue = orders(member)
    host = queue.host_for(queue.session_key(SessionId(session)))
    accepted = await host.ask(AcceptSession(SessionId(session), b"\0" * 13 + session[-1].encode()))
    assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    return Holder(queue, host.number, accepted.lock, credit)


@asynccontextmanager
async def one_store(names: str = "abc", **properties: object) -> AsyncIterator[Nodes]:
    """Brokers with one store, and a queue in it with one partition for each of two."""
    async with nodes(names, [STORE]) as cluster:
        description = QueueDescription(EntityPath("orders"), enable_partitioning=True, **properties)
        await cluster["a"].broker.queues.create(description)
        await cluster.whole()
        await until(lambda: all(p.link for member in cluster for p in member.cluster.peers.by_name.values()))
        yield cluster


def owner(cluster: Nodes) -> NodeMember:
    (found,) = (member for member in cluster if STORE in member.owns)
    return found


async def move(cluster: Nodes, to: NodeMember) -> None:
    await owner(cluster).ownership.release(STORE, to.name)
    await until(lambda: STORE in to.owns)
    await cluster.whole()


def roles(cluster: Nodes) -> tuple[NodeMember, NodeMember, NodeMember]:
    """The owner, the one that is to be it, and a third broker."""
    old = owner(cluster)
    new, third = (member for member in cluster if member is not old)
    return old, new, third


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_lock_is_valid_at_the_next_owner(role: int) -> None:
    async with one_store() as cluster:
        receiver = roles(cluster)[role]
        queue = orders(receiver)
        await queue.hosts[3].ask(Enqueue(made("one", "two", "three")))
        taken = await take(queue, 3, 2)

        await move(cluster, roles(cluster)[1])

        tokens = [token_of(message) for message in taken]
        renewed = await queue.hosts[3].ask(Renew(tokens))
        assert isinstance(renewed, Renewed) and None not in renewed.locked_until
        assert await queue.hosts[3].ask(Complete(tokens)) == Settled([])
        (left,) = await take(queue, 3, 1)
        assert (await queue.hosts[3].payloads([left]), left.delivery_count) == ([b"three"], 0)


async def take(queue: Queue, number: int, count: int) -> list[Message]:
    """Lock so many messages of this partition."""

    class Taker:
        def __init__(self) -> None:
            self.taken: list[Message] = []

        def wake(self) -> None:
            if len(self.taken) < count:
                self.taken += queue.hosts[number].lock(count - len(self.taken), PAGE, MAIN)
            if len(self.taken) < count:
                queue.wait(self, MAIN, count - len(self.taken))

    taker = Taker()
    taker.wake()
    await until(lambda: len(taker.taken) == count)
    queue.stop_waiting(taker, MAIN)
    return taker.taken


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_receiver_keeps_its_session_and_its_order(role: int) -> None:
    async with one_store(requires_session=True) as cluster:
        old, new, _ = roles(cluster)
        receiver = roles(cluster)[role]
        queue = orders(receiver)
        host = queue.host_for(queue.session_key(SessionId("s")))
        await host.ask(Enqueue(made("1", "2", "3", session="s")))
        holder = await held(receiver, "s", credit=2)
        await until(lambda: len(holder.taken) == 2)
        await host.ask(SetSessionState(holder.lock, b"state"))

        for target in (new, old, new):
            await move(cluster, target)
            with pytest.raises(SessionCannotBeLocked):
                await held(cluster["a"], "s")

        await orders(new).hosts[holder.number].ask(Enqueue(made("4", session="s")))
        holder.credit = 10
        holder.wake()
        await holder.receives("1", "2", "3", "4")
        assert not holder.is_lost
        assert isinstance(await holder.port.ask(RenewSession(holder.lock)), SessionAccepted)
        assert await holder.port.session_state(holder.lock) == b"state"
        await holder.settle()
        await holder.port.ask(ReleaseSession(holder.lock))
        assert not (await held(cluster["b"], "s")).is_lost


async def detached(member: NodeMember, session: str) -> tuple[Queue, int, SessionLock]:
    """A session of a client without a connection."""
    queue = orders(member)
    host = queue.host_for(queue.session_key(SessionId(session)))
    accepted = await host.ask(AcceptSession(SessionId(session), b"\0" * 13 + session[-1].encode()))
    assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    await host.detach_session(accepted.lock)
    return queue, host.number, accepted.lock


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_client_without_a_connection_keeps_its_session_while_it_waits_in_it(role: int) -> None:
    async with one_store(requires_session=True) as cluster:
        old, new, third = roles(cluster)
        queue, number, lock = await detached(third, "s")
        waiting = asyncio.create_task(
            orders(roles(cluster)[role]).hosts[number].receive_in_session(lock, 60.0)
        )

        for target in (new, old, new):
            await move(cluster, target)
            for member in cluster:
                with pytest.raises(SessionCannotBeLocked):
                    await held(member, "s")

        await queue.hosts[number].ask(Enqueue(made("1", "2", session="s")))
        message = await waiting
        assert message is not None
        assert await queue.hosts[number].ask(Complete([token_of(message)])) == Settled([])
        second = await queue.hosts[number].receive_in_session(lock, 0)
        assert second is not None
        assert await queue.hosts[number].payloads([second]) == [b"2"]
        await queue.hosts[number].ask(ReleaseSession(lock))
        assert not (await held(third, "s")).is_lost


async def test_a_client_without_a_connection_learns_that_its_session_is_lost() -> None:
    async with one_store(requires_session=True) as cluster:
        _, new, third = roles(cluster)
        queue, number, lock = await detached(third, "s")
        waiting = asyncio.create_task(queue.hosts[number].receive_in_session(lock, 60.0))
        await asyncio.sleep(0.01)
        # A broker of an older version.
        del new.service._calls["remember"]

        await move(cluster, new)

        with pytest.raises(SessionLockLost):
            await waiting
        await held(third, "s")


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_consumer_keeps_its_lease(role: int) -> None:
    async with one_store() as cluster:
        old, new, _ = roles(cluster)
        queue = orders(roles(cluster)[role])
        await queue.lease(LeaseRequest("one", MAIN, 60_000))

        for target in (new, old, new):
            await move(cluster, target)
            for member in cluster:
                with pytest.raises(ConsumerLeaseHeld, match="'one' has the lease"):
                    await orders(member).lease(LeaseRequest("two", MAIN, 60_000))

        await queue.lease(LeaseRequest("one", MAIN, None))
        await queue.lease(LeaseRequest("one", MAIN, 0))
        for target in (old, new):
            await move(cluster, target)
        await queue.lease(LeaseRequest("two", MAIN, 60_000))


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_lease_that_is_asked_for_during_the_move_is_given_by_the_next_owner(
    role: int, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_store() as cluster:
        old, new, _ = roles(cluster)
        if away:
            orders(old).own[0].fail(StoreUnavailable("a test"))
        queue = orders(roles(cluster)[role])
        send, asked = old.ownership._handing_over.send, []

        async def sent_slowly(*arguments: Any) -> bool:
            kept = await send(*arguments)
            # What would be decided now is not in what was sent.
            asked.append(asyncio.create_task(queue.lease(LeaseRequest("one", MAIN, 60_000))))
            await asyncio.sleep(0.02)
            assert not asked[0].done()
            return kept

        with monkeypatch.context() as patched:
            patched.setattr(old.ownership._handing_over, "send", sent_slowly)
            await move(cluster, new)

        (request,) = asked
        await request
        for member in cluster:
            with pytest.raises(ConsumerLeaseHeld, match="'one' has the lease"):
                await orders(member).lease(LeaseRequest("two", MAIN, 60_000))


async def test_a_move_that_fails_leaves_leases_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_store() as cluster:
        old, new, third = roles(cluster)
        await orders(third).lease(LeaseRequest("one", MAIN, 60_000))

        async def fails(*arguments: Any) -> bool:
            raise StoreUnavailable("a test")

        with monkeypatch.context() as patched, pytest.raises(StoreUnavailable):
            patched.setattr(old.ownership._handing_over, "send", fails)
            await old.ownership.release(STORE, new.name)
        await orders(new).lease(LeaseRequest("one", MAIN, None))


async def test_what_was_sent_ahead_and_not_taken_is_received_in_order_after_the_move() -> None:
    async with one_store(requires_session=True) as cluster:
        _, new, third = roles(cluster)
        queue = orders(third)
        host = queue.host_for(queue.session_key(SessionId("s")))
        await host.ask(Enqueue(made("1", "2", "3", session="s")))
        holder = await held(third, "s", credit=3)
        # It has asked for three, and now takes only one.
        holder.credit = 1
        await until(lambda: len(holder.taken) == 1)

        await move(cluster, new)

        holder.credit = 5
        holder.wake()
        await holder.receives("1", "2", "3")
        assert [message.delivery_count for message in holder.taken] == [0, 0, 0]
        await holder.settle()


async def test_commands_wait_during_the_move_and_stay_in_order() -> None:
    async with one_store() as cluster:
        _, new, _ = roles(cluster)
        sent: dict[str, int] = dict.fromkeys("abc", 0)
        going = True

        async def send(member: NodeMember) -> None:
            """Some at a time, without waiting for the answers of those before."""
            answers: list[asyncio.Future[Any]] = []
            while going:
                text = f"{member.name}{sent[member.name]}"
                answers.append(asyncio.ensure_future(orders(member).hosts[5].ask(Enqueue(made(text)))))
                sent[member.name] += 1
                await asyncio.sleep(0)
                if len(answers) > 50:
                    assert isinstance(await answers[-40], Enqueued)
            for answer in answers:
                assert isinstance(await answer, Enqueued)

        sending = [asyncio.ensure_future(send(member)) for member in cluster]
        for target in (new, cluster["a"], cluster["c"], cluster["b"]):
            await asyncio.sleep(0.02)
            if STORE not in target.owns:
                await move(cluster, target)
        going = False
        await asyncio.gather(*sending)

        given = await orders(cluster["a"]).hosts[5].ask(Peek(SequenceNumber(0), 100_000))
        assert isinstance(given, Given)
        stored = [
            payload.decode()
            for payload in await orders(cluster["a"]).hosts[5].payloads(given.messages)
            if payload
        ]
        for name, count in sent.items():
            assert [text for text in stored if text[0] == name] == [f"{name}{each}" for each in range(count)]


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_session_that_is_asked_for_during_the_move_is_given_by_the_next_owner(role: int) -> None:
    async with one_store(requires_session=True) as cluster:
        old, new, _ = roles(cluster)
        receiver = roles(cluster)[role]
        queue = orders(receiver)
        host = queue.host_for(queue.session_key(SessionId("s")))
        await host.ask(Enqueue(made("1", session="s")))
        for each in old.ownership._exchange.hosts_in(old.ownership._own[STORE].attached):
            each.begin_handing_over()
        accepting = asyncio.ensure_future(held(receiver, "s"))
        # Until it waits at the owner.
        await until(lambda: bool(orders(old).own[host.number]._mailbox))

        await move(cluster, new)

        holder = await accepting
        await holder.receives("1")
        await orders(old).hosts[holder.number].ask(Enqueue(made("2", session="s")))
        await holder.receives("1", "2")
        await holder.settle()


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_a_transaction_that_is_committed_during_the_move_is_committed_by_the_next_owner(
    role: int,
) -> None:
    async with one_store() as cluster:
        old, new, _ = roles(cluster)
        queue = orders(roles(cluster)[role])
        await queue.hosts[2].ask(Enqueue(made("done")))
        (message,) = await take(queue, 2, 1)
        work = [(queue.hosts[2], Complete([token_of(message)])), (queue.hosts[2], Enqueue(made("next")))]
        for each in old.ownership._exchange.hosts_in(old.ownership._own[STORE].attached):
            each.begin_handing_over()
        committing = asyncio.ensure_future(commit(work))
        await until(lambda: bool(orders(old).own[queue.hosts[2].number]._mailbox))

        await move(cluster, new)

        await committing
        (left,) = await take(queue, 2, 1)
        assert await queue.hosts[2].payloads([left]) == [b"next"]


async def test_a_port_that_somebody_has_kept_passes_everything_on() -> None:
    async with one_store() as cluster:
        _, new, third = roles(cluster)
        kept = {member.name: orders(member).hosts[1] for member in cluster}
        await kept["a"].ask(Enqueue(made("1", "2", "3")))
        taken = await take(orders(third), 1, 3)
        await move(cluster, new)
        for port, message in zip(kept.values(), taken, strict=True):
            token = token_of(message)
            assert port.held_among([token], port.now()) == {token}
            assert port.holds(token, port.now())
            found = await port.find_locked(token)
            assert found is not None and found.sequence_number == message.sequence_number
            cold = message.unlocked()
            cold.payload = None
            assert await port.payloads([cold]) == [message.payload]
            assert await port.ask(Complete([token])) == Settled([])


@pytest.mark.parametrize(
    "command",
    [
        Peek(SequenceNumber(0), 10, SubQueue.OUTBOX),
        Post(10, EntityPath("landing")),
        Reassign([SequenceNumber(1)], PartitionNumber(0)),
        Undeliverable([SequenceNumber(1)], HOPS_EXCEEDED),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_only_the_owner_works_with_the_outbox(command: Command) -> None:
    async with one_store() as cluster:
        old, new, _ = roles(cluster)
        former = orders(old).hosts[0]
        assert isinstance(former, PartitionHost)
        former.begin_handing_over()
        waiting = asyncio.ensure_future(former.ask(command))
        # Also when the same broker has the partition again: it has another forwarder for it then.
        for target in (new, old):
            await move(cluster, target)
            with pytest.raises(PartitionMoved):
                await former.ask(command)
        with pytest.raises(PartitionMoved):
            await waiting


async def test_a_former_owner_forwards_nothing_that_the_next_one_posts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Found by seed 910709 of three brokers: it read the outbox of the next owner, and sent messages before
    # their posting was durable. If that failed, their numbers were given to other messages.
    async with one_store() as cluster:
        for name, to in ("landing", None), ("source", EntityPath("landing")):
            await cluster["a"].broker.queues.create(QueueDescription(EntityPath(name), forward_to=to))
        await cluster.whole()
        old, new, _ = roles(cluster)
        source, after = (member.broker.queues.get("source") for member in (old, new))
        forwarder = old.broker.entities.forwarder(source)
        answered, sent = asyncio.Event(), []

        async def send(_host: object, _target: object, load: Any, _away: object) -> None:
            sent.extend(load.numbers)
            await answered.wait()

        monkeypatch.setattr(forwarder, "_send", send)
        monkeypatch.setattr(new.broker.entities.forwarder(after), "wake", lambda: None)
        message, _ = admit(BARE, source.now(), source.description)
        await source.hosts[0].ask(Enqueue([message]))
        await until(lambda: sent)
        (moving,) = forwarder._moving.values()

        await move(cluster, new)
        message, _ = admit(BARE, after.now(), after.description)
        await after.hosts[0].ask(Enqueue([message]))
        posted = await after.hosts[0].ask(Post(10, EntityPath("landing")))
        assert isinstance(posted, Given) and len(posted.messages) == 1
        answered.set()
        await moving

        assert len(sent) == 1


@pytest.mark.parametrize("role", [0, 1, 2])
async def test_without_what_the_last_owner_remembers_locks_and_sessions_end(role: int) -> None:
    async with one_store(requires_session=True) as cluster:
        _, new, _ = roles(cluster)
        receiver = roles(cluster)[role]
        queue = orders(receiver)
        host = queue.host_for(queue.session_key(SessionId("s")))
        await host.ask(Enqueue(made("1", session="s")))
        holder = await held(receiver, "s")
        await holder.receives("1")
        # A broker of an older version.
        del new.service._calls["remember"]

        await move(cluster, new)

        await until(lambda: holder.is_lost)
        again = await held(receiver, "s")
        await again.receives("1")
        await again.settle()


async def test_a_session_ends_if_another_broker_takes_the_store() -> None:
    async with one_store(requires_session=True) as cluster:
        old, new, third = roles(cluster)
        queue = orders(third)
        host = queue.host_for(queue.session_key(SessionId("s")))
        await host.ask(Enqueue(made("1", session="s")))
        holder = await held(third, "s")
        # It remembers everything, and then it does not take the store.
        new.ownership._take_soon = lambda name: None
        new.ownership._handing_over._take = lambda name: None

        await old.ownership.release(STORE, new.name)
        await third.ownership.settle({STORE: third.name}, [])
        await cluster.whole()

        assert STORE in third.owns
        await until(lambda: holder.is_lost)
        assert (await held(third, "s")).taken


async def test_a_session_whose_receiver_left_during_the_move_is_free() -> None:
    async with one_store(requires_session=True) as cluster:
        old, new, third = roles(cluster)
        queue = orders(third)
        host = queue.host_for(queue.session_key(SessionId("s")))
        await host.ask(Enqueue(made("1", session="s")))
        holder = await held(third, "s")
        await old.ownership.release(STORE)
        assert isinstance(holder.port, RemotePartition) and holder.port._peer.is_nobody
        holder.port.let_go_session(holder.lock)
        releasing = asyncio.ensure_future(holder.port.ask(ReleaseSession(holder.lock)))
        await new.ownership.settle({STORE: new.name}, [])
        await cluster.whole()
        await releasing
        assert not (await held(cluster["a"], "s")).is_lost


async def test_a_broker_that_does_not_answer_does_not_stop_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "PATIENCE_S", 0.05)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async with one_store() as cluster:
        _, new, third = roles(cluster)
        third.service._calls["hear"] = never
        queue = orders(third)
        await queue.hosts[0].ask(Enqueue(made("1")))
        await move(cluster, new)
        (message,) = await take(queue, 0, 1)
        assert await queue.hosts[0].payloads([message]) == [b"1"]


async def test_the_log_says_that_the_next_owner_has_left(caplog: pytest.LogCaptureFixture) -> None:
    async with one_store() as cluster:
        old, new, _ = roles(cluster)
        old.cluster.peers.remove(new.name, "it has left")
        await old.ownership.release(STORE, new.name)

    left = f"There is no broker '{new.name}' in this cluster any more."
    assert [record.message for record in caplog.records if record.name == handing_over.__name__] == [
        f"the messaging store '{STORE}' moves to '{new.name}' without its locks: {left}",
        f"the broker '{new.name}' could not be asked to take over '{STORE}': {left}",
    ]


async def test_a_store_that_does_not_hear_that_it_is_given_up_hears_it_later() -> None:
    async with one_store() as cluster:
        old, new, _ = roles(cluster)
        (message,) = await _locked(orders(old))
        released = old.ownership._own[STORE].store
        release = released.release

        def fail() -> None:
            released.release = release
            raise Unavailable("it does not answer")

        released.release = fail
        await move(cluster, new)
        assert await orders(old).hosts[0].ask(Complete([token_of(message)])) == Settled([])
        assert list(old.ownership._leaving) == [STORE]
        await old.ownership.settle({STORE: new.name}, [old.cluster.me.instance, new.cluster.me.instance])
        assert not old.ownership._leaving
        assert STORE in new.owns and STORE not in old.owns


async def _locked(queue: Queue) -> list[Message]:
    await queue.hosts[0].ask(Enqueue(made("x")))
    return await take(queue, 0, 1)


async def test_what_is_remembered_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "PIECE_MAX", 3)
    async with one_store() as cluster:
        _, new, third = roles(cluster)
        queue = orders(third)
        for number in (0, 7):
            await queue.hosts[number].ask(Enqueue(made(*map(str, range(10)))))
        taken = {number: await take(queue, number, 10) for number in (0, 7)}
        await move(cluster, new)
        for number, messages in taken.items():
            tokens = [token_of(message) for message in messages]
            assert await queue.hosts[number].ask(Complete(tokens)) == Settled([])
