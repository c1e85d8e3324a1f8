"""The state that moves with a messaging store in a planned move: everything that exists only in memory.

The owner makes commands wait, and sends locks, sessions and rests of all partitions to the next owner
(`send`). Then it gives up the store and informs all brokers. Each of them answers, which shows that it has
received everything that the owner had sent to it (`told`). Then the next owner is asked to take the store
(`offer`). It uses the state that it was sent only if it is the direct successor, which the term of the store
shows. If any of this fails, the move is like an unplanned one: locks and sessions are lost, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from bendybus.broker.detached_sessions import DetachedSession
from bendybus.broker.host import Host
from bendybus.broker.partition_host import PartitionHost
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.lending import LentSession
from bendybus.cluster.link import PeerLink
from bendybus.cluster.peers import Peer
from bendybus.cluster.serving import Calls, Service
from bendybus.domain.volatile import VolatileState
from bendybus.errors import BrokerError, StoreUnavailable
from bendybus.names import EntityPath, Instant, PartitionNumber

__all__ = ["HandingOver", "Remembered"]

logger = logging.getLogger(__name__)

# Takes the place of the broker that holds a session if the session's client has no connection.
DETACHED: Final = "*"
# Locks in one request: a few megabytes, of the sixteen that earlier versions read in a frame.
PIECE_MAX: Final = 20_000
# A broker that does not answer for this long is disconnected: its sessions end, and nobody waits for it.
PATIENCE_S: Final = 2.0
# State from a broker that was then silent for longer than this is not used.
VALID_S: Final = 10.0


class Piece(NamedTuple):
    """What is remembered of one partition, or a part of it."""

    path: EntityPath
    generation: str
    number: PartitionNumber
    state: VolatileState
    holders: list[str]
    """For each session in it, the broker whose receiver holds it; or `DETACHED`."""


class Remembered:
    """What the last owner of a store remembers of its partitions."""

    def __init__(self, broker: str, term: int, at: float) -> None:
        self.broker = broker
        self.term = term
        self.at = at
        """When it arrived, by the loop's clock."""
        self.is_complete = False
        self._pieces: dict[tuple[str, str, int], list[Piece]] = {}

    def add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._pieces.setdefault((piece.path, piece.generation, piece.number), []).append(piece)

    def give_to(self, host: PartitionHost, service: Service | None) -> None:
        """The partition continues with the state of its last owner, and its sessions with their holders."""
        pieces = self._pieces.get((host.path, host.queue.generation, host.number), [])
        ago_ms = int((asyncio.get_running_loop().time() - self.at) * 1000)
        host.expect([(piece.state, Instant(host.now() - ago_ms)) for piece in pieces])
        for piece in pieces:
            for held, broker in zip(piece.state.sessions, piece.holders, strict=True):
                if broker == DETACHED:
                    host.hold_session(held.lock, DetachedSession())
                elif service is not None:
                    service.lend_session(broker, host, host.queue, held.lock)


class HandingOver:
    def __init__(self, cluster: Cluster, take: Callable[[str], None]) -> None:
        """`take`: called with a store that another broker has given up for this one."""
        self._cluster = cluster
        self._take = take
        self._arriving: dict[str, Remembered] = {}
        self._offered: dict[str, tuple[int, bool]] = {}
        """Stores that others have given up for this broker: the term, and whether what was sent counts."""

    # -- the owner ----------------------------------------------------------------

    async def send(self, store: str, term: int, hosts: Sequence[Host[Any]], to: str) -> bool:
        """Send what these partitions remember to their next owner. Returns whether it has everything."""
        me = self._cluster.me.broker
        try:
            async with asyncio.timeout(PATIENCE_S):
                requests = [*_requests(hosts, me)]
                for number, pieces in enumerate(requests, 1):
                    body = store, term, number == 1, number == len(requests), pieces
                    await self._next_owner(to).call("remember", body, type(None))
        except (BrokerError, TimeoutError) as reason:
            logger.warning(
                "the messaging store '%s' moves to '%s' without its locks: %s",
                store,
                to,
                reason or "no answer",
            )
            return False
        return True

    async def told(self) -> None:
        """Return once every other broker has received everything that was sent to it, or is disconnected."""
        peers = list(self._cluster.peers.by_name.values())

        async def heard(name: str) -> None:
            peer = self._cluster.peers.by_name.get(name)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    if peer is not None:
                        await peer.call("hear", None, type(None))
            except TimeoutError:
                if peer is not None:
                    peer.hang_up("it does not hear that a messaging store changes hands")
            except BrokerError:
                # It has no connection, or never knew this request: then it keeps no sessions either.
                pass

        await asyncio.gather(*(heard(peer.name) for peer in peers))

    async def offer(self, store: str, term: int, to: str, *, kept: bool) -> None:
        """Ask the next owner to take the store, which this broker has given up. `kept`: what `send` said."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._next_owner(to).call("take-store", (store, term, kept), type(None))
        except (BrokerError, TimeoutError) as reason:
            logger.warning(
                "the broker '%s' could not be asked to take over '%s': %s", to, store, reason or "no answer"
            )

    def _next_owner(self, name: str) -> Peer:
        peer = self._cluster.peers.by_name.get(name)
        if peer is None:
            raise StoreUnavailable(f"There is no broker '{name}' in this cluster any more.")
        return peer

    # -- the next owner -----------------------------------------------------------

    def calls(self) -> Calls:
        """What the other brokers may ask."""
        return {"remember": self._remember, "hear": self._hear, "take-store": self._take_store}

    async def _remember(self, link: PeerLink, frame: Frame, call: Call) -> None:
        body = frame.decoded(tuple[str, int, bool, bool, list[Piece]], call.body)
        store, term, is_first, is_last, pieces = body
        if is_first:
            self._arriving[store] = Remembered(link.peer, term, asyncio.get_running_loop().time())
        arriving = self._arriving.get(store)
        if arriving is None or (arriving.broker, arriving.term) != (link.peer, term):
            raise StoreUnavailable("The first part of the state to restore is missing.")
        arriving.add(pieces)
        arriving.is_complete = is_last

    async def _hear(self, link: PeerLink, frame: Frame, call: Call) -> None:
        """Everything that was sent earlier on this connection has been processed."""

    async def _take_store(self, link: PeerLink, frame: Frame, call: Call) -> None:
        store, term, kept = frame.decoded(tuple[str, int, bool], call.body)
        if store not in self._cluster.all_stores:
            raise StoreUnavailable(f"This broker has no messaging store '{store}'.")
        self._offered[store] = term, kept
        self._take(store)

    def is_offered(self, store: str, term: int) -> bool:
        """Whether the owner of this term has given up the store for this broker."""
        return self._offered.get(store, (0, False))[0] == term

    def taken(self, store: str, term: int) -> Remembered | None:
        """This broker owns the store since this term. Returns what the last owner remembers, if it counts."""
        offered, kept = self._offered.pop(store, (0, False))
        arrived = self._arriving.pop(store, None)
        if (
            arrived is None
            or not kept
            or not arrived.is_complete
            or (offered, arrived.term) != (term - 1,) * 2
        ):
            return None
        is_valid = asyncio.get_running_loop().time() - arrived.at < VALID_S
        return arrived if is_valid else None


def _requests(hosts: Sequence[Host[Any]], me: str) -> Iterator[list[Piece]]:
    """What is remembered of these partitions, in requests that are not too large. There is one at least."""
    request: list[Piece] = []
    size = 0
    for host in hosts:
        if not isinstance(host, PartitionHost):
            continue
        for state in host.remember().pieces(PIECE_MAX):
            holders = [_broker_of(host, held.lock, me) for held in state.sessions]
            request.append(Piece(host.path, host.queue.generation, host.number, state, holders))
            size += state.count
            if size >= PIECE_MAX:
                yield request
                request, size = [], 0
    yield request


def _broker_of(host: PartitionHost, lock: Any, me: str) -> str:
    """The broker whose receiver holds the session; nobody's if it has no holder any more."""
    holder = host.holders.of(lock)
    if holder is None:
        return ""
    if isinstance(holder, DetachedSession):
        return DETACHED
    return holder.broker if isinstance(holder, LentSession) else me
