"""Sessions of clients without a connection: any broker serves their requests (N-01)."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.broker.clock import now
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Complete, Enqueue, Settled
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    ReleaseSession,
    RenewSession,
    SessionAccepted,
    SessionLock,
    SetSessionState,
)
from bendybus.envelope import admit
from bendybus.errors import SessionCannotBeLocked, SessionLockLost, StoreUnavailable, Unavailable
from bendybus.names import EntityPath, SessionId
from bendybus.rest.receiving import Reception
from bendybus.rest.sessions import SessionReception
from fix_async import until
from fix_cluster import Member, Members, members

pytestmark = pytest.mark.row("N-01")

# properties: message-id "m", application-properties {}, data "x", as an ordinary client writes them.
BARE = b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x75\xa0\x01x"
SESSION = SessionId("s")
LONG_S = 60.0


class Client:
    """What a request knows of its HTTP client."""

    def __init__(self) -> None:
        self.client_is_gone = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def gone(self) -> asyncio.Future[None]:
        return self._gone

    def leave(self) -> None:
        self.client_is_gone = True
        self._gone.set_result(None)


def made(*texts: str) -> list[Message]:
    return [Message(text.encode(), len(text), session_id=SESSION) for text in texts]


def port(member: Member) -> ReceivingPort:
    """The partition of the session, as this broker sees it."""
    queue = orders(member)
    return queue.host_for(queue.session_key(SESSION))


def orders(member: Member) -> Queue:
    return member.broker.queues.get("orders")


async def ordered(cluster: Members) -> list[Member]:
    """The brokers, the owner of the session first. There is a queue with sessions."""
    description = QueueDescription(EntityPath("orders"), enable_partitioning=True, requires_session=True)
    await cluster["a"].broker.queues.create(description)
    await cluster.whole()
    return sorted(cluster, key=lambda member: port(member).number not in orders(member).own)


async def accepted(member: Member) -> SessionLock:
    reply = await port(member).ask(AcceptSession(SESSION, b"\1" * 14))
    assert isinstance(reply, SessionAccepted) and reply.lock is not None
    await port(member).detach_session(reply.lock)
    return reply.lock


async def received(member: Member, lock: SessionLock, timeout_s: float = LONG_S) -> str | None:
    """The text of the next message, which is completed."""
    message = await port(member).receive_in_session(lock, timeout_s)
    if message is None:
        return None
    assert message.lock_token is not None
    assert message.delivery_count == 0
    token = message.lock_token
    (payload,) = await port(member).payloads([message])
    assert payload is not None
    assert await port(member).ask(Complete([token])) == Settled([])
    return payload.decode()


async def test_requests_in_a_session_may_reach_any_broker() -> None:
    async with members("abc") as cluster:
        brokers = await ordered(cluster)
        for accepting in brokers:
            owner, second, third = brokers
            await port(second).ask(Enqueue(made("1", "2", "3")))
            lock = await accepted(accepting)
            for broker in brokers:
                with pytest.raises(SessionCannotBeLocked):
                    await accepted(broker)
            assert [await received(each, lock) for each in (third, owner, second)] == ["1", "2", "3"]
            assert [await received(each, lock, 0) for each in brokers] == [None] * 3
            await port(third).ask(SetSessionState(lock, b"state"))
            assert await port(second).session_state(lock) == b"state"
            assert isinstance(await port(second).ask(RenewSession(lock)), SessionAccepted)
            await port(third).ask(ReleaseSession(lock))
            for broker in brokers:
                with pytest.raises(SessionLockLost):
                    await received(broker, lock, 0)


async def test_a_request_that_waits_gets_what_is_sent_meanwhile_and_learns_that_the_session_ends() -> None:
    async with members() as cluster:
        owner, other = await ordered(cluster)
        lock = await accepted(other)
        waiting = [asyncio.create_task(received(each, lock)) for each in (owner, other)]
        await asyncio.sleep(0.02)
        await port(other).ask(Enqueue(made("1", "2")))
        assert sorted([str(await each) for each in waiting]) == ["1", "2"]
        waiting = [asyncio.create_task(received(each, lock)) for each in (owner, other)]
        await asyncio.sleep(0.02)
        await port(other).ask(ReleaseSession(lock))
        for each in waiting:
            with pytest.raises(SessionLockLost):
                await each


async def test_a_session_without_a_connection_outlives_those_between_brokers() -> None:
    async with members() as cluster:
        owner, other = await ordered(cluster)
        lock = await accepted(other)
        await port(owner).ask(Enqueue(made("1")))
        other.cut(owner.name)
        await until(lambda: other.cluster.peers.by_name[owner.name].link is not None)
        with pytest.raises(SessionCannotBeLocked):
            await accepted(owner)
        assert await received(other, lock) == "1"


@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_a_message_for_a_client_that_has_left_goes_back_uncounted(turns: int) -> None:
    async with members() as cluster:
        owner, other = await ordered(cluster)
        lock = await accepted(other)
        waiting = asyncio.create_task(port(other).receive_in_session(lock, LONG_S))
        await asyncio.sleep(0.01)
        sending = asyncio.create_task(port(owner).ask(Enqueue(made("1"))))
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await sending
            assert await received(other, lock) == "1"
        await until(lambda: not owner.service._detached._waiting)


async def test_a_request_ends_with_the_connection_to_the_owner() -> None:
    async with members() as cluster:
        owner, other = await ordered(cluster)
        lock = await accepted(other)
        waiting = asyncio.create_task(port(other).receive_in_session(lock, LONG_S))
        await until(lambda: len(owner.service._detached._waiting) == 1)
        other.cut(owner.name)
        with pytest.raises(StoreUnavailable):
            await waiting
        await until(lambda: not owner.service._detached._waiting)


async def test_an_owner_of_an_earlier_version_keeps_no_session_and_it_is_said() -> None:
    async with members() as cluster:
        owner, other = await ordered(cluster)
        del owner.service._calls["detach-session"]
        sessions = SessionReception(asyncio.get_running_loop().create_future())
        with pytest.raises(Unavailable, match="it may be older"):
            await sessions.accept(orders(other), SESSION, 1, Client())
        assert await accepted(owner)


async def test_a_request_for_a_message_without_patience_gets_what_another_broker_has() -> None:
    async with members() as cluster:
        await cluster["a"].broker.queues.create(QueueDescription(EntityPath("plain")))
        await cluster.whole()
        reception = Reception()
        for member in cluster:
            queue = member.broker.queues.get("plain")
            assert await reception.receive(queue, SubQueue.MAIN, 0, Client(), deletes=True) is None
            message, _ = admit(BARE, now(), queue.description)
            await queue.hosts[0].ask(Enqueue([message]))
            assert await reception.receive(queue, SubQueue.MAIN, 0, Client(), deletes=True) is not None


async def test_a_request_without_patience_gets_what_another_broker_has() -> None:
    async with members() as cluster:
        owner, other = await ordered(cluster)
        sessions = SessionReception(asyncio.get_running_loop().create_future())
        assert await sessions.accept(orders(other), "", 0, Client()) is None
        await port(owner).ask(Enqueue(made("1")))
        found = await sessions.accept(orders(other), "", 0, Client())
        assert found is not None and found.lock is not None
        assert await received(other, found.lock, 0) == "1"
        assert await sessions.accept(orders(other), "", 0, Client()) is None
