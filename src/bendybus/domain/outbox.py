"""The outbox: messages on their way to another entity, delivered there exactly once (P-34).

A message is *posted* here from the shelf on which it waited, or directly by a
transaction, and gets a new sequence number. So numbers in an outbox rise in the
order of posting. The message is sent to its destination under that number. The
destination records, in the same commit that stores the message, the number up to which
this outbox has arrived, and drops repeated messages. A message is removed here only once it
is durable there. After a crash between the two commits it is sent
again, and dropped. A message may be reassigned to another partition of its
destination, but only if it was never sent. It then gets a new number, because the
other partition may have recorded a higher one. broker/forwarding.py moves the messages and
knows which were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bendybus.domain.changes import Changes
from bendybus.domain.commands import Enqueued
from bendybus.domain.deadletter import Cause, mark
from bendybus.domain.intake import Intake
from bendybus.domain.messages import UNASSIGNED, Amendment, Message, MessageState, Posting, SubQueue
from bendybus.domain.stock import Stock
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber

__all__ = ["HOPS_MAX", "HOPS_EXCEEDED", "TransferOutbox"]

# "four hops at most": a message with this many hops is not forwarded again.
HOPS_MAX: Final = 4
HOPS_EXCEEDED: Final = Cause(
    "MaxTransferHopCountExceeded", f"The message was forwarded {HOPS_MAX} times; no more are allowed."
)

_NOWHERE: Final = EntityPath("")


class TransferOutbox:
    __slots__ = ("_intake", "_stock", "arriving")

    def __init__(self, intake: Intake, stock: Stock) -> None:
        self._intake = intake
        self._stock = stock
        self.arriving = 0
        """How many messages in the intake are for the outbox."""

    def enqueue(
        self, messages: list[Message], destination: EntityPath, at: Instant, changes: Changes
    ) -> Enqueued:
        """Add messages sent through this entity. Only their destination applies their other properties."""
        for message in messages:
            message.state = MessageState.ACTIVE
            message.expires_at = None
            message.amendment = Amendment(posting=Posting(destination, UNASSIGNED))
        enqueued = self._intake.enqueue(messages, None, self._stock.size_bytes, at, changes)
        for message in messages:
            message.expires_at = None
            self._stock.move(message, SubQueue.OUTBOX)
        self._intake.leave_vacant([message.sequence_number for message in messages])
        self.arriving += len(messages)
        return enqueued

    def post(
        self, count: int, destination: EntityPath, subqueue: SubQueue, at: Instant, changes: Changes
    ) -> list[Message]:
        """Move messages from a shelf into the outbox. Messages with too many hops are dead-lettered."""
        taken = self._stock.take(count, subqueue, at, changes)
        posted = [message for message in taken if _hops(message) < HOPS_MAX]
        if len(posted) < len(taken):
            stuck = [message for message in taken if _hops(message) >= HOPS_MAX]
            self._set_aside(stuck, HOPS_EXCEEDED, changes)
        numbers = self._intake.take_numbers(len(posted))
        self._intake.leave_vacant(numbers)
        for message, number in zip(posted, numbers, strict=True):
            self._stock.move(message, SubQueue.OUTBOX)
            message.amendment = replace(
                message.amendment or Amendment(),
                posting=Posting(destination, message.sequence_number, subqueue),
                # It leaves the main queue, whose readers miss it under any number.
                earlier_number=None,
            )
            message.sequence_number = number
        changes.update(posted)
        self._stock.put_back(posted, changes)
        return posted

    def reassign(
        self, numbers: Sequence[SequenceNumber], partition: PartitionNumber, changes: Changes
    ) -> None:
        """Assign messages that are still here to this partition, with numbers after all that were sent."""
        found = self._take(numbers)
        given = self._intake.take_numbers(len(found))
        self._intake.leave_vacant(given)
        for message, number in zip(found, given, strict=True):
            amendment = message.amendment
            assert amendment is not None and amendment.posting is not None, "all in the outbox are posted"
            message.amendment = replace(amendment, posting=replace(amendment.posting, partition=partition))
            message.sequence_number = number
        changes.update(found)
        self._stock.put_back(found, changes)

    def remove(self, numbers: Sequence[SequenceNumber], changes: Changes) -> None:
        """Remove messages that have arrived at their destination."""
        self._stock.remove(self._take(numbers), changes)

    def give_up(self, numbers: Sequence[SequenceNumber], cause: Cause, changes: Changes) -> None:
        """Dead-letter messages that the destination will not take."""
        self._set_aside(self._take(numbers), cause, changes)

    def _take(self, numbers: Sequence[SequenceNumber]) -> list[Message]:
        """Take those of these messages that are still here."""
        waiting = self._stock.shelves[SubQueue.OUTBOX].available
        found = [message for number in numbers if (message := waiting.find(number)) is not None]
        for message in found:
            waiting.remove(message)
        return found

    def _set_aside(self, messages: list[Message], cause: Cause, changes: Changes) -> None:
        """Dead-letter messages that were to be forwarded. Others go to the transfer dead-letter queue.

        The others are messages that a transaction sent through this entity, and dead letters. Dead letters
        keep their reason, and must not return to the shelf from which they would be posted again.
        """
        for message in messages:
            amendment = message.amendment or Amendment()
            posting = amendment.posting or Posting(_NOWHERE, message.sequence_number, message.subqueue)
            was_dead = posting.subqueue is SubQueue.DEAD_LETTER
            is_own = not posting.sent_through and not was_dead
            self._stock.move(message, SubQueue.DEAD_LETTER if is_own else SubQueue.TRANSFER_DEAD_LETTER)
            message.amendment = replace(amendment, posting=None)
            if not was_dead:
                mark(message, cause)
        changes.update(messages)
        self._stock.put_back(messages, changes)


def _hops(message: Message) -> int:
    return 0 if message.origin is None else message.origin.hops
