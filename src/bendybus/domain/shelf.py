"""A shelf: the unlocked messages of one sub-queue, each in the run of its state.

A locked message is on no shelf: the lock table has it (locks.py), or its session (session_locks.py). It comes
back to the shelf and the run that its `subqueue` and `state` name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Protocol

from bendybus.domain.messages import Message, MessageState
from bendybus.domain.run import Run
from bendybus.names import SequenceNumber
from bendybus.session_ids import OneSession

__all__ = ["Counts", "Shelf", "Waiting"]

_number: Final = attrgetter("sequence_number")


@dataclass(frozen=True, slots=True)
class Counts:
    """The contents of a sub-queue. The states add up to the total; `locked` is how many of them are locked.

    Messages that are not confirmed count only in `size_bytes`, for the quota.
    """

    active: int
    deferred: int
    scheduled: int
    locked: int
    size_bytes: int


class Waiting(Protocol):
    """Messages that wait in one state: one run of them, or one for each session (sessions.py)."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Message]: ...
    def extend(self, messages: Iterable[Message]) -> None: ...
    def insert(self, messages: Iterable[Message]) -> None: ...
    def take(self, count: int) -> list[Message]: ...
    def fitting(self, count: int, size_max: int) -> int: ...
    def replace(self, messages: list[Message]) -> None: ...
    def starting_at(self, sequence_number: SequenceNumber, count: int) -> list[Message]: ...
    def in_session(self, wanted: OneSession, start: SequenceNumber) -> Iterator[Message]: ...
    def find(self, sequence_number: SequenceNumber) -> Message | None: ...
    def remove(self, message: Message) -> None: ...
    def discard(self, messages: list[Message]) -> None: ...


class Shelf:
    __slots__ = ("_runs", "available", "deferred", "scheduled", "size_bytes")

    def __init__(self, available: Waiting | None = None) -> None:
        self.available: Waiting = Run() if available is None else available
        """Active and free to be locked, oldest first (P-26)."""
        self.deferred = Run()
        self.scheduled = Run()
        self.size_bytes = 0
        """The size of this sub-queue, including locked and unconfirmed messages and session states."""
        self._runs: dict[MessageState, Waiting] = {
            MessageState.ACTIVE: self.available,
            MessageState.DEFERRED: self.deferred,
            MessageState.SCHEDULED: self.scheduled,
        }

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._runs.values())

    def put(self, state: MessageState, messages: Iterable[Message]) -> None:
        self._runs[state].insert(messages)

    def peek(self, start: SequenceNumber, count: int, locked: Iterable[Message]) -> list[Message]:
        """The first `count` messages from `start` upwards, in any state. `locked`: those that are locked."""
        candidates = nsmallest(count, (each for each in locked if each.sequence_number >= start), key=_number)
        for run in self._runs.values():
            candidates += run.starting_at(start, count)
        candidates.sort(key=_number)
        return candidates[: max(0, count)]

    def peek_session(
        self, wanted: OneSession, start: SequenceNumber, count: int, locked: Iterable[Message]
    ) -> list[Message]:
        """The same for one session."""
        candidates = [
            each for each in locked if each.sequence_number >= start and wanted.includes(each.session_id)
        ]
        for run in self._runs.values():
            candidates += islice(run.in_session(wanted, start), max(0, count))
        candidates.sort(key=_number)
        return candidates[: max(0, count)]

    def counts(self, locked: Iterable[Message]) -> Counts:
        on_loan = [message.state for message in locked]
        return Counts(
            active=len(self.available) + on_loan.count(MessageState.ACTIVE),
            deferred=len(self.deferred) + on_loan.count(MessageState.DEFERRED),
            scheduled=len(self.scheduled),
            locked=len(on_loan),
            size_bytes=self.size_bytes,
        )
