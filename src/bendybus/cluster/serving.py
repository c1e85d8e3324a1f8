"""Answers the requests of other brokers: commands to partitions here, reads and demands.

Commands go through `PartitionHost.submit` and `TopicHost.submit`, like those of clients here. So the same
guarantees hold for clients of other brokers: the reply is sent when it is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from bendybus import audit
from bendybus.broker.entities import Entities
from bendybus.broker.entity import Entity
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic import SendTarget
from bendybus.broker.transactions import commit_here
from bendybus.cluster.asked import AnswerTo, Gathering, taken_apart
from bendybus.cluster.detached import DetachedSessions
from bendybus.cluster.frames import Frame, FrameError, refusal_of
from bendybus.cluster.items import (
    Answer,
    Ask,
    Call,
    Commit,
    Demand,
    Figures,
    Item,
    LookUp,
    NewMessages,
    Owns,
    Payloads,
    Read,
    Returned,
    SelectiveDemand,
    Serving,
    SessionDemand,
    Status,
    StoredApart,
    Watch,
    kind_of,
)
from bendybus.cluster.lending import Lender
from bendybus.cluster.link import PeerLink
from bendybus.domain.commands import Command, Done, Enqueue, Enqueued, EnqueuedApart, Reply
from bendybus.domain.messages import SubQueue
from bendybus.domain.session_commands import AcceptSession, ReleaseSession, SessionAccepted, SessionLock
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    EntityNotFound,
    PartitionMoved,
    StoreUnavailable,
    Unavailable,
)
from bendybus.names import LockToken, PartitionNumber

__all__ = ["Calls", "Service"]

logger = logging.getLogger(__name__)

# Of the payloads in a reply to a peek. The other broker reads the rest in pages.
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024

Calls = dict[str, Callable[[PeerLink, Frame, Call], Awaitable[object]]]
"""Requests to the broker itself, by name."""


class Service:
    """Serves the requests of all other brokers."""

    def __init__(
        self, entities: Entities, calls: Calls, owned: Callable[[], dict[str, int]] | None = None
    ) -> None:
        """`owned`: the stores of this broker and their terms, if stores may pass to others."""
        self._entities = entities
        self._owned = owned
        self._lenders: dict[PeerLink, Lender] = {}
        self._detached = DetachedSessions(self._host, self._lenders)
        self._calls = {**calls, **self._detached.calls()}
        self._told: dict[Host[Any], Availability] = {}
        """What the other brokers know about partitions here."""
        self._gathering = Gathering()
        self._telling: asyncio.Handle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        for store in entities.stores:
            self.watch(store)

    def watch(self, store: AttachedStore) -> None:
        """Tell the others what changes in this store."""
        store.changes.listen(self._tell_soon)

    # -- connections --------------------------------------------------------------

    def opened(self, link: PeerLink) -> None:
        self._lenders[link] = Lender(link)
        link.send(Serving())
        if self._owned is not None:
            link.send(Owns(self._owned()))
        for entity in self._entities:
            self._tell_about(entity, [link])

    def frame_ended(self) -> None:
        """Everything that another broker said in one turn has been received."""
        self._gathering.submit_all()

    def lost(self, link: PeerLink) -> None:
        # The rest of its last frame could not be read.
        self._gathering.submit_all()
        lender = self._lenders.pop(link, None)
        if lender is not None:
            lender.close()
        self._detached.lost(link)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def entity_removed(self, entity: Entity[Any, Any, Any]) -> None:
        for host in entity.own.values():
            self._told.pop(host, None)
        if isinstance(entity, Queue):
            for lender in self._lenders.values():
                lender.forget_entity(entity)

    def ownership_changed(self, resumed: Mapping[str, int] | None = None) -> None:
        """Tell the others which stores this broker owns (`Owns`), and how their partitions are."""
        assert self._owned is not None, "stores stay where they are"
        for link in self._lenders:
            link.send(Owns(self._owned(), dict(resumed or {})))
        hosts = {host for entity in self._entities for host in entity.own.values()}
        for host in self._told.keys() - hosts:
            del self._told[host]
        self._tell_soon()

    def lend_session(self, broker: str, host: PartitionHost, queue: Queue, lock: SessionLock) -> None:
        """A receiver of this broker holds a session that the last owner of the partition has lent to it."""
        for link, lender in self._lenders.items():
            if link.peer == broker:
                lender.hold(host, queue, lock)

    # -- what has changed ---------------------------------------------------------

    def _tell_soon(self) -> None:
        if self._telling is None and self._lenders:
            self._telling = asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        for entity in self._entities:
            if any(self._told.get(host) is not host.availability for host in entity.own.values()):
                self._tell_about(entity, list(self._lenders))

    def _tell_about(self, entity: SendTarget, links: list[PeerLink]) -> None:
        by_availability: dict[Availability, list[int]] = {}
        for host in entity.own.values():
            self._told[host] = host.availability
            by_availability.setdefault(host.availability, []).append(host.number)
        for availability, numbers in by_availability.items():
            for link in links:
                link.send(Status(entity.path, entity.generation, numbers, availability.value))

    # -- requests -----------------------------------------------------------------

    def received(self, link: PeerLink, frame: Frame, item: Item) -> None:
        """A request or demand of another broker."""
        match item:
            case NewMessages():
                for request, number, command in frame.new_messages(item):
                    self._submit(link, request, item, number, command)
            case Ask():
                self._submit(link, item.id, item, item.number, frame.command(item))
            case Demand() | SessionDemand() | SelectiveDemand() | Watch():
                self._demand(link, item)
            case Read():
                self._read(link, item)
            case LookUp():
                self._look_up(link, item)
            case Commit():
                frame.keep()
                self._spawn(link, item.id, self._commit(link, frame, item))
            case Call():
                frame.keep()
                self._spawn(link, item.id, self._call(link, frame, item))
            case _:
                raise FrameError(f"a {type(item).__name__} that nobody expects")

    def _entity(self, path: str, generation: str) -> SendTarget:
        entity = self._entities.look_up(path)
        if entity is None or entity.generation != generation:
            raise EntityNotFound(path)
        return entity

    def _host(self, path: str, generation: str, number: int) -> tuple[SendTarget, Host[Any]]:
        entity = self._entity(path, generation)
        host: Host[Any] | None = entity.own.get(PartitionNumber(number))
        if host is None:
            raise PartitionMoved(f"Partition {number} of '{path}' is not owned by this broker.")
        return entity, host

    def _submit(
        self, link: PeerLink, request: int, to: Ask | NewMessages, number: int, command: Command
    ) -> None:
        """Give a command to a partition of the entity that `to` names."""
        try:
            entity, host = self._host(to.path, to.generation, number)
        except BrokerError as refusal:
            link.send(refusal_of(request, refusal))
            return
        if isinstance(command, ReleaseSession):
            self._lenders[link].forget(command.lock)
            if isinstance(host, PartitionHost):
                host.let_go_session(command.lock)
        done = AnswerTo(partial(self._answer, link, request, entity, host, command))
        if isinstance(command, Enqueue) and command.deliveries:
            done = taken_apart(host, command, done)
        self._gathering.submit(host, command, done)

    def _answer(
        self,
        link: PeerLink,
        request: int,
        entity: SendTarget,
        host: Host[Any],
        command: Command,
        reply: Reply | BrokerError,
    ) -> None:
        if not link.is_open:
            if isinstance(reply, SessionAccepted) and reply.lock is not None:
                host.submit(ReleaseSession(reply.lock), _ignore)
            return
        if isinstance(reply, BrokerError):
            link.send(refusal_of(request, reply))
            return
        if isinstance(reply, EnqueuedApart):
            refusals = [refusal_of(index, each) for index, each in reply.refused.items()]
            link.send(StoredApart(request, refusals))
            return
        if isinstance(reply, Enqueued) and link.joins_items and not reply.duplicates:
            link.send_stored(request, reply)
            return
        if (
            isinstance(command, AcceptSession)
            and isinstance(reply, SessionAccepted)
            and reply.lock is not None
        ):
            assert isinstance(entity, Queue) and isinstance(host, PartitionHost)
            self._lenders[link].hold(host, entity, reply.lock)
        link.send(Answer(request, kind_of(reply), link.writer.encoded(reply, REPLY_BYTES_MAX)))

    def _demand(self, link: PeerLink, item: Demand | SessionDemand | SelectiveDemand | Watch) -> None:
        try:
            queue = self._entity(item.path, item.generation)
        except EntityNotFound:
            # Its receivers are told when the other broker learns of the deletion.
            return
        if not isinstance(queue, Queue):
            raise FrameError(f"a demand for messages of '{item.path}', which has none to give")
        lender = self._lenders[link]
        if isinstance(item, SessionDemand):
            lender.demand_sessions(queue, item.exclusive, item.limit)
        elif isinstance(item, Watch):
            lender.watch(queue, SubQueue(item.subqueue))
        elif isinstance(item, SelectiveDemand):
            try:
                subqueue = SubQueue(item.subqueue)
                lender.demand_selected(queue, subqueue, item.receiver, item.selector, item.limit)
            except ArgumentError as refusal:
                raise FrameError(f"a selector that cannot be read: {refusal}") from None
        elif item.session is not None:
            lender.demand_in_session(LockToken(item.session), item.limit)
        else:
            lender.demand(queue, SubQueue(item.subqueue), item.limit)

    def _read(self, link: PeerLink, item: Read) -> None:
        try:
            _, host = self._host(item.path, item.generation, item.number)
        except BrokerError as refusal:
            link.send(refusal_of(item.id, refusal))
            return

        def read(payloads: list[bytes | None] | Exception) -> None:
            if isinstance(payloads, Exception):
                link.send(refusal_of(item.id, StoreUnavailable(f"{host}: {payloads}")))
                return
            spans = [None if each is None else link.writer.add_payload(each) for each in payloads]
            link.send(Payloads(item.id, spans))

        host.store.read(item.rows, read)

    def _look_up(self, link: PeerLink, item: LookUp) -> None:
        try:
            hosts = [self._host(item.path, item.generation, number)[1] for number in item.numbers]
        except BrokerError as refusal:
            link.send(refusal_of(item.id, refusal))
            return
        if item.token is not None:
            (host,) = hosts
            held = host.partition
            message = None if held is None else held.locked(LockToken(item.token))
            found = () if message is None else (message,)
            link.send(Returned(item.id, link.writer.encoded_messages(found)))
        else:
            link.send(Figures(item.id, [_figures(host) for host in hosts]))

    async def _commit(self, link: PeerLink, frame: Frame, item: Commit) -> None:
        work = [
            (self._host(ask.path, ask.generation, ask.number)[1], frame.command(ask)) for ask in item.work
        ]
        if item.only_checks:
            for host, command in work:
                host.check([command], host.now())
        else:
            await commit_here(work)
        link.send(Answer(item.id, kind_of(Done()), link.writer.encoded(Done())))

    async def _call(self, link: PeerLink, frame: Frame, item: Call) -> None:
        called = self._calls.get(item.name)
        if called is None:
            raise Unavailable(f"This broker does not know the request '{item.name}'; it may be older.")
        if item.actor is not None:
            by, peer, namespace = item.actor
            audit.enter(by=by, peer=peer, namespace=namespace)
        result = await called(link, frame, item)
        link.send(Returned(item.id, link.writer.encoded(result)))

    def _spawn(self, link: PeerLink, request: int, work: Coroutine[Any, Any, None]) -> None:
        async def answered() -> None:
            try:
                await work
            except BrokerError as refusal:
                link.send(refusal_of(request, refusal))
            except Exception:
                logger.exception("a request of the broker '%s' failed", link.peer)
                link.send(refusal_of(request, Unavailable("The request failed; the broker's log says why.")))

        task = asyncio.get_running_loop().create_task(answered())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def _figures(host: Host[Any]) -> tuple[int, int, list[tuple[int, int, int, int, int]]] | None:
    partition = host.partition
    if partition is None:
        return None
    counts: list[tuple[int, int, int, int, int]] = []
    if isinstance(host, PartitionHost):
        for subqueue in SubQueue:
            each = partition.counts(subqueue)
            counts.append((each.active, each.deferred, each.scheduled, each.locked, each.size_bytes))
    return partition.size_bytes, partition.scheduled_count, counts


def _ignore(_: object) -> None:
    """For commands whose reply is not needed."""
