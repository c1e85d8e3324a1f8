"""Resting: messages that were abandoned with a delay, and sessions whose next message was.

A resting message is on no shelf and comes back to its place when its time is over. In a session nothing may
overtake it, so it goes back at once and its session rests: its messages are handed out when the time is over.
Like locks, rests are only in memory: after a restart nothing rests. How long: `delay_ms`.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import NEVER
from bendybus.domain.messages import Message
from bendybus.domain.sessions import Session
from bendybus.names import Instant

__all__ = ["Resting", "delay_ms"]


def delay_ms(description: QueueDescription, delivery_count: int) -> int:
    """How long a message rests after this many failed deliveries, if its receiver says nothing else."""
    first = description.retry_delay_s
    if not first:
        return 0
    grown = first * float(description.retry_delay_factor) ** min(max(0, delivery_count - 1), 64)
    return round(min(grown, max(first, description.retry_delay_max_s)) * 1000)


class Resting:
    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, Message | Session]] = []
        self._order = count()

    @property
    def earliest_end(self) -> Instant:
        return self._heap[0][0] if self._heap else NEVER

    def __iter__(self) -> Iterator[Message]:
        return iter([each for _, _, each in self._heap if isinstance(each, Message)])

    def add(self, what: Message | Session, until: Instant) -> None:
        heappush(self._heap, (until, next(self._order), what))

    def ends(self) -> list[tuple[Instant, Message | Session]]:
        """Everything that rests, and until when, the earliest first."""
        return [(until, what) for until, _, what in sorted(self._heap, key=lambda each: each[:2])]

    def due(self, at: Instant) -> list[Message | Session]:
        """Remove and return what has rested long enough."""
        found: list[Message | Session] = []
        while self._heap and self._heap[0][0] <= at:
            found.append(heappop(self._heap)[2])
        return found

    def move_ends(self, by_ms: int) -> None:
        """The clock was set back by this much: everything rests as long as before."""
        self._heap = [(Instant(until - by_ms), order, what) for until, order, what in self._heap]
        heapify(self._heap)
        # A session may be here several times. It rests until the last of them.
        for until, what in self.ends():
            if isinstance(what, Session) and what.rests_until:
                what.rests_until = until
