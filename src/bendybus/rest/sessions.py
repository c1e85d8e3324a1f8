"""Sessions over HTTP: accepted, renewed and released; their states; their messages (B-06).

The lock of a session is in its address, so requests may come over any connection. The lock ends when it is
released or when its time is over, and with it the locks of the session's messages, as over AMQP. How they
are settled: settling.py. Azure has no sessions over HTTP.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from os import urandom
from typing import Any
from uuid import UUID

from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import ENTROPY_PER_LOCK, Complete, Settled
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    FindSessionState,
    ReleaseSession,
    RenewSession,
    SessionAccepted,
    SessionLock,
    SetSessionState,
)
from bendybus.errors import BrokerError, SessionLockLost
from bendybus.http_bodies import RequestBody
from bendybus.names import LockToken, SessionId
from bendybus.rest.calls import RestCall
from bendybus.rest.headers import http_date
from bendybus.rest.messages import show
from bendybus.rest.receiving import Received, until_known

__all__ = ["HeldSession", "SessionReception", "told_of"]


class HeldSession:
    """The session whose lock a request presents. Each method raises `SessionLockLost` if it is not held."""

    def __init__(self, queue: Queue, call: RestCall) -> None:
        session_id = SessionId(call.session_id)
        key = queue.session_key(session_id)
        self._queue = queue
        self.host: ReceivingPort = queue.host_for(key)
        self.lock = SessionLock(session_id, LockToken(UUID(call.session_lock).bytes_le), key)

    async def check(self) -> None:
        await self.host.ask(FindSessionState(self.lock))

    async def renew(self) -> SessionAccepted:
        accepted = await self.host.ask(RenewSession(self.lock))
        assert isinstance(accepted, SessionAccepted)
        return accepted

    async def release(self) -> None:
        await self.check()
        self.host.let_go_session(self.lock)
        await self.host.ask(ReleaseSession(self.lock))

    async def state(self) -> bytes | None:
        return await self.host.session_state(self.lock)

    async def set_state(self, state: bytes | None) -> None:
        await self.host.ask(SetSessionState(self.lock, state))

    def includes(self, message: Message) -> bool:
        return message.session_id is not None and self._queue.session_key(message.session_id) == self.lock.key


class SessionReception:
    """Requests that wait for a session, or for a message in one."""

    def __init__(self, stopped: asyncio.Future[None]) -> None:
        """`stopped` is done when the server closes: all requests are answered then."""
        self._stopped = stopped

    async def accept(
        self, queue: Queue, session_id: str, timeout_s: float, client: RequestBody
    ) -> SessionAccepted | None:
        """Lock this session; "": the next free one with messages, or None if there is none in this time."""
        if session_id:
            host = queue.host_for(queue.session_key(SessionId(session_id)))
            reply = await host.ask(AcceptSession(SessionId(session_id), urandom(ENTROPY_PER_LOCK)))
            assert isinstance(reply, SessionAccepted)
            found = host, reply
        else:
            waiting = _Accepting(queue)
            waiting.wake()
            try:
                await self._wait(waiting.ready, timeout_s, client)
                if not waiting.ready.done() and queue.is_unknown(SubQueue.MAIN):
                    known = asyncio.ensure_future(until_known(queue, SubQueue.MAIN))
                    await self._wait(waiting.ready, None, client, known)
                    known.cancel()
            finally:
                waiting.close()
            if not waiting.ready.done():
                return None
            found = waiting.ready.result()
        host, accepted = found
        assert accepted.lock is not None, "a session that is named is accepted or refused"
        if client.client_is_gone:
            await host.ask(ReleaseSession(accepted.lock))
            return None
        try:
            await host.detach_session(accepted.lock)
        except BrokerError:
            with suppress(BrokerError):
                await host.ask(ReleaseSession(accepted.lock))
            raise
        return accepted

    async def receive(
        self, held: HeldSession, timeout_s: float, client: RequestBody, *, deletes: bool
    ) -> Received | None:
        """The next message of the session within this time, or None."""
        receiving = asyncio.ensure_future(held.host.receive_in_session(held.lock, timeout_s))
        try:
            await self._wait(receiving, None, client)
        finally:
            # Does nothing if there is a message.
            receiving.cancel()
        message = receiving.result() if receiving.done() else None
        return None if message is None else await _taken(held, message, client, deletes=deletes)

    async def _wait(
        self,
        awaited: asyncio.Future[Any],
        timeout_s: float | None,
        client: RequestBody,
        *others: asyncio.Future[Any],
    ) -> None:
        if not awaited.done() and (timeout_s is None or timeout_s > 0):
            several: list[asyncio.Future[Any]] = [awaited, client.gone(), self._stopped, *others]
            await asyncio.wait(several, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


class _Accepting:
    """`Waiter` of a queue, for the next free session."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._closed = False
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[tuple[ReceivingPort, SessionAccepted]] = loop.create_future()

    def wake(self) -> None:
        if self._closed or self.ready.done():
            return
        for host in self._queue.in_turn():
            accepted = host.accept_next_session()
            if accepted is not None:
                self.ready.set_result((host, accepted))
                return
        self._queue.wait(self, SubQueue.MAIN)

    def close(self) -> None:
        self._closed = True
        self._queue.stop_waiting(self, SubQueue.MAIN)


async def _taken(
    held: HeldSession, message: Message, client: RequestBody, *, deletes: bool
) -> Received | None:
    """The message itself; when deleting, only once its removal is durable."""
    host, token = held.host, message.lock_token
    assert token is not None, "it was just locked"
    try:
        (payload,) = await host.payloads([message])
        if payload is None or client.client_is_gone:
            host.release([token])
            return None
        received = Received(message.sequence_number, token, show(message, payload, locked=not deletes))
        if deletes:
            settled = await host.ask(Complete([token]))
            assert isinstance(settled, Settled)
            if settled.lost:
                raise SessionLockLost(f"The lock of the session '{held.lock.session_id}' has ended.")
    except BrokerError:
        host.release([token])
        raise
    return received


def told_of(accepted: SessionAccepted) -> bytes:
    """The header BrokerProperties of a session that is held."""
    assert accepted.lock is not None
    told = {
        "SessionId": accepted.lock.session_id,
        "LockToken": str(UUID(bytes_le=accepted.lock.token)),
        "LockedUntilUtc": http_date(accepted.locked_until),
    }
    return json.dumps(told).encode()
