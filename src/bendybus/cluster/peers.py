"""The other brokers: the connection to each, and the remote partitions of each.

In each pair, the broker whose name comes first connects to the other, and reconnects when the connection is
lost. When a broker cannot be reached, commands to its partitions wait for `GRACE_S`, the time of a restart.
After that they are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec

from bendybus import audit
from bendybus.broker.holders import SessionHolder
from bendybus.broker.lifecycle import Availability
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.cluster.answers import answered
from bendybus.cluster.frames import Frame, FrameError, refusal_of
from bendybus.cluster.identity import Identity
from bendybus.cluster.items import (
    Call,
    Item,
    News,
    Owns,
    Returned,
    SelectiveSupply,
    Serving,
    SessionLost,
    SessionSupply,
    Status,
    Supply,
    requests_in,
)
from bendybus.cluster.link import PeerLink
from bendybus.cluster.link_protocol import LinkProtocol
from bendybus.cluster.remote import RemotePartition, RemoteQueuePartition, RemoteStore
from bendybus.cluster.supply import Supplier
from bendybus.domain.messages import SubQueue
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import BrokerError, StoreUnavailable, Unavailable
from bendybus.names import LockToken, PartitionNumber

__all__ = ["Peer", "PeerService", "Peers"]

logger = logging.getLogger(__name__)

# Commands wait this long for a broker that is being started again. Not `Final`: tests change it, and compiled
# code has copies of what is final.
GRACE_S = 5.0
RECONNECT_S: Final = 0.05

_SUPPLIES: Final = (Supply, SessionSupply, SelectiveSupply, News, SessionLost, Status)

T = TypeVar("T")


class PeerService(Protocol):
    """The part of a broker that serves the others (serving.py)."""

    def opened(self, link: PeerLink) -> None: ...
    def lost(self, link: PeerLink) -> None: ...
    def received(self, link: PeerLink, frame: Frame, item: Item) -> None: ...
    def frame_ended(self) -> None: ...


class _Known:
    """An entity here that has partitions at the other broker."""

    def __init__(self, generation: str) -> None:
        self.generation = generation
        self.partitions: dict[PartitionNumber, RemotePartition] = {}
        self.supplier: Supplier | None = None


class Peer:
    """One other broker."""

    def __init__(self, name: str, absence: str | None = None) -> None:
        """`absence`: why partitions are unavailable without a connection, for people."""
        self.name = name
        self.is_nobody = absence is not None
        """Whether it stands for the owner of a store that has none."""
        self.absence = absence or f"the broker '{name}', which owns it, cannot be reached"
        self.link: PeerLink | None = None
        """The connection, while the other broker serves its partitions."""
        self._open: PeerLink | None = None
        """The connection, while it is open."""
        self.owned: Mapping[str, int] = {}
        """The stores that it says it owns, and their terms; empty where stores do not change hands."""
        self.connected_once = asyncio.Event()
        self._known: dict[str, _Known] = {}
        self._availability = Availability.LOADING
        self._grace: asyncio.TimerHandle | None = None

    # -- partitions ---------------------------------------------------------------

    def queue_partition(
        self, queue: Queue, generation: str, number: PartitionNumber, store: RemoteStore
    ) -> RemoteQueuePartition:
        known = self._known_entity(queue.path, generation)
        if known.supplier is None:
            known.supplier = Supplier(queue, *self._returns(known))
            if self.link is not None:
                known.supplier.connected(self.link)
        if known.supplier not in queue.suppliers:
            queue.suppliers.append(known.supplier)
        partition = RemoteQueuePartition(queue, number, store, self, known.supplier)
        self._add(known, partition)
        return partition

    def topic_partition(
        self, topic: Topic, generation: str, number: PartitionNumber, store: RemoteStore
    ) -> RemotePartition:
        partition = RemotePartition(topic, number, store, self)
        self._add(self._known_entity(topic.path, generation), partition)
        return partition

    def release(
        self, partition: RemotePartition
    ) -> tuple[list[tuple[SessionLock, SessionHolder]], list[LockToken]]:
        """The other broker does not own this partition any more. Returns what is left (supply.py)."""
        known = self._known.get(partition.path)
        if known is None or known.partitions.get(partition.number) is not partition:
            return [], []
        del known.partitions[partition.number]
        if known.supplier is None:
            return [], []
        left = known.supplier.leave_partition(partition.number)
        if not known.partitions:
            # It is kept: what was demanded counts for as long as the connection lasts.
            known.supplier.rest()
        return left

    def forget(self, path: str) -> None:
        """The entity is deleted."""
        known = self._known.pop(path, None)
        if known is not None:
            for partition in known.partitions.values():
                partition.set_availability(Availability.GONE)
            if known.supplier is not None:
                known.supplier.disconnected()

    def _known_entity(self, path: str, generation: str) -> _Known:
        known = self._known.get(path)
        if known is None or known.generation != generation:
            known = self._known[path] = _Known(generation)
        return known

    def _add(self, known: _Known, partition: RemotePartition) -> None:
        known.partitions[partition.number] = partition
        # Of an entity that is new, the owner tells only what changes.
        partition.availability = self._availability

    @staticmethod
    def _returns(known: _Known) -> tuple[Callable[..., None], Callable[..., None]]:
        def of_queue(number: PartitionNumber) -> RemoteQueuePartition | None:
            partition = known.partitions.get(number)
            assert partition is None or isinstance(partition, RemoteQueuePartition), (
                "only queues are supplied"
            )
            return partition

        def give_back(number: PartitionNumber, messages: Iterable[Any]) -> None:
            if (partition := of_queue(number)) is not None:
                partition.release([message.lock_token for message in messages])

        def release(number: PartitionNumber, lock: SessionLock) -> None:
            if (partition := of_queue(number)) is not None:
                partition.release_session(lock)

        return give_back, release

    # -- the connection -----------------------------------------------------------

    def connected(self, link: PeerLink) -> None:
        if self._open is not None:
            # The other broker was started again, and we had not noticed that it was gone.
            self._open.close("it was replaced by a new connection")
        self._open = link
        self.connected_once.set()

    def serves(self, link: PeerLink) -> None:
        """The other broker has opened its partitions. What is said to it before would be lost."""
        if link is not self._open or link is self.link:
            return
        self.link = link
        self._cancel_grace()
        for known in self._known.values():
            if known.supplier is not None:
                known.supplier.connected(link)
        self._set_all(Availability.AVAILABLE)

    def disconnected(self, link: PeerLink) -> None:
        if link is not self._open:
            return
        self._open = self.link = None
        self.await_owner()
        for known in list(self._known.values()):
            if known.supplier is not None:
                known.supplier.disconnected()

    def await_owner(self) -> None:
        """Commands wait from now on, for a limited time."""
        self._set_all(Availability.LOADING)
        self._cancel_grace()
        self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._give_up)

    def _give_up(self) -> None:
        self._grace = None
        if any(known.partitions for known in self._known.values()):
            logger.warning("partitions are unavailable: %s", self.absence)
        self._set_all(Availability.UNAVAILABLE)
        for known in list(self._known.values()):
            if known.supplier is not None:
                # Sessions that continued while the partition had no owner end now.
                known.supplier.disconnected()

    def _cancel_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _set_all(self, availability: Availability) -> None:
        self._availability = availability
        for known in list(self._known.values()):
            for partition in known.partitions.values():
                partition.set_availability(availability)

    def close(self) -> None:
        self._cancel_grace()
        self.hang_up("this broker stops")

    def hang_up(self, reason: str) -> None:
        """End the connection. Everything that waits for it is answered."""
        if self._open is not None:
            self._open.close(reason)

    # -- what it says -------------------------------------------------------------

    def received(
        self, frame: Frame, item: Supply | SessionSupply | SelectiveSupply | News | SessionLost | Status
    ) -> None:
        known = self._known.get(item.path)
        if known is None or known.generation != item.generation:
            return
        if isinstance(item, Status):
            availability = Availability(item.availability)
            for number in item.numbers:
                partition = known.partitions.get(PartitionNumber(number))
                if partition is not None and availability is not Availability.GONE:
                    partition.set_availability(availability)
            return
        supplier = known.supplier
        if supplier is None:
            raise FrameError(f"messages of '{item.path}', which has none to give")
        if isinstance(item, SessionLost):
            supplier.sessions.lose(LockToken(item.token))
        elif isinstance(item, News):
            supplier.watching.news(SubQueue(item.subqueue))
        elif isinstance(item, SessionSupply):
            accepted = frame.accepted(item.accepted)
            supplier.session_supplied(item.exclusive, item.limit, PartitionNumber(item.number), accepted)
        elif isinstance(item, SelectiveSupply):
            messages = frame.messages(item.messages)
            number = PartitionNumber(item.number)
            supplier.selections.supplied(item.receiver, item.limit, number, messages)
        else:
            session = None if item.session is None else LockToken(item.session)
            messages = frame.messages(item.messages)
            number = PartitionNumber(item.number)
            supplier.supplied(SubQueue(item.subqueue), session, item.limit, number, messages)

    # -- requests to the broker itself --------------------------------------------

    async def call(self, name: str, body: object, kind: type[T]) -> T:
        """Ask the broker itself. Raises what it raises, or `StoreUnavailable`."""
        link = self._open
        if link is None:
            raise StoreUnavailable(f"The broker '{self.name}' cannot be reached. Please retry the operation.")

        def parse(frame: Frame, item: Item) -> T:
            if not isinstance(item, Returned):
                raise FrameError(f"a {type(item).__name__} as the answer to '{name}'")
            return frame.decoded(kind, item.body)

        who = audit.current_actor()
        actor = who.by, who.peer, who.namespace

        def ask(done: Callable[[T | BrokerError], None]) -> None:
            link.request(lambda request: Call(request, name, link.writer.encoded(body), actor), parse, done)

        return await answered(ask)

    async def session_state(
        self, path: str, generation: str, number: PartitionNumber, lock: SessionLock
    ) -> bytes | None:
        state = await self.call("session-state", (path, generation, number, lock), msgspec.Raw)
        return msgspec.msgpack.decode(state, type=bytes | None)


class Peers:
    """All other brokers; the `LinkUser` of the connections to them."""

    def __init__(self, me: Identity, names: Iterable[str]) -> None:
        self.me = me
        self.by_name: dict[str, Peer] = {name: Peer(name) for name in names if name != me.broker}
        self.service: PeerService | None = None
        """Serves the other brokers. Until there is one, they are not answered."""
        self.connected: Callable[[Peer], None] = _nothing
        """Called with a broker to which a connection was opened."""
        self.owns: Callable[[str, Mapping[str, int], Mapping[str, int]], None] = _ignore
        """Called with what another broker says that it owns (`Owns`)."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Each keeps the connection to one broker."""
        self._connect: Callable[[str, Callable[[], LinkProtocol]], Any] | None = None
        self._links: dict[PeerLink, None] = {}
        self._stopping = False

    # -- life ---------------------------------------------------------------------

    def serve(self, service: PeerService) -> None:
        """Serve the other brokers from now on."""
        self.service = service
        for link in self._links:
            if link.is_open:
                service.opened(link)

    def accept(self) -> LinkProtocol:
        """A link for a broker that calls."""
        return LinkProtocol(PeerLink(self.me, self), self._keep_link)

    def call_all(self, connect: Callable[[str, Callable[[], LinkProtocol]], Any]) -> None:
        """Keep connections to the brokers that this one calls. `connect` opens one to a broker."""
        self._connect = connect
        for name in self.by_name:
            self._call(name)

    def reaches(self, name: str) -> bool:
        """Whether this broker serves its partitions, and there is a connection to it."""
        peer = self.by_name.get(name)
        return peer is not None and peer.link is not None

    def add(self, name: str) -> None:
        """There is one more broker."""
        if name not in self.by_name and name != self.me.broker:
            self.by_name[name] = Peer(name)
            self._call(name)

    def _call(self, name: str) -> None:
        if self._connect is not None and self.me.broker < name:
            loop = asyncio.get_running_loop()
            self._tasks[name] = loop.create_task(self._keep(name, self._connect))

    def remove(self, name: str, reason: str) -> None:
        """A broker has left. Nobody waits for it any more."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        peer = self.by_name.get(name)
        if peer is not None:
            peer.hang_up(reason)
            peer.close()
            del self.by_name[name]

    async def _keep(self, name: str, connect: Callable[[str, Callable[[], LinkProtocol]], Any]) -> None:
        while not self._stopping:
            link = PeerLink(self.me, self, name)

            def made(link: PeerLink = link) -> LinkProtocol:
                return LinkProtocol(link, self._keep_link)

            with suppress(OSError):
                await connect(name, made)
                await asyncio.shield(link.closed)
            await asyncio.sleep(RECONNECT_S)

    def _keep_link(self, link: PeerLink) -> None:
        """There is a connection. A link whose connection was never made would not be closed either."""
        self._links[link] = None
        link.closed.add_done_callback(lambda _: self._links.pop(link, None))

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        links = list(self._links)
        for peer in self.by_name.values():
            peer.close()
            # After the last connection nothing is waited for.
            peer._cancel_grace()
        for link in links:
            link.close("this broker stops")

    # -- as the user of links -----------------------------------------------------

    def opened(self, link: PeerLink) -> None:
        peer = self.by_name.get(link.peer)
        if peer is None:
            link.close(f"there is no broker '{link.peer}' in this cluster")
            return
        logger.info("connected to the broker '%s'", link.peer)
        peer.connected(link)
        if self.service is not None:
            self.service.opened(link)
        self.connected(peer)

    def received(self, link: PeerLink, frame: Frame, item: Item) -> None:
        if isinstance(item, Serving):
            self.by_name[link.peer].serves(link)
        elif isinstance(item, Owns):
            self.by_name[link.peer].owned = item.stores
            self.owns(link.peer, item.stores, item.resumed)
        elif isinstance(item, _SUPPLIES):
            self.by_name[link.peer].received(frame, item)
        elif self.service is not None:
            self.service.received(link, frame, item)
        else:
            for request in requests_in(item):
                link.send(refusal_of(request, Unavailable("This broker is starting. Please retry.")))

    def frame_ended(self, link: PeerLink) -> None:
        if self.service is not None:
            self.service.frame_ended()

    def lost(self, link: PeerLink) -> None:
        if self.service is not None:
            self.service.lost(link)
        peer = self.by_name.get(link.peer)
        if peer is not None:
            peer.disconnected(link)


def _nothing(_: Peer) -> None:
    """Nobody needs the answer."""


def _ignore(broker: str, stores: Mapping[str, int], resumed: Mapping[str, int]) -> None:
    """Stores stay where they are."""
