"""Scheduled messages: kept until they are due, then enqueued as if they had just been sent.

While a message is scheduled, its `enqueued_at` is the time when it is due, and `expires_at` is the expiry
time for an activation at exactly that time. So a scheduled message needs no more memory than any other.
Only this module makes a message scheduled; a store reads scheduled messages back. What activation does to
a message: intake.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from bendybus.domain.expiry import NEVER
from bendybus.domain.messages import Message, MessageState
from bendybus.domain.run import Run
from bendybus.names import Instant, SequenceNumber

__all__ = ["Schedule", "postpone"]

# A million messages may be due at once. This is about 10 ms of work for one tick; the next tick continues.
ACTIVATED_AT_ONCE_MAX: Final = 5000

# Removing one message from a run moves those behind it: 1 ms for a million. Rewriting the run takes 30 ms.
REMOVED_SINGLY_MAX: Final = 30

# The agenda is not rebuilt for this many entries of cancelled messages.
STALE_MAX: Final = 64


def postpone(message: Message, at: Instant, due: Instant) -> None:
    """Schedule a message that was made at `at` and is not enqueued. Its lifetime starts when it is due."""
    message.state = MessageState.SCHEDULED
    message.enqueued_at = due
    if message.expires_at is not None:
        message.expires_at = Instant(message.expires_at - at + due)


class Schedule:
    """When the scheduled messages of a partition are due. Many partitions have none."""

    __slots__ = ("_agenda", "_numbered", "_waiting", "activated", "arriving")

    def __init__(self, waiting: Run) -> None:
        self._waiting = waiting
        """The run of the scheduled messages, by number."""
        self._agenda: list[tuple[Instant, SequenceNumber]] = []
        """A heap. Entries of cancelled messages stay until they would be due, or until there are many."""
        self.arriving: list[Message] = []
        """Not durable yet, so not visible."""
        self._numbered: list[tuple[SequenceNumber, Sequence[Message]]] = []
        """The same for messages with reserved numbers: they are durable once the number next to them is."""
        self.activated: list[Message] = []
        """Durable, but not yet under their new numbers."""

    @property
    def next_due(self) -> Instant:
        return self._agenda[0][0] if self._agenda else NEVER

    @property
    def unconfirmed(self) -> bool:
        """Whether there are messages that have arrived and are not confirmed."""
        return bool(self.arriving or self._numbered)

    def restore(self) -> None:
        """Start with the messages that are already waiting."""
        self._agenda = [(message.enqueued_at, message.sequence_number) for message in self._waiting]
        heapify(self._agenda)

    def arrive(self, messages: Sequence[Message]) -> None:
        self.arriving += messages

    def arrive_numbered(self, messages: Sequence[Message], ticket: SequenceNumber) -> None:
        self._numbered.append((ticket, messages))

    def confirm_arrived(self, number: SequenceNumber) -> None:
        """Let messages that arrived up to this number wait until they are due."""
        arrived = _take_through(self.arriving, number)
        while self._numbered and self._numbered[0][0] <= number:
            arrived += self._numbered.pop(0)[1]
        self._waiting.insert(arrived)
        for message in arrived:
            heappush(self._agenda, (message.enqueued_at, message.sequence_number))

    def take_activated(self, number: SequenceNumber) -> list[Message]:
        """The activated messages that are durable under their new numbers, up to this one."""
        return _take_through(self.activated, number)

    def find(self, numbers: Sequence[SequenceNumber]) -> list[Message | None]:
        return [self._waiting.find(number) for number in numbers]

    def cancel(self, messages: Sequence[Message]) -> None:
        """Cancel waiting messages."""
        if len(messages) > REMOVED_SINGLY_MAX:
            cancelled = set(map(id, messages))
            self._waiting.replace([each for each in self._waiting if id(each) not in cancelled])
        else:
            for message in messages:
                self._waiting.remove(message)
        if len(self._agenda) > 2 * len(self._waiting) + STALE_MAX:
            self.restore()

    def take_due(self, at: Instant) -> list[Message]:
        """Activate the messages that are due, earliest first; at most a few thousand at a time."""
        due: list[Message] = []
        agenda = self._agenda
        while agenda and agenda[0][0] <= at and len(due) < ACTIVATED_AT_ONCE_MAX:
            message = self._waiting.find(heappop(agenda)[1])
            if message is not None:
                message.state = MessageState.ACTIVE
                due.append(message)
        if len(due) > REMOVED_SINGLY_MAX:
            self._waiting.replace([each for each in self._waiting if each.state is MessageState.SCHEDULED])
        else:
            for message in due:
                self._waiting.remove(message)
        self.activated += due
        return due

    def leave(self, messages: Sequence[Message]) -> None:
        """Forget activated messages that go elsewhere instead of becoming durable here."""
        going = {message.sequence_number for message in messages}
        self.activated = [each for each in self.activated if each.sequence_number not in going]


def _take_through(messages: list[Message], number: SequenceNumber) -> list[Message]:
    """Remove the messages up to this number from a list that is in order."""
    count = len(messages)
    while count and messages[count - 1].sequence_number > number:
        count -= 1
    taken = messages[:count]
    del messages[:count]
    return taken
