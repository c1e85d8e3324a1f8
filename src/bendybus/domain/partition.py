"""A partition: one ordered share of an entity's messages, as a pure state machine.

`apply(command, at)` returns a reply and the effects that must follow. A command that raises has changed
nothing. A message is in exactly one part at any moment: with the intake until it is durable (intake.py), then
in the stock, on a shelf or locked (stock.py). What each command does: handlers/. Which partition a message
goes to: routing.py. What a host does with the effects: effects.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from bendybus.domain.changes import Changes
from bendybus.domain.commands import (
    Abandon,
    CancelScheduled,
    Command,
    Complete,
    DeadLetter,
    Defer,
    Enqueue,
    Release,
    Reply,
)
from bendybus.domain.effects import Effect
from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import NEVER
from bendybus.domain.handlers import HANDLERS
from bendybus.domain.handlers.sessions import check_state, refuse_sessionless
from bendybus.domain.handlers.settling import refuse_dead_letters, refuse_large_amendments, refuse_lost
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.session_commands import SessionLock, SetSessionState
from bendybus.domain.shelf import Counts
from bendybus.domain.tally import Tally
from bendybus.domain.volatile import VolatileState, recall, remember
from bendybus.errors import InvalidOperation
from bendybus.names import Instant, LockToken, PartitionNumber, SequenceNumber, SessionId

__all__ = ["Partition"]


class Partition:
    __slots__ = ("_parts", "number")

    def __init__(
        self,
        number: PartitionNumber,
        description: QueueDescription,
        next_sequence_number: SequenceNumber | None = None,
        partition_count: int = 1,
        tally: Tally | None = None,
    ) -> None:
        """`tally` counts what the partition does; the host has one that outlives the partition."""
        self.number = number
        self._parts = Parts(number, description, next_sequence_number, partition_count, tally or Tally())

    @property
    def description(self) -> QueueDescription:
        return self._parts.stock.description

    @description.setter
    def description(self, description: QueueDescription) -> None:
        """Set when the entity is updated. The new description applies from the next command on."""
        self._parts.stock.description = self._parts.intake.description = description

    @property
    def next_sequence_number(self) -> SequenceNumber:
        return self._parts.intake.next_sequence_number

    def restore(
        self,
        messages: Iterable[Message],
        identities: Iterable[tuple[Instant, bytes]] = (),
        transferred: Mapping[str, SequenceNumber] | None = None,
        sessions: Iterable[tuple[SessionId, int, Instant]] = (),
    ) -> None:
        """Start with the contents of a store: all messages are durable and none is locked.

        `sessions`: the sessions that have a state, with its size and the time when it was set.
        """
        messages = list(messages)
        self._parts.stock.restore(messages, sessions)
        last = max((message.sequence_number for message in messages), default=SequenceNumber(0))
        self._parts.intake.restore(last, identities, transferred or {})
        self._parts.completed.restore()
        amendments = [message.amendment for message in messages if message.amendment is not None]
        self._parts.vacant.add_each(
            each.earlier_number for each in amendments if each.earlier_number is not None
        )

    def remember(self, at: Instant) -> VolatileState:
        """What the store does not know, for the broker that has the partition next."""
        return remember(self._parts.stock, at)

    def recall(self, state: VolatileState, at: Instant) -> None:
        """Continue with what another broker remembered. Called after `restore`, before any command."""
        recall(self._parts.stock, state, at)

    def next_deadline(self) -> Instant | None:
        """When a `Tick` may next have something to do."""
        parts = self._parts
        deadline = min(
            parts.stock.earliest_lock_end,
            parts.expiry.next_sweep,
            parts.intake.next_deadline(),
            parts.completed.next_forgetting,
        )
        return None if deadline >= NEVER else deadline

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota (`Stock.size_bytes`). Completed messages have their own limits."""
        return self._parts.stock.size_bytes

    def counts(self, subqueue: SubQueue = SubQueue.MAIN) -> Counts:
        return self._parts.stock.shelves[subqueue].counts(self._parts.stock.locked_messages(subqueue))

    @property
    def scheduled_count(self) -> int:
        return len(self._parts.stock.shelves[SubQueue.MAIN].scheduled)

    @property
    def session_counts(self) -> tuple[int, int] | None:
        """How many sessions have a holder, and how many wait for one; None without sessions."""
        locks = self._parts.stock.session_locks
        return None if locks is None else (locks.held, locks.sessions.offered)

    def available(self, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many messages can be locked, including some that may have expired.

        With sessions: how many sessions have messages and no holder.
        """
        return self._parts.stock.available(subqueue)

    @property
    def departing(self) -> bool:
        """Whether messages are in the outbox, or in a commit that puts them there."""
        return bool(self._parts.outbox.arriving or self._parts.stock.available(SubQueue.OUTBOX))

    def fitting(self, count: int, size_max: int, subqueue: SubQueue = SubQueue.MAIN) -> int:
        """How many of the oldest `count` messages fit into `size_max` bytes; at least one, if any."""
        return self._parts.stock.shelves[subqueue].available.fitting(count, size_max)

    def waiting(
        self, start: SequenceNumber, count: int, size_max: int, subqueue: SubQueue = SubQueue.MAIN
    ) -> list[Message]:
        """Up to `count` available messages from this number upwards, without locking them.

        They have at most `size_max` bytes in total, but the first is returned even if it is larger.
        """
        messages = self._parts.stock.shelves[subqueue].available.starting_at(start, count)
        fitting = bisect_right(list(accumulate(message.size for message in messages)), size_max)
        return messages[: max(1, fitting)]

    def find_waiting(
        self, numbers: Iterable[SequenceNumber], subqueue: SubQueue = SubQueue.MAIN
    ) -> list[Message]:
        """Those of these messages that are available, without locking them."""
        available = self._parts.stock.shelves[subqueue].available
        return [message for message in map(available.find, numbers) if message is not None]

    def following(self, locked: Sequence[Message], count: int) -> list[Message]:
        """Up to `count` messages that will probably be locked after these: with sessions, those of the next
        sessions."""
        stock = self._parts.stock
        last = locked[-1]
        if stock.session_locks is not None and last.subqueue is SubQueue.MAIN:
            return stock.session_locks.sessions.first_offered(count)
        start = SequenceNumber(last.sequence_number + 1)
        return stock.shelves[last.subqueue].available.starting_at(start, count)

    def fitting_in_session(self, lock: SessionLock, count: int, size_max: int) -> int:
        """`fitting` for the messages of a session; 0 if its lock is lost."""
        locks = self._parts.stock.session_locks
        session = None if locks is None else locks.find_held(lock)
        if session is None or session.rests_until:
            return 0
        return session.waiting.fitting(count, size_max)

    def fitting_in_sessions(
        self, wanted: Sequence[tuple[SessionLock, int]], size_max: int
    ) -> tuple[list[tuple[SessionLock, int]], int, int]:
        """How many of the messages wanted in each session fit into `size_max` bytes together.

        Returns the sessions with at least one, the number of messages, and how many sessions were looked at:
        fewer than all, if what they have is more than fits. The first session with messages has at least one.
        """
        locks = self._parts.stock.session_locks
        fitting: list[tuple[SessionLock, int]] = []
        total = 0
        if locks is None:
            return fitting, 0, len(wanted)
        for position, (lock, most) in enumerate(wanted):
            session = locks.find_held(lock)
            if session is None or session.rests_until or not session.waiting:
                continue
            if size_max <= 0:
                return fitting, total, position
            count, size = session.waiting.fitting_size(most, size_max)
            if size > size_max and fitting:
                return fitting, total, position
            size_max -= size
            total += count
            fitting.append((lock, count))
        return fitting, total, len(wanted)

    def has_session(self, lock: SessionLock) -> bool:
        """Whether the session is held under this lock. The lock may have expired."""
        locks = self._parts.stock.session_locks
        return locks is not None and locks.find_held(lock) is not None

    def locked(self, token: LockToken) -> Message | None:
        """The message that is locked under this token. The lock may have expired."""
        return self._parts.stock.locked(token)

    def held_among(self, tokens: Sequence[LockToken], at: Instant) -> set[LockToken]:
        """Those of these tokens under which a message is locked."""
        return self._parts.stock.held_among(tokens, at)

    def confirmed(self) -> Iterator[Message]:
        """All durable messages."""
        yield from self._parts.stock
        yield from self._parts.intake.activated

    def apply(self, command: Command, at: Instant) -> tuple[Reply, list[Effect]]:
        changes = Changes()
        reply = HANDLERS[type(command)](self._parts, command, at, changes)
        return reply, changes.effects()

    def check(self, commands: Sequence[Command], at: Instant) -> None:
        """Raise if one of these commands of a transaction cannot be applied at this time (P-23).

        If this returns, all of them can be applied.
        """
        stock = self._parts.stock
        arriving_bytes = 0
        cancelled: set[SequenceNumber] = set()
        for command in commands:
            match command:
                case Enqueue(messages=messages):
                    if stock.session_locks is not None and command.destination is None:
                        refuse_sessionless(stock, messages)
                    arriving_bytes += sum(message.size for message in messages)
                case Complete(lock_tokens=tokens) | Release(lock_tokens=tokens):
                    refuse_lost(stock, tokens, at)
                case (
                    Abandon(lock_tokens=tokens, properties=properties)
                    | Defer(lock_tokens=tokens, properties=properties)
                ):
                    refuse_lost(stock, tokens, at)
                    refuse_large_amendments(stock, tokens, properties)
                case DeadLetter(lock_tokens=tokens, properties=properties):
                    refuse_lost(stock, tokens, at)
                    refuse_dead_letters(stock, tokens, at)
                    refuse_large_amendments(stock, tokens, properties)
                case CancelScheduled(sequence_numbers=numbers):
                    self._parts.intake.find_scheduled(numbers, cancelled)
                    cancelled.update(numbers)
                case SetSessionState(lock=lock, state=state) if stock.session_locks is not None:
                    arriving_bytes += check_state(stock, lock, state, at)
                case _:
                    raise InvalidOperation(f"{type(command).__name__} cannot be part of a transaction.")
        if arriving_bytes:
            self._parts.intake.refuse_beyond_quota(stock.size_bytes, arriving_bytes)
