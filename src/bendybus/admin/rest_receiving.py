"""Receiving over HTTP: one message for one request, now or as it comes.

A request that finds nothing waits as AMQP links do (`broker/queue.py`) and is
served in its turn; nothing polls. It ends with a message, with its time (also
when every message is locked: P-29), with its client or with the server. A
message locked for a client that has gone is given back uncounted (P-28).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bendybus.admin.rest_bodies import RequestBody
from bendybus.admin.rest_messages import Shown, show
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Complete, Settled
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import BrokerError, Unavailable
from bendybus.names import LockToken, SequenceNumber

__all__ = ["Received", "Reception"]


@dataclass(frozen=True, slots=True)
class Received:
    """A message for an HTTP client; under this lock, or deleted."""

    sequence_number: SequenceNumber
    lock_token: LockToken
    shown: Shown


@dataclass(frozen=True, slots=True)
class _Locked:
    """A message under our lock. The token tells whether the lock is still ours."""

    host: PartitionHost
    message: Message
    token: LockToken

    def release(self) -> None:
        self.host.release([self.token])


class _Request:
    """`Waiter` of a queue, for one message."""

    def __init__(self, queue: Queue, subqueue: SubQueue) -> None:
        self._queue = queue
        self._subqueue = subqueue
        self._closed = False
        self.locked: asyncio.Future[_Locked] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        # Who takes may free others, and so wakings can nest: one of them has served this request.
        if self._closed or self.locked.done():
            return
        found = self.take()
        if found is None:
            self._queue.wait(self, self._subqueue)
        else:
            self.locked.set_result(found)

    def take(self) -> _Locked | None:
        """Lock what can be had at once, from whichever partition has it."""
        for host in self._queue.in_turn():
            for message in host.lock(1, 1, self._subqueue):
                assert message.lock_token is not None
                return _Locked(host, message, message.lock_token)
        return None

    def wait(self) -> None:
        self._queue.wait(self, self._subqueue)

    def close(self) -> None:
        self._closed = True
        self._queue.stop_waiting(self, self._subqueue)


class Reception:
    """Everybody who waits over HTTP."""

    def __init__(self) -> None:
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Send all who wait away, with nothing: the server is closing."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def receive(
        self, queue: Queue, subqueue: SubQueue, timeout_s: float, client: RequestBody, *, deletes: bool
    ) -> Received | None:
        """The next message within this time, or None."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            locked = await self._lock(queue, subqueue, deadline - loop.time(), client)
            if locked is None:
                return None
            try:
                received = await _read(locked, client, deletes=deletes)
            except Unavailable:
                # "A slow or dead store delays nobody: the others' messages flow" (P-27)
                if loop.time() >= deadline:
                    raise
                continue
            # A lock can be lost while a slow store reads; there may be another message, and time.
            if received is not None or client.client_is_gone:
                return received

    async def _lock(
        self, queue: Queue, subqueue: SubQueue, timeout_s: float, client: RequestBody
    ) -> _Locked | None:
        request = _Request(queue, subqueue)
        found = request.take()
        if found is not None or timeout_s <= 0:
            return found
        request.wait()
        try:
            await asyncio.wait(
                (request.locked, client.gone(), self._stopped),
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            request.close()
        if not request.locked.done():
            return None
        if client.client_is_gone:
            request.locked.result().release()
            return None
        return request.locked.result()


async def _read(locked: _Locked, client: RequestBody, *, deletes: bool) -> Received | None:
    """The message itself; when deleting, only once its removal is durable."""
    message, token = locked.message, locked.token
    try:
        payload = message.payload
        if payload is None:
            client.gone()
            (payload,) = await locked.host.payloads([message])
        if client.client_is_gone:
            locked.release()
            return None
        if payload is None or message.lock_token != token:
            return None
        # Before the removal: afterwards the lock's marks are wiped from the message.
        received = Received(message.sequence_number, token, show(message, payload, locked=not deletes))
        if deletes:
            settled = await locked.host.ask(Complete([token]))
            assert isinstance(settled, Settled)
            if settled.lost:
                return None
    except BrokerError:
        locked.release()
        raise
    return received
