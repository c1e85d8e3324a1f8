"""What a partition knows and its store does not: locks, the holders' rights to sessions, rests, and leases.

In a planned move, the owner of a partition sends this to the next owner, so that no client notices the move
(cluster/ownership.py). Times are given as the time that is left, because the clocks of two brokers need not
agree. Messages are identified by their numbers; everything else about them is in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from bendybus.domain.leases import HeldLease
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.run import Run
from bendybus.domain.session_commands import SessionLock
from bendybus.domain.sessions import Session
from bendybus.domain.shelf import Waiting
from bendybus.domain.stock import Stock
from bendybus.names import Instant, LockToken, SequenceNumber, SessionId

__all__ = ["HeldLock", "HeldSession", "VolatileState", "recall", "remember"]


class HeldLock(NamedTuple):
    """A message that is locked outside of any session."""

    number: SequenceNumber
    subqueue: SubQueue
    state: MessageState
    token: LockToken
    left_ms: int


class HeldSession(NamedTuple):
    """A session that has a holder, and the messages that are locked in it."""

    lock: SessionLock
    left_ms: int
    messages: list[tuple[SequenceNumber, MessageState, LockToken]]


@dataclass(frozen=True, slots=True)
class VolatileState:
    locks: list[HeldLock] = field(default_factory=list)
    """In the order in which they end."""
    sessions: list[HeldSession] = field(default_factory=list)
    resting: list[tuple[SequenceNumber, int]] = field(default_factory=list)
    """Messages that were abandoned with a delay, and what is left of it in milliseconds."""
    resting_sessions: list[tuple[SessionId, int]] = field(default_factory=list)
    leases: list[HeldLease] = field(default_factory=list)
    """The leases of the entity's consumers. The first partition has them (`Queue.lease`)."""

    @property
    def count(self) -> int:
        """The size of all this, which is sent in pieces."""
        in_sessions = sum(len(session.messages) for session in self.sessions)
        return (
            len(self.locks)
            + len(self.sessions)
            + in_sessions
            + len(self.resting)
            + len(self.resting_sessions)
            + len(self.leases)
        )

    def pieces(self, size: int) -> Iterator[VolatileState]:
        """The same as values of about this size, which can be recalled one after the other."""
        locks, resting = iter(self.locks), iter(self.resting)
        while page := list(islice(locks, size)):
            yield VolatileState(locks=page)
        while rests := list(islice(resting, size)):
            yield VolatileState(resting=rests)
        held: list[HeldSession] = []
        held_count = 0
        for session in self.sessions:
            held.append(session)
            held_count += 1 + len(session.messages)
            if held_count >= size:
                yield VolatileState(sessions=held)
                held, held_count = [], 0
        if held or self.resting_sessions or self.leases:
            yield VolatileState(sessions=held, resting_sessions=self.resting_sessions, leases=self.leases)


def remember(stock: Stock, at: Instant) -> VolatileState:
    """What would be lost with the partition's memory."""
    locks = [
        HeldLock(
            message.sequence_number,
            message.subqueue,
            message.state,
            message.lock_token,
            message.locked_until - at,
        )
        for message in stock.locks
        if message.lock_token is not None
    ]
    locks.sort(key=lambda lock: lock.left_ms)
    sessions: list[HeldSession] = []
    if stock.session_locks is not None:
        for session in stock.session_locks.held_sessions():
            assert session.lock is not None, "a session that is held has a lock"
            messages = [
                (message.sequence_number, message.state, token)
                for token, message in (session.locked_messages or {}).items()
            ]
            sessions.append(HeldSession(session.lock, session.locked_until - at, messages))
    resting: list[tuple[SequenceNumber, int]] = []
    resting_sessions: list[tuple[SessionId, int]] = []
    for until, what in stock.resting.ends():
        if isinstance(what, Session):
            if what.rests_until:
                resting_sessions.append((what.id, until - at))
        else:
            resting.append((what.sequence_number, until - at))
    return VolatileState(locks, sessions, resting, resting_sessions)


def recall(stock: Stock, state: VolatileState, at: Instant) -> None:
    """Continue with what was remembered: `at` is when it arrived. The stock has just been restored.

    A message that the store does not have any more is left out.
    """
    _recall_locks(stock, state.locks, at)
    for held in state.sessions:
        _recall_session(stock, held, at)
    main = stock.shelves[SubQueue.MAIN]
    left = dict(state.resting)
    for message in _take(main.available, left):
        stock.resting.add(message, Instant(at + left[message.sequence_number]))
    if stock.session_locks is not None:
        for session_id, left_ms in state.resting_sessions:
            session = stock.session_locks.sessions.find_or_make(session_id)
            until = max(Instant(at + left_ms), session.rests_until)
            stock.session_locks.rest(session, until)
            stock.resting.add(session, until)


def _recall_locks(stock: Stock, locks: Sequence[HeldLock], at: Instant) -> None:
    places: dict[tuple[SubQueue, MessageState], list[SequenceNumber]] = {}
    for lock in locks:
        places.setdefault((lock.subqueue, lock.state), []).append(lock.number)
    found: dict[SequenceNumber, Message] = {}
    for (subqueue, state), numbers in places.items():
        shelf = stock.shelves[subqueue]
        run = shelf.deferred if state is MessageState.DEFERRED else shelf.available
        found |= {message.sequence_number: message for message in _take(run, numbers)}
    stock.locks.resume(
        (found[lock.number], lock.token, Instant(at + lock.left_ms)) for lock in locks if lock.number in found
    )


def _recall_session(stock: Stock, held: HeldSession, at: Instant) -> None:
    locks = stock.session_locks
    if locks is None:
        return
    session = locks.sessions.find_or_make(held.lock.session_id)
    deferred = [number for number, state, _ in held.messages if state is MessageState.DEFERRED]
    active = [number for number, state, _ in held.messages if state is not MessageState.DEFERRED]
    found = {
        message.sequence_number: message
        for message in (
            *session.waiting.take_these(active),
            *stock.shelves[SubQueue.MAIN].deferred.take_these(deferred),
        )
    }
    messages = [(token, found[number]) for number, _, token in held.messages if number in found]
    locks.resume(session, held.lock, Instant(at + held.left_ms), messages)


def _take(waiting: Waiting, numbers: Iterable[SequenceNumber]) -> list[Message]:
    """Take messages from a shelf. Those of sessions are locked with their sessions only."""
    return waiting.take_these(numbers) if isinstance(waiting, Run) else []
