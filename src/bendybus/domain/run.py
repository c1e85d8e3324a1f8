"""A run: messages in the order of their sequence numbers, taken from the front.

A run is one list and the index of its first used slot. The cost of adding at the end, taking a batch
from the front or putting a message back near the front depends on the messages touched, not
on the length of the run. Finding a number is a bisection. A message takes eight bytes (nine
with the list's spare room), so a long backlog is cheap to keep. Which runs a
sub-queue has: shelf.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final

from bendybus.domain.messages import Message
from bendybus.names import SequenceNumber
from bendybus.session_ids import OneSession

__all__ = ["Run"]

# Fills the slots before the head, so that the list does not keep a taken message alive.
_TAKEN: Final = Message(None, size=0)

_number: Final = attrgetter("sequence_number")


class Run:
    __slots__ = ("_head", "_slots")

    def __init__(self) -> None:
        self._slots: list[Message] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._slots) - self._head

    def __iter__(self) -> Iterator[Message]:
        return iter(self._slots[self._head :])

    def extend(self, messages: Iterable[Message]) -> None:
        """Add messages, in order, whose numbers are all higher than the last one here."""
        self._slots.extend(messages)

    def insert(self, messages: Iterable[Message]) -> None:
        """Add messages in any order, each at its position."""
        arriving = sorted(messages, key=_number)
        slots, head = self._slots, self._head
        if not arriving:
            return
        if not slots or slots[-1].sequence_number < arriving[0].sequence_number:
            slots.extend(arriving)
            return
        first = bisect_left(slots, arriving[0].sequence_number, head, key=_number)
        if len(slots) - first < first - head:
            # Near the end: only what follows the first new message is rewritten.
            slots[first:] = merge(arriving, slots[first:], key=_number)
            return
        # Everything before the last new message is rewritten into the free slots before the head.
        # Messages are usually put back near the front, where they were taken, so this is little work.
        merged: list[Message] = []
        position = head
        for message in arriving:
            following = bisect_left(slots, message.sequence_number, position, key=_number)
            merged += slots[position:following]
            merged.append(message)
            position = following
        self._head = max(0, head - len(arriving))
        slots[self._head : position] = merged

    def take(self, count: int) -> list[Message]:
        """Remove and return up to `count` from the front."""
        slots, head = self._slots, self._head
        taken = slots[head : head + max(0, count)]
        head += len(taken)
        if head == len(slots):
            slots.clear()
            self._head = 0
        elif head * 2 > len(slots):
            # More free slots than messages: close the gap. This costs at most one move per message taken.
            del slots[:head]
            self._head = 0
        else:
            slots[self._head : head] = [_TAKEN] * len(taken)
            self._head = head
        return taken

    def take_these(self, numbers: Iterable[SequenceNumber]) -> list[Message]:
        """Remove and return the messages that are here, oldest first."""
        slots = self._slots
        indexes: list[int] = []
        for number in sorted(numbers):
            index = bisect_left(slots, number, indexes[-1] + 1 if indexes else self._head, key=_number)
            if index < len(slots) and slots[index].sequence_number == number:
                indexes.append(index)
        if not indexes:
            return []
        first, end = indexes[0], indexes[-1] + 1
        if first == self._head and end - first == len(indexes):
            return self.take(len(indexes))
        taken = [slots[index] for index in indexes]
        staying: list[Message] = []
        for index, following in pairwise(indexes):
            staying += slots[index + 1 : following]
        slots[first:end] = staying
        return taken

    def fitting(self, count: int, size_max: int) -> int:
        """How many of the first `count` fit into `size_max` bytes. The first one always fits."""
        return self.fitting_size(count, size_max)[0]

    def fitting_size(self, count: int, size_max: int) -> tuple[int, int]:
        """`fitting`, and the size of those messages."""
        if count > 0 and len(self._slots) - self._head == 1:
            return 1, self._slots[self._head].size
        sizes = [message.size for message in self._slots[self._head : self._head + max(0, count)]]
        size = sum(sizes)
        if size <= size_max or not sizes:
            return len(sizes), size
        fitting = max(1, bisect_right(list(accumulate(sizes)), size_max))
        return fitting, sum(sizes[:fitting])

    def replace(self, messages: list[Message]) -> None:
        """Replace all messages by these, which are in order."""
        self._slots = messages
        self._head = 0

    def first(self, count: int) -> list[Message]:
        """Up to `count` from the front, without removing them."""
        return self._slots[self._head : self._head + count]

    def starting_at(self, sequence_number: SequenceNumber, count: int) -> list[Message]:
        """Up to `count` messages from this number upwards, without removing them."""
        first = bisect_left(self._slots, sequence_number, self._head, key=_number)
        return self._slots[first : first + max(0, count)]

    def in_session(self, wanted: OneSession, start: SequenceNumber) -> Iterator[Message]:
        """The session's messages from this number upwards, without removing them."""
        first = bisect_left(self._slots, start, self._head, key=_number)
        return (message for message in self._slots[first:] if wanted.includes(message.session_id))

    def find(self, sequence_number: SequenceNumber) -> Message | None:
        found = self.starting_at(sequence_number, 1)
        return found[0] if found and found[0].sequence_number == sequence_number else None

    def remove(self, message: Message) -> None:
        """Remove one message from the middle. It must be here."""
        index = bisect_left(self._slots, message.sequence_number, self._head, key=_number)
        assert self._slots[index] is message, f"{message} is not in its run"
        del self._slots[index]

    def discard(self, messages: list[Message]) -> None:
        """Remove these messages, which are here. Those at the front cost nothing more than themselves."""
        self.take_these([message.sequence_number for message in messages])
