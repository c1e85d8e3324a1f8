"""Scheduled messages: kept until their time has come, then enqueued as if they had just been sent.

While a message is scheduled its `enqueued_at` is the time when it is due, and
`expires_at` is what it would be if it were activated just then: so a message
that waits for its time is no larger than any other. Only this module
makes a message scheduled; a store reads scheduled messages back. What activation gives a message: intake.py.
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

# All of a million messages may be due at once. Some 10 ms of work for one tick; the next goes on.
ACTIVATED_AT_ONCE_MAX: Final = 5000

# Taking one out of a run moves those behind it, 1 ms in a million; writing the run anew takes 30 ms.
REMOVED_SINGLY_MAX: Final = 30

# Entries of cancelled messages that are not worth building the agenda anew.
STALE_MAX: Final = 64


def postpone(message: Message, at: Instant, due: Instant) -> None:
    """Let a message made at `at` and not yet enqueued wait until it is due; its lifetime starts then."""
    message.state = MessageState.SCHEDULED
    message.enqueued_at = due
    if message.expires_at is not None:
        message.expires_at = Instant(message.expires_at - at + due)


class Schedule:
    """When which message of a partition is due. Empty lists, for the many that have none."""

    __slots__ = ("_agenda", "_numbered", "_waiting", "activated", "arriving")

    def __init__(self, waiting: Run) -> None:
        self._waiting = waiting
        """The run of the scheduled messages, by number."""
        self._agenda: list[tuple[Instant, SequenceNumber]] = []
        """A heap. Cancelled messages stay in it until they would have been due, or until they are many."""
        self.arriving: list[Message] = []
        """Not yet durable, so shown to nobody."""
        self._numbered: list[tuple[SequenceNumber, Sequence[Message]]] = []
        """The same, of those that had their numbers long before: durable when the number beside them is."""
        self.activated: list[Message] = []
        """Durable, but not yet under their new numbers."""

    @property
    def next_due(self) -> Instant:
        return self._agenda[0][0] if self._agenda else NEVER

    @property
    def unconfirmed(self) -> bool:
        """Whether something has arrived that does not wait yet."""
        return bool(self.arriving or self._numbered)

    def restore(self) -> None:
        """Begin with the messages that wait already."""
        self._agenda = [(message.enqueued_at, message.sequence_number) for message in self._waiting]
        heapify(self._agenda)

    def arrive(self, messages: Sequence[Message]) -> None:
        self.arriving += messages

    def arrive_numbered(self, messages: Sequence[Message], ticket: SequenceNumber) -> None:
        self._numbered.append((ticket, messages))

    def confirm_arrived(self, number: SequenceNumber) -> None:
        """What arrived up to this number waits from now on."""
        arrived = _take_through(self.arriving, number)
        while self._numbered and self._numbered[0][0] <= number:
            arrived += self._numbered.pop(0)[1]
        self._waiting.insert(arrived)
        for message in arrived:
            heappush(self._agenda, (message.enqueued_at, message.sequence_number))

    def take_activated(self, number: SequenceNumber) -> list[Message]:
        """Those that are durable under their new numbers, up to this one."""
        return _take_through(self.activated, number)

    def find(self, numbers: Sequence[SequenceNumber]) -> list[Message | None]:
        return [self._waiting.find(number) for number in numbers]

    def cancel(self, messages: Sequence[Message]) -> None:
        """Messages that wait are not to become due."""
        for message in messages:
            self._waiting.remove(message)
        if len(self._agenda) > 2 * len(self._waiting) + STALE_MAX:
            self.restore()

    def take_due(self, at: Instant) -> list[Message]:
        """Active from now on, the earliest first: those whose time has come, or the first few thousand."""
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
        """Activated ones that go elsewhere instead of becoming durable here."""
        going = {message.sequence_number for message in messages}
        self.activated = [each for each in self.activated if each.sequence_number not in going]


def _take_through(messages: list[Message], number: SequenceNumber) -> list[Message]:
    """Remove from this list, which is in order, what has a number up to this one."""
    count = len(messages)
    while count and messages[count - 1].sequence_number > number:
        count -= 1
    taken = messages[:count]
    del messages[:count]
    return taken
