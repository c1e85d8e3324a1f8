"""Partitions of other brokers, for the packages above (broker/partition_port.py).

A command becomes a request to the owner, and its reply comes back when it is durable there. Messages for
receivers are sent ahead, within a demand (supply.py). While the owner cannot be reached, commands wait for a
short time, as they do while a partition is being loaded. Then they are refused with an error that can be
retried. Messages without a key go to other partitions in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from bendybus.broker.entity import Entity
from bendybus.broker.holders import SessionHolder
from bendybus.broker.host import ignore
from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.mailbox import Leftovers, Mailbox, OnReply
from bendybus.broker.partition_port import OnEnded, OnPayloads, PartitionPort
from bendybus.broker.queue import Queue
from bendybus.broker.selection import Selection
from bendybus.cluster.answers import (
    RemoteFigures,
    answered,
    read_figures,
    read_locked,
    read_payloads,
    read_reply,
)
from bendybus.cluster.detached import receive_elsewhere
from bendybus.cluster.frames import FrameWriter, refuse_beyond_frame
from bendybus.cluster.items import Ask, Commit, LookUp, Read
from bendybus.cluster.new_messages import NewHead, enqueues_only, taken_apart
from bendybus.cluster.paged_read import PagedRead
from bendybus.cluster.selecting import RemoteScan
from bendybus.domain.commands import Command, Peek, Release, Reply
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import (
    ReleaseSession,
    SessionAccepted,
    SessionLock,
)
from bendybus.errors import (
    BrokerError,
    EntityNotFound,
    PartitionMoved,
    StoreUnavailable,
    Unavailable,
)
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber
from bendybus.store.protocol import nothing_at_hand

if TYPE_CHECKING:
    from bendybus.cluster.link import PeerLink
    from bendybus.cluster.peers import Peer
    from bendybus.cluster.supply import Supplier

__all__ = ["RemotePartition", "RemoteQueuePartition", "RemoteStore"]


class RemoteStore:
    """A messaging store of another broker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = StoreState.AVAILABLE


class RemotePartition:
    """A partition of any kind of entity: it takes commands."""

    def __init__(
        self, entity: Entity[Any, Any, Any], number: PartitionNumber, store: RemoteStore, peer: Peer
    ) -> None:
        self._entity = entity
        self.number = number
        self.store = store
        self._peer = peer
        self.availability = Availability.LOADING
        self.figures: RemoteFigures | None = None
        self._mailbox: Mailbox = []
        self._pass_on: Callable[[Command, OnReply], None] | None = None
        """What happens to commands once the partition has another owner."""
        self._unanswered = 0
        """How many commands the owner has not answered."""
        self._returned: Mailbox = []
        """Commands that the owner got when it was not the owner any more."""
        self._behind: RemotePartition | None = None
        """What stood for the partition before, while not all of its commands are answered. Ours wait, because
        some of its commands may come back."""

    def __repr__(self) -> str:
        return f"{self._entity.path}[{self.number}] at {self._peer.name}"

    @property
    def path(self) -> EntityPath:
        return self._entity.path

    @property
    def current(self) -> Any:
        """The object that represents the partition now: another one, once it has another owner."""
        return self._entity.hosts[self.number]

    def now(self) -> Instant:
        return self._entity.now()

    # -- the owner ----------------------------------------------------------------

    def set_availability(self, availability: Availability) -> None:
        """The owner, or the connection to it, says what happens to commands now."""
        if availability is self.availability:
            return
        self.availability = availability
        mailbox, self._mailbox = self._mailbox, []
        for command, done in mailbox:
            self.submit(command, done)
        self._entity.availability_changed(self)

    def give_up(self, pass_on: Callable[[Command, OnReply], None]) -> Leftovers:
        """Another broker owns the partition from now on.

        `pass_on` gets the commands of callers that have not noticed.
        """
        self.availability = Availability.UNAVAILABLE
        self._pass_on = pass_on
        sessions, unsent = self._peer.release(self)
        mailbox, self._mailbox = self._mailbox, []
        return Leftovers(mailbox, sessions, unsent)

    def wait_behind(self, former: RemotePartition) -> None:
        """This object represents the partition now. Commands for the former owner come first."""
        self._behind = former if former._unanswered else former._behind

    def _go_on(self, returned: Mailbox) -> None:
        """The former owner has answered everything, or has returned it."""
        self._behind = None
        mailbox, self._mailbox = returned + self._mailbox, []
        for command, done in mailbox:
            self.submit(command, done)

    def _unavailable(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"Partition {self.number} of '{self.path}' is unavailable: {self._peer.absence}. "
            "Please retry the operation."
        )

    # -- commands -----------------------------------------------------------------

    def submit(self, command: Command, done: OnReply) -> None:
        link = self._peer.link
        if self._entity.deleted:
            done(EntityNotFound(self.path))
        elif self._pass_on is not None:
            self._pass_on(command, done)
        elif self._behind is not None:
            self._mailbox.append((command, done))
        elif link is not None:
            self._unanswered += 1
            # If the partition is being loaded, its owner lets the command wait.
            replied = partial(self._replied, command, done)
            link.request(self._making(link, command), read_reply, replied)
        elif self.availability is Availability.LOADING:
            self._mailbox.append((command, done))
        else:
            done(self._unavailable())

    def _making(self, link: PeerLink, command: Command) -> Callable[[int], Ask | None]:
        """What makes the request for a command, once it has a number."""
        if link.joins_items and enqueues_only(command):
            new = taken_apart(command.messages)
            if new is not None:
                return partial(self._add_new_messages, link.writer, *new, command.deliveries)
        return partial(self._ask, link.writer.command, command)

    def _add_new_messages(
        self,
        writer: FrameWriter,
        heads: Sequence[NewHead],
        payloads: Sequence[bytes],
        deliveries: Sequence[int],
        request: int,
    ) -> None:
        generation = self._entity.generation
        writer.add_new_messages(request, self.path, generation, self.number, heads, payloads, deliveries)

    def _ask(self, command_item: Callable[..., Ask], command: Command, request: int) -> Ask:
        return command_item(request, self.path, self._entity.generation, self.number, command)

    def _replied(self, command: Command, done: OnReply, reply: Reply | BrokerError) -> None:
        self._unanswered -= 1
        if self._pass_on is None:
            done(reply)
            return
        if isinstance(reply, PartitionMoved):
            # The owner had given the partition up before the command arrived, and has told us so since.
            self._returned.append((command, done))
        else:
            done(reply)
        if not self._unanswered:
            returned, self._returned = self._returned, []
            current = self.current
            if isinstance(current, RemotePartition):
                current._go_on(returned)
            else:
                for each in returned:
                    self._pass_on(*each)

    async def ask(self, command: Command) -> Reply:
        return await answered(partial(self.submit, command))

    async def commit(
        self, work: Sequence[tuple[PartitionPort, Command]], *, only_checks: bool = False
    ) -> None:
        """All partitions of a transaction are in one store, so they have one owner, which commits."""
        refuse_beyond_frame([command for _, command in work])
        await self._owned()
        if self._pass_on is not None:
            raise PartitionMoved(f"Partition {self.number} of '{self.path}' has another owner now.")
        link = self._peer.link
        if link is None:
            raise self._unavailable()

        def make(request: int) -> Commit:
            asks: list[Ask] = []
            for port, command in work:
                assert isinstance(port, RemotePartition)
                asks.append(port._ask(link.writer.command, command, 0))
            return Commit(request, asks, only_checks)

        await answered(partial(link.request, make, read_reply))

    def commit_at_once(self, work: Sequence[tuple[PartitionPort, Command]], ended: OnEnded) -> bool:
        return False

    async def _owned(self) -> None:
        """Wait for an owner, as commands do."""
        if self._peer.link is None and self.availability is Availability.LOADING:
            with suppress(BrokerError):
                await self.ask(Peek(SequenceNumber(0), 0))

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Its owner checks them when they are committed."""

    async def loaded(self) -> None:
        """Nothing to do: what is asked waits for the owner."""

    async def refresh(self) -> None:
        link = self._peer.link
        if link is None or self.availability is Availability.UNAVAILABLE:
            self.figures = None
            return
        make = partial(self._look_up, None)
        try:
            self.figures = await answered(partial(link.request, make, read_figures))
        except BrokerError:
            self.figures = None

    def _look_up(self, token: LockToken | None, request: int) -> LookUp:
        return LookUp(request, self.path, self._entity.generation, [self.number], token)


class RemoteQueuePartition(RemotePartition):
    """A partition that can be received from."""

    def __init__(
        self, queue: Queue, number: PartitionNumber, store: RemoteStore, peer: Peer, supplier: Supplier
    ) -> None:
        super().__init__(queue, number, store, peer)
        self._supplier = supplier

    # -- receiving ----------------------------------------------------------------

    def available(self, subqueue: SubQueue) -> int:
        return self._supplier.available(self.number, subqueue)

    def is_unknown(self, subqueue: SubQueue) -> bool:
        return self.availability is Availability.LOADING or self._supplier.is_unknown(subqueue)

    async def known(self, subqueue: SubQueue) -> None:
        await self._supplier.known(subqueue)

    def lock(self, count: int, size_max: int, subqueue: SubQueue) -> list[Message]:
        self._entity.accessed_at = self._entity.now()
        return self._supplier.take(self.number, count, size_max, subqueue)

    def held_among(self, tokens: Sequence[LockToken], at: Instant) -> set[LockToken]:
        """All of them, as far as is known here: the owner checks when they are settled."""
        return set(tokens)

    def holds(self, token: LockToken, at: Instant) -> bool:
        return True

    async def find_locked(self, token: LockToken) -> Message | None:
        if self._pass_on is not None:
            elsewhere: Message | None = await self.current.find_locked(token)
            return elsewhere
        link = self._peer.link
        if link is None:
            raise self._unavailable()
        return await answered(partial(link.request, partial(self._look_up, token), read_locked))

    def release(self, tokens: Sequence[LockToken]) -> None:
        self.submit(Release(tokens), ignore)

    def scan(self, subqueue: SubQueue, selection: Selection, wake: Callable[[], None]) -> RemoteScan:
        return self._supplier.selections.scan(self.number, subqueue, selection, wake)

    # -- payloads -----------------------------------------------------------------

    @property
    def removes_promptly(self) -> bool:
        return self.availability is Availability.AVAILABLE

    at_hand = nothing_at_hand

    def read(self, messages: Sequence[Message], done: OnPayloads) -> None:
        def read(payloads: list[bytes | None] | BrokerError) -> None:
            if isinstance(payloads, PartitionMoved) and self._pass_on is not None:
                self.current.read(messages, done)
            else:
                done(payloads)

        if self._pass_on is not None:
            self.current.read(messages, done)
        else:
            PagedRead(messages, self._read_rows, read).read_next()

    def read_to_remove(self, messages: Sequence[Message], done: OnPayloads) -> None:
        self.read(messages, done)

    def _read_rows(self, rows: list[int], done: OnPayloads) -> None:
        if (link := self._peer.link) is None:
            done(self._unavailable())
            return
        link.request(
            lambda request: Read(request, self.path, self._entity.generation, self.number, rows),
            partial(read_payloads, len(rows)),
            done,
        )

    async def payloads(self, messages: Sequence[Message]) -> list[bytes | None]:
        return await answered(partial(self.read, messages))

    # -- sessions -----------------------------------------------------------------

    def accept_next_session(self, *, exclusive: bool = True) -> SessionAccepted | None:
        self._entity.accessed_at = self._entity.now()
        return self._supplier.next_session(self.number, exclusive=exclusive)

    def hold_session(self, lock: SessionLock, holder: SessionHolder) -> None:
        self._supplier.sessions.hold(self.number, lock, holder)

    @property
    def keeps_sessions(self) -> bool:
        """Whether a session of the former owner can continue. Sessions end with a connection."""
        return self._peer.is_nobody or self._peer.link is not None

    def let_go_session(self, lock: SessionLock) -> None:
        self._supplier.sessions.let_go(lock)

    def release_session(self, lock: SessionLock) -> None:
        """A session that was locked for nobody."""
        self.submit(ReleaseSession(lock), ignore)

    def _go_on(self, returned: Mailbox) -> None:
        super()._go_on(returned)
        self._supplier.sessions.wake(self.number)

    def lock_in_session(self, lock: SessionLock, count: int, size_max: int) -> list[Message]:
        self._entity.accessed_at = self._entity.now()
        if self._behind is not None:
            # Messages that nobody has taken are given back first.
            return []
        return self._supplier.take_in_session(lock, count, size_max)

    def lock_in_sessions(
        self, wanted: Sequence[tuple[SessionLock, int]], size_max: int
    ) -> tuple[list[tuple[SessionLock, list[Message], bool]], int]:
        locked = [(lock, self.lock_in_session(lock, count, size_max)) for lock, count in wanted]
        return [(lock, given, self.waiting_in_session(lock)) for lock, given in locked], len(wanted)

    def waiting_in_session(self, lock: SessionLock) -> bool:
        session = self._supplier.sessions.get(lock.token)
        return session is not None and not session.is_empty

    def session_is_unknown(self, lock: SessionLock) -> bool:
        session = self._supplier.sessions.get(lock.token)
        return session is not None and session.is_unknown

    async def session_state(self, lock: SessionLock) -> bytes | None:
        await self._owned()
        try:
            return await self._peer.session_state(self.path, self._entity.generation, self.number, lock)
        except Unavailable:
            if self._pass_on is None:
                raise
        elsewhere: bytes | None = await self.current.session_state(lock)
        return elsewhere

    async def detach_session(self, lock: SessionLock) -> None:
        await self._ask_owner("detach-session", lock, lambda port: port.detach_session(lock))

    async def receive_in_session(self, lock: SessionLock, timeout_s: float) -> Message | None:
        await self._owned()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        of_session = self.path, self._entity.generation, self.number, lock
        try:
            return await receive_elsewhere(self._peer, of_session, timeout_s, self.release)
        except Unavailable:
            if self._pass_on is None:
                raise
        elsewhere: Message | None = await self.current.receive_in_session(lock, deadline - loop.time())
        return elsewhere

    # -- leases -------------------------------------------------------------------

    async def lease(self, request: LeaseRequest) -> None:
        await self._ask_owner("consumer-lease", request, lambda port: port.lease(request))

    async def _ask_owner(self, name: str, what: object, again: Callable[[Any], Awaitable[None]]) -> None:
        """Ask the owner itself. `again`: how to ask the next owner, if this one is not the owner any more.

        Repeating the request must change nothing: the former owner may have done it.
        """
        await self._owned()
        try:
            body = self.path, self._entity.generation, self.number, what
            await self._peer.call(name, body, type(None))
        except Unavailable:
            if self._pass_on is None:
                raise
            await again(self.current)
