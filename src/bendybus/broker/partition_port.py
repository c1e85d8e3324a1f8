"""The interface between a partition and its users: the gateway, REST, forwarding, transactions.

A partition takes commands, which are values (domain/commands.py), and answers each with a reply or an error.
It informs receivers of three things: messages became available (`Queue.wake`), a session has messages, and a
session is lost (`SessionHolder`). Payloads are read by message. Users of a partition rely on nothing else, so
they need not know which broker owns it.

The owner's implementations are `PartitionHost` and `TopicHost`; calls to them go straight to the partition.
A partition of another broker is `RemotePartition` (cluster/remote.py). Only code of this package that keeps,
moves, empties or forwards what the broker owns uses hosts: it finds them in `Entity.own`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from bendybus.broker.holders import SessionHolder
from bendybus.broker.lifecycle import Availability, StoreState
from bendybus.broker.mailbox import OnReply
from bendybus.broker.scans import PartitionScan
from bendybus.broker.selection import Selection
from bendybus.domain.commands import Command, Reply
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import SessionAccepted, SessionLock
from bendybus.domain.shelf import Counts
from bendybus.errors import BrokerError
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber

__all__ = [
    "Figures",
    "OnEnded",
    "OnPayloads",
    "PartitionPort",
    "PartitionStatus",
    "QueueFigures",
    "ReceivingPort",
    "StoreView",
]

OnEnded: TypeAlias = Callable[[BrokerError | None], None]
"""Called when a transaction is durable, or with the error that keeps it from that."""

OnPayloads: TypeAlias = Callable[[list[bytes | None] | BrokerError], None]
"""Called with the payload of each message, None for one that is gone."""


class StoreView(Protocol):
    """What users of a partition may know about its messaging store."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> StoreState: ...


class Figures(Protocol):
    """Sizes and counts of a partition, for people and for quotas."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def scheduled_count(self) -> int: ...


class QueueFigures(Figures, Protocol):
    def counts(self, subqueue: SubQueue) -> Counts: ...


class PartitionStatus(Protocol):
    number: PartitionNumber
    availability: Availability
    """What happens to a command that is submitted now."""


class PartitionPort(PartitionStatus, Protocol):
    """A partition that takes commands, of any kind of entity."""

    @property
    def path(self) -> EntityPath: ...
    @property
    def store(self) -> StoreView: ...
    @property
    def figures(self) -> Figures | None:
        """None while they are unknown. Those of a partition elsewhere are as of `Entity.refresh`."""

    @property
    def current(self) -> PartitionPort:
        """The object that represents the partition now: another one, once another broker owns it."""

    def now(self) -> Instant:
        """The time in its namespace."""

    def submit(self, command: Command, done: OnReply) -> None:
        """Apply a command. `done` is called, perhaps before this returns, with the reply or the error."""

    async def ask(self, command: Command) -> Reply:
        """`submit` for callers that can wait. Raises the error."""

    async def loaded(self) -> None:
        """Return once the partition is not being loaded."""

    async def refresh(self) -> None:
        """Bring `figures` up to date."""

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Raise if it is known here that these commands of a transaction cannot be applied."""

    async def commit(
        self, work: Sequence[tuple[PartitionPort, Command]], *, only_checks: bool = False
    ) -> None:
        """Apply commands as one commit. Their partitions are in the store of this one (transactions.py).

        `only_checks`: raise if they cannot be applied, and leave it at that.
        """

    def commit_at_once(self, work: Sequence[tuple[PartitionPort, Command]], ended: OnEnded) -> bool:
        """`commit` if it has to wait for nothing but the store. False: nothing has happened; use `commit`."""


class ReceivingPort(PartitionPort, Protocol):
    """A partition of a queue or subscription. Methods that lock return what is available at once."""

    @property
    def figures(self) -> QueueFigures | None: ...

    # -- receiving ----------------------------------------------------------------

    def available(self, subqueue: SubQueue) -> int:
        """How many messages, or how many sessions, could be locked now."""

    def is_unknown(self, subqueue: SubQueue) -> bool:
        """Whether another broker is being asked what the partition has. Its answer wakes the receivers."""

    async def known(self, subqueue: SubQueue) -> None:
        """Return once another broker has answered what the partition has."""

    def lock(self, count: int, size_max: int, subqueue: SubQueue) -> list[Message]:
        """Peek-lock up to `count` messages with at most `size_max` bytes; one however large it is."""

    def held_among(self, tokens: Sequence[LockToken], at: Instant) -> set[LockToken]:
        """Those of these tokens under which a message is locked, as far as is known here."""

    def holds(self, token: LockToken, at: Instant) -> bool:
        """`held_among` for one token."""

    async def find_locked(self, token: LockToken) -> Message | None:
        """The message that is locked under this token."""

    def release(self, tokens: Sequence[LockToken]) -> None:
        """Return messages that were locked and never sent."""

    def scan(self, subqueue: SubQueue, selection: Selection, wake: Callable[[], None]) -> PartitionScan:
        """For a receiver with a selector. `wake` is called when another broker has sent matches."""

    # -- payloads -----------------------------------------------------------------

    def at_hand(self, messages: Sequence[Message]) -> list[bytes] | None:
        """The payloads of these messages, which are locked, if none of them has to be read."""

    @property
    def removes_promptly(self) -> bool:
        """Whether a removal should not take long. If not, `read_to_remove` finds out."""

    def read(self, messages: Sequence[Message], done: OnPayloads) -> None:
        """The payloads of these messages, from memory or from the store."""

    def read_to_remove(self, messages: Sequence[Message], done: OnPayloads) -> None:
        """`read` that answers only once the store is known to commit."""

    async def payloads(self, messages: Sequence[Message]) -> list[bytes | None]:
        """`read` for callers that can wait."""

    # -- sessions -----------------------------------------------------------------

    def accept_next_session(self, *, exclusive: bool = True) -> SessionAccepted | None:
        """Lock the next free session with messages, if there is one at once."""

    def hold_session(self, lock: SessionLock, holder: SessionHolder) -> None:
        """Tell this holder about messages in the session, and when the session is lost."""

    def let_go_session(self, lock: SessionLock) -> None:
        """Tell the holder of this session nothing more."""

    async def detach_session(self, lock: SessionLock) -> None:
        """The client that has accepted this session presents the lock with each request, whichever broker it
        reaches. So the session does not end with a connection (detached_sessions.py)."""

    async def receive_in_session(self, lock: SessionLock, timeout_s: float) -> Message | None:
        """Lock the next message of a session that was detached, or None if there is none within this time.
        `SessionLockLost` if the lock has ended. May be cancelled."""

    def lock_in_session(self, lock: SessionLock, count: int, size_max: int) -> list[Message]:
        """`lock` for the holder of a session; nothing if the session is lost."""

    def lock_in_sessions(
        self, wanted: Sequence[tuple[SessionLock, int]], size_max: int
    ) -> tuple[list[tuple[SessionLock, list[Message], bool]], int]:
        """`lock_in_session` for several sessions, each with how many messages are wanted.

        Returns the messages of the sessions that have some, each with whether there are more; and how many of
        the sessions were asked. The others come when there is room: all have `size_max` bytes together.
        """

    def waiting_in_session(self, lock: SessionLock) -> bool:
        """Whether there are more messages for the holder of a session."""

    def session_is_unknown(self, lock: SessionLock) -> bool:
        """Whether it is not known yet which messages there are for the holder of a session."""

    async def session_state(self, lock: SessionLock) -> bytes | None:
        """The state of a session, for its holder."""

    # -- leases -------------------------------------------------------------------

    async def lease(self, request: LeaseRequest) -> None:
        """Serve a consumer's request for a lease of the queue. Only the first partition is asked."""
