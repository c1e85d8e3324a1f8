"""Serves the sessions of clients without a connection, for other brokers (broker/detached_sessions.py).

A session that another broker has accepted belongs to the connection with that broker. When it is detached,
it belongs to nobody but its lock, and any broker may ask for its messages (`receive_elsewhere`). Such a
request waits at the owner. The other broker takes it back when its client has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import urandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bendybus.broker.host import Host
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.topic import SendTarget
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.lending import Lender
from bendybus.cluster.link import PeerLink
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import FindSessionState, SessionLock
from bendybus.errors import ArgumentError, BrokerError
from bendybus.names import LockToken

if TYPE_CHECKING:
    from bendybus.cluster.peers import Peer
    from bendybus.cluster.serving import Calls

__all__ = ["DetachedSessions", "receive_elsewhere"]

KEY_SIZE: Final = 8

_stopping: set[asyncio.Task[None]] = set()
"""Requests that are being taken back. The event loop does not keep them."""


class _Detach(NamedTuple):
    path: str
    generation: str
    number: int
    lock: SessionLock


class _Receive(NamedTuple):
    path: str
    generation: str
    number: int
    lock: SessionLock
    timeout_ms: int
    key: bytes
    """Names the request, to take it back."""


async def receive_elsewhere(
    peer: Peer,
    of_session: tuple[str, str, int, SessionLock],
    timeout_s: float,
    release: Callable[[list[LockToken]], None],
) -> Message | None:
    """Ask the owner of a detached session for its next message. May be cancelled."""
    key = urandom(KEY_SIZE)
    body = *of_session, max(0, int(timeout_s * 1000)), key
    asked = asyncio.ensure_future(peer.call("receive-in-session", body, list[Message]))

    def too_late(answered: asyncio.Future[list[Message]]) -> None:
        """The client has left before the answer came."""
        if not answered.cancelled() and answered.exception() is None:
            release([each.lock_token for each in answered.result() if each.lock_token is not None])

    try:
        messages = await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(too_late)
        stopping = asyncio.get_running_loop().create_task(_stop(peer, key))
        _stopping.add(stopping)
        stopping.add_done_callback(_stopping.discard)
        raise
    return messages[0] if messages else None


async def _stop(peer: Peer, key: bytes) -> None:
    # A broker that cannot be reached has given up the request with the connection.
    with suppress(BrokerError):
        await peer.call("stop-receiving", key, type(None))


class DetachedSessions:
    def __init__(
        self,
        host: Callable[[str, str, int], tuple[SendTarget, Host[Any]]],
        lenders: Mapping[PeerLink, Lender],
    ) -> None:
        """`host`: a partition here, by path, generation and number."""
        self._host = host
        self._lenders = lenders
        self._waiting: dict[tuple[PeerLink, bytes], asyncio.Task[Message | None]] = {}

    def calls(self) -> Calls:
        return {
            "detach-session": self._detach,
            "receive-in-session": self._receive,
            "stop-receiving": self._stop,
        }

    def lost(self, link: PeerLink) -> None:
        """Nobody would get what is received for this connection."""
        for (waiting, _), task in list(self._waiting.items()):
            if waiting is link:
                task.cancel()

    def _partition(self, path: str, generation: str, number: int) -> PartitionHost:
        _, host = self._host(path, generation, number)
        if not isinstance(host, PartitionHost):
            raise ArgumentError(f"Partition {number} of '{path}' has no sessions here.")
        return host

    async def _detach(self, link: PeerLink, frame: Frame, call: Call) -> None:
        path, generation, number, lock = frame.decoded(_Detach, call.body)
        host = self._partition(path, generation, number)
        await host.ask(FindSessionState(lock))
        lender = self._lenders.get(link)
        if lender is not None:
            lender.forget(lock)
            await host.detach_session(lock)

    async def _receive(self, link: PeerLink, frame: Frame, call: Call) -> list[Message]:
        path, generation, number, lock, timeout_ms, key = frame.decoded(_Receive, call.body)
        host = self._partition(path, generation, number)
        receiving = asyncio.ensure_future(host.receive_in_session(lock, timeout_ms / 1000))
        self._waiting[link, key] = receiving
        try:
            await asyncio.wait([receiving])
        finally:
            del self._waiting[link, key]
            receiving.cancel()
        message = None if receiving.cancelled() else receiving.result()
        if message is not None and not link.is_open:
            assert message.lock_token is not None, "it was just locked"
            host.release([message.lock_token])
        return [] if message is None else [message]

    async def _stop(self, link: PeerLink, frame: Frame, call: Call) -> None:
        receiving = self._waiting.get((link, frame.decoded(bytes, call.body)))
        if receiving is not None:
            receiving.cancel()
