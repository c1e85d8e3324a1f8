"""What was asked of another broker, and what has arrived from it. Used by supply.py and selecting.py."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from bendybus.broker.queue import Queue
from bendybus.domain.messages import Message
from bendybus.names import PartitionNumber

__all__ = ["KEEP_S", "Arrivals", "Line", "demanded"]

# The most that is asked for at once: a few times as much as a receiver takes from a partition at once.
DEMAND_MAX: Final = 1000
# If all of these messages were as large as the entity allows. Receivers have them in memory when they arrive.
DEMAND_BYTES_MAX: Final = 256 * 1024 * 1024
# A receiver that continues has new credit before that. Otherwise the messages are of more use to receivers of
# other brokers. Not `Final`: tests change it, and compiled code has copies of what is final.
KEEP_S = 0.1


def demanded(queue: Queue, count: int) -> int:
    """How many messages to ask for, for receivers that want this many."""
    return min(count, max(1, DEMAND_BYTES_MAX // queue.description.max_message_bytes))


class Line:
    """One demand: how much was asked for, how much has arrived."""

    __slots__ = ("answered", "arrived", "limit", "unwanted", "wanted")

    def __init__(self) -> None:
        self.limit = 0
        """How much the owner may give in all."""
        self.arrived = 0
        self.answered = 0
        """The limit up to which the owner has said what it has."""
        self.wanted = 0
        """What receivers lacked in this turn."""
        self.unwanted = False
        """Nobody waits any more. Messages that are still on their way go straight back."""

    def want(self, count: int) -> None:
        self.unwanted = False
        self.wanted = max(self.wanted, count)

    def next_limit(self, waiting: bool) -> int | None:
        """The limit to tell the owner; None if it need not be changed."""
        limit, self.wanted = self._wanted_limit, 0
        if not waiting or limit <= self.limit:
            return None
        self.limit = limit
        return limit

    @property
    def _wanted_limit(self) -> int:
        return self.arrived + min(self.wanted, DEMAND_MAX)

    @property
    def is_unknown(self) -> bool:
        """Whether the owner is to be asked, or has not answered."""
        return self.answered < self.limit or self.limit < self._wanted_limit

    def withdraw(self) -> bool:
        """Take back what has not arrived. Returns whether there was something."""
        self.unwanted, self.wanted = True, 0
        was_open = self.limit > self.arrived
        self.limit = self.answered = self.arrived
        return was_open


class Arrivals(Line):
    """Messages of one sub-queue, of one session, or for one receiver with a selector."""

    __slots__ = ("by_partition", "keeping", "knowing", "leaving")

    def __init__(self) -> None:
        super().__init__()
        self.by_partition: dict[PartitionNumber, deque[Message]] = {}
        self.keeping: asyncio.TimerHandle | None = None
        self.leaving: asyncio.TimerHandle | None = None
        self.knowing: asyncio.Event = asyncio.Event()

    def take(self, number: PartitionNumber, count: int, size_max: int) -> list[Message]:
        """Up to so many messages of this partition with at most so many bytes, but one in any case."""
        waiting = self.by_partition.get(number)
        taken: list[Message] = []
        while waiting and len(taken) < count and (not taken or size_max > 0):
            taken.append(waiting.popleft())
            size_max -= taken[-1].size
        return taken

    def arrive(self, limit: int, number: PartitionNumber, messages: list[Message]) -> None:
        """The owner has given messages, or has none. `limit`: of the last demand that it knows."""
        self.arrived += len(messages)
        self.answered = max(self.answered, min(limit, self.limit))
        self.knowing.set()
        if messages:
            self.by_partition.setdefault(number, deque()).extend(messages)

    def clear(self) -> Iterator[tuple[PartitionNumber, deque[Message]]]:
        """Everything that was not taken."""
        if self.keeping is not None:
            self.keeping.cancel()
            self.keeping = None
        self.knowing.set()
        kept, self.by_partition = self.by_partition, {}
        return ((number, messages) for number, messages in kept.items() if messages)

    def forget(self) -> None:
        """The connection is lost, and with it what was asked for."""
        if self.leaving is not None:
            self.leaving.cancel()
            self.leaving = None
        self.limit = self.arrived = self.answered = self.wanted = 0
        self.unwanted = False

    @property
    def is_empty(self) -> bool:
        return not any(self.by_partition.values())
