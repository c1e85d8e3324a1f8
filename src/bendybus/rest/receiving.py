"""Receiving over HTTP: one message for each request, now or later.

A request that finds no message waits in the same list as AMQP links (`broker/queue.py`);
nothing polls. It ends when it gets a message, when its time is over (also if every message is
locked: P-29), when its client disconnects, or when the server stops. A message that was locked
for a client that has disconnected is released uncounted (P-28).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Complete, Settled
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import BrokerError, Unavailable
from bendybus.http_bodies import RequestBody
from bendybus.names import LockToken, SequenceNumber
from bendybus.rest.messages import Shown, show

__all__ = ["Received", "Reception", "until_known"]

# A broker that does not say for so long what it has is treated as if it had nothing.
KNOWN_WITHIN_S: Final = 5.0
# How long a request leaves a partition alone whose message could not be read.
ASK_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Received:
    """A message for an HTTP client; under this lock, or deleted."""

    sequence_number: SequenceNumber
    lock_token: LockToken
    shown: Shown


@dataclass(frozen=True, slots=True)
class _Locked:
    """A message under our lock. The token tells whether the lock is still ours."""

    host: ReceivingPort
    message: Message
    token: LockToken

    def release(self) -> None:
        self.host.release([self.token])


class _Request:
    """`Waiter` of a queue, for one message: the first that any partition has ready (P-25, P-27).

    A partition that has to read from its store, or whose store may be slow to remove, is left to that, with
    one message locked, and the others are asked. What is not needed is given back at once.
    """

    def __init__(self, queue: Queue, subqueue: SubQueue, *, deletes: bool) -> None:
        self._queue = queue
        self._subqueue = subqueue
        self._deletes = deletes
        self._reading: dict[ReceivingPort, _Locked] = {}
        """What stores have been asked for and not answered yet."""
        self._failed: set[ReceivingPort] = set()
        """Those that could not answer, for a while."""
        self._closed = False
        self.failure: BrokerError | None = None
        """Why a message that is there could not be read."""
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[tuple[_Locked, bytes]] = loop.create_future()
        self.idle = asyncio.Event()
        """Nothing is being read."""
        self.idle.set()

    def wake(self) -> None:
        # Who takes may free others, and so wakings can nest: one of them has served this request.
        if self._closed or self.ready.done():
            return
        self.take()
        if not self.ready.done():
            self._queue.wait(self, self._subqueue, wanted=1)

    def take(self) -> None:
        """Lock what can be had, from whichever partition has it, until one is ready."""
        for host in self._queue.in_turn():
            if host in self._reading or host in self._failed:
                continue
            for message in host.lock(1, 1, self._subqueue):
                assert message.lock_token is not None
                locked = _Locked(host, message, message.lock_token)
                if message.payload is not None and (not self._deletes or host.removes_promptly):
                    self._choose(locked, message.payload)
                    return
                self._read(locked)
            if self.ready.done():
                return

    def _read(self, locked: _Locked) -> None:
        self._reading[locked.host] = locked
        self.idle.clear()
        read = locked.host.read_to_remove if self._deletes else locked.host.read
        read([locked.message], partial(self._answered, locked))

    def _answered(self, locked: _Locked, payloads: list[bytes | None] | BrokerError) -> None:
        if self._reading.pop(locked.host, None) is None:
            return
        if isinstance(payloads, BrokerError):
            self.failure = payloads
            # First, so that this request is not given the message again at once.
            self._failed.add(locked.host)
            locked.release()
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_again, locked.host)
        elif payloads[0] is None or not locked.host.holds(locked.token, self._queue.now()):
            self.wake()
        else:
            self._choose(locked, payloads[0])
        if not self._reading:
            self.idle.set()

    def _choose(self, locked: _Locked, payload: bytes) -> None:
        self.ready.set_result((locked, payload))
        self._give_back()

    def _give_back(self) -> None:
        """What is being read is not needed any more."""
        reading, self._reading = self._reading, {}
        for locked in reading.values():
            locked.release()

    def _ask_again(self, host: ReceivingPort) -> None:
        self._failed.discard(host)
        self.wake()

    def close(self) -> None:
        self._closed = True
        self._queue.stop_waiting(self, self._subqueue)
        self._give_back()


class Reception:
    """All requests that wait over HTTP."""

    def __init__(self) -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Answer all waiting requests with no message: the server is closing."""
        if not self.stopped.done():
            self.stopped.set_result(None)

    async def receive(
        self, queue: Queue, subqueue: SubQueue, timeout_s: float, client: RequestBody, *, deletes: bool
    ) -> Received | None:
        """The next message within this time, or None."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            found = await self._find(queue, subqueue, deadline - loop.time(), client, deletes=deletes)
            if found is None:
                return None
            try:
                received = await _take(*found, client, deletes=deletes)
            except Unavailable:
                # "A slow or dead store delays nobody: the others' messages flow" (P-27)
                if loop.time() >= deadline:
                    raise
                continue
            # A lock can be lost while a slow store removes; there may be another message, and time.
            if received is not None or client.client_is_gone:
                return received

    async def _find(
        self, queue: Queue, subqueue: SubQueue, timeout_s: float, client: RequestBody, *, deletes: bool
    ) -> tuple[_Locked, bytes] | None:
        """A message that can be given; `BrokerError` where there is one and it cannot be read."""
        request = _Request(queue, subqueue, deletes=deletes)
        request.wake()
        try:
            if not request.ready.done() and timeout_s > 0:
                await self._wait(request, client, timeout_s)
            if not request.ready.done() and queue.is_unknown(subqueue):
                known = asyncio.create_task(until_known(queue, subqueue))
                await self._wait(request, client, None, known)
                known.cancel()
            if not request.ready.done() and not request.idle.is_set():
                # The time is up, but there is a message: its store answers, or is given up in bounded time.
                answered = asyncio.create_task(request.idle.wait())
                await self._wait(request, client, None, answered)
                answered.cancel()
        finally:
            request.close()
        if not request.ready.done():
            if request.failure is not None and not client.client_is_gone:
                raise request.failure
            return None
        return request.ready.result()

    async def _wait(
        self,
        request: _Request,
        client: RequestBody,
        timeout_s: float | None,
        *others: asyncio.Task[Any],
    ) -> None:
        waited_for: list[asyncio.Future[Any]] = [request.ready, client.gone(), self.stopped, *others]
        await asyncio.wait(
            waited_for,
            timeout=timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )


async def until_known(queue: Queue, subqueue: SubQueue) -> None:
    """A request with a short timeout also gets what other brokers have: return once they have said it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(KNOWN_WITHIN_S):
            await queue.known(subqueue)


async def _take(locked: _Locked, payload: bytes, client: RequestBody, *, deletes: bool) -> Received | None:
    """The message itself; when deleting, only once its removal is durable."""
    message, token = locked.message, locked.token
    if client.client_is_gone:
        locked.release()
        return None
    # Before the removal: afterwards the lock's marks are wiped from the message.
    received = Received(message.sequence_number, token, show(message, payload, locked=not deletes))
    if deletes:
        try:
            settled = await locked.host.ask(Complete([token]))
        except BrokerError:
            locked.release()
            raise
        assert isinstance(settled, Settled)
        if settled.lost:
            return None
    return received
