"""The intake: messages that arrive at a partition, until they are durable and due.

It handles numbers, lifetimes, the quota, duplicates (duplicates.py) and scheduled messages
(schedule.py), for queues and topics. `confirm` returns the messages that
receivers may see. What happens to them next: handlers/sending.py, topic.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol, cast

from bendybus.domain.changes import Changes
from bendybus.domain.commands import Done, Enqueued, Transfer
from bendybus.domain.duplicates import DuplicateHistory
from bendybus.domain.effects import ForgetIdentities, MarkTransferred, RememberIdentities
from bendybus.domain.entities import size_divisor
from bendybus.domain.expiry import NEVER, ExpiryWatch
from bendybus.domain.messages import Amendment, Message, MessageState
from bendybus.domain.schedule import Schedule
from bendybus.domain.shelf import Shelf
from bendybus.domain.vacant import VacantNumbers
from bendybus.errors import MessageNotFound, QuotaExceeded
from bendybus.names import PARTITION_SHIFT, EntityPath, Instant, PartitionNumber, SequenceNumber

__all__ = ["Accepting", "Intake"]

_MEBIBYTE: Final = 1 << 20

_SCHEDULED: Final = MessageState.SCHEDULED

_number: Final = attrgetter("sequence_number")


class Accepting(Protocol):
    """What the intake needs to know about the entity that receives the messages."""

    @property
    def path(self) -> EntityPath: ...
    @property
    def max_size_mb(self) -> int: ...
    @property
    def default_message_ttl_s(self) -> float | None: ...
    @property
    def requires_duplicate_detection(self) -> bool: ...
    @property
    def exact_keys(self) -> bool: ...
    @property
    def duplicate_detection_window_s(self) -> float: ...
    @property
    def may_have_sessions(self) -> bool:
        """Whether some receiver may use sessions."""


class Intake:
    __slots__ = (
        "_expiry",
        "_history",
        "_schedule",
        "_shelf",
        "_size_divisor",
        "_transferred",
        "_unconfirmed",
        "_vacant",
        "description",
        "next_sequence_number",
        "number",
    )

    def __init__(
        self,
        number: PartitionNumber,
        description: Accepting,
        next_sequence_number: SequenceNumber | None,
        shelf: Shelf,
        expiry: ExpiryWatch,
        partition_count: int,
        vacant: VacantNumbers | None = None,
    ) -> None:
        """`shelf` counts the arrivals and holds the scheduled messages.

        `partition_count` is that of the entity. `vacant`: None for a topic, whose numbers nobody reads.
        """
        self.number = number
        self.description = description
        """Replaced when the entity is updated. The new one applies from the next command on."""
        self.next_sequence_number = next_sequence_number or SequenceNumber(number << PARTITION_SHIFT | 1)
        self._shelf = shelf
        self._size_divisor = size_divisor(partition_count)
        self._expiry = expiry
        self._unconfirmed: list[Message] = []
        self._schedule = Schedule(shelf.scheduled)
        self._history = DuplicateHistory() if description.requires_duplicate_detection else None
        self._transferred: dict[str, SequenceNumber] = {}
        """For each source, the number up to which its outbox has arrived here."""
        self._vacant = vacant

    def restore(
        self,
        last: SequenceNumber,
        identities: Iterable[tuple[Instant, bytes]],
        transferred: Mapping[str, SequenceNumber],
    ) -> None:
        """Start after this number. The scheduled messages are on the shelf already."""
        self._transferred = dict(transferred)
        self.next_sequence_number = SequenceNumber(max(self.next_sequence_number, last + 1))
        self._schedule.restore()
        if self._history is not None:
            self._history.restore(identities)

    def next_deadline(self) -> Instant:
        """When there will next be something to activate or to forget."""
        deadline = self._schedule.next_due
        if self._history is not None:
            deadline = min(deadline, self._history.next_sweep(self._window_ms))
        return deadline

    @property
    def activated(self) -> Sequence[Message]:
        """Durable messages that are in no other place: they wait to be confirmed under new numbers."""
        return self._schedule.activated

    def awaiting_confirmation(self) -> Iterator[Message]:
        return chain(self._unconfirmed, self._schedule.activated)

    def first_unconfirmed(self) -> SequenceNumber:
        """No message with a lower number can still appear (handlers/ranges.py)."""
        first = self.next_sequence_number
        for waiting in (self._unconfirmed, self._schedule.arriving, self._schedule.activated):
            if waiting:
                first = min(first, waiting[0].sequence_number)
        return first

    # -- arriving -----------------------------------------------------------------

    def enqueue(
        self,
        messages: list[Message],
        identities: Sequence[str | None] | None,
        held_bytes: int,
        at: Instant,
        changes: Changes,
        transfer: Transfer | None = None,
    ) -> Enqueued:
        """Number these messages. The partition already holds `held_bytes` of its quota."""
        if transfer is not None:
            return self._enqueue_transferred(messages, identities, transfer, held_bytes, at, changes)
        if self._history is not None and identities is not None:
            return self._enqueue_once(messages, identities, held_bytes, at, changes)
        return self._enqueue(messages, held_bytes, at, changes)

    def _enqueue(self, messages: list[Message], held_bytes: int, at: Instant, changes: Changes) -> Enqueued:
        arriving_bytes = sum([message.size for message in messages])
        self.refuse_beyond_quota(held_bytes, arriving_bytes)
        limit = self.expiry_limit(at)
        default = None if limit == NEVER else limit
        first = self.next_sequence_number
        numbers = self.take_numbers(len(messages))
        earliest = NEVER
        scheduled: list[Message] = []
        for message, number in zip(messages, numbers, strict=True):
            message.sequence_number = number
            if message.state is _SCHEDULED:
                scheduled.append(message)
                continue
            expires_at = message.expires_at
            if expires_at is not None and message.enqueued_at:
                # It was admitted earlier, perhaps by another clock. Its lifetime begins now.
                message.expires_at = expires_at = Instant(expires_at - message.enqueued_at + at)
            message.enqueued_at = at
            if expires_at is None or expires_at > limit:
                # The shorter of the sender's and the entity's time to live. A longer one is not an error.
                message.expires_at = expires_at = default
            if expires_at is not None and expires_at < earliest:
                earliest = expires_at
        self._shelf.size_bytes += arriving_bytes
        self._expiry.expect(earliest)
        changes.stored = messages
        if scheduled:
            self._schedule.arrive(scheduled)
            messages = [message for message in messages if message.state is not _SCHEDULED]
        self._unconfirmed += messages
        return Enqueued(first, len(numbers), scheduled=bool(scheduled))

    def _enqueue_once(
        self,
        messages: list[Message],
        identities: Sequence[str | None],
        held_bytes: int,
        at: Instant,
        changes: Changes,
    ) -> Enqueued:
        """Enqueue all but the duplicates, which are accepted and dropped (P-15)."""
        messages, new, duplicates = self._sifted(messages, identities, at)
        enqueued = self._enqueue(messages, held_bytes, at, changes)
        self._remember(new, duplicates, at, changes)
        return replace(enqueued, duplicates=duplicates) if duplicates else enqueued

    def _sifted(
        self, messages: list[Message], identities: Sequence[str | None] | None, at: Instant
    ) -> tuple[list[Message], list[bytes], tuple[int, ...]]:
        """The messages that are not duplicates, their digests, and the indexes of the duplicates."""
        if self._history is None or identities is None:
            return messages, [], ()
        new, duplicates = self._history.sift(identities, Instant(at - self._window_ms))
        if duplicates:
            dropped = set(duplicates)
            messages = [message for index, message in enumerate(messages) if index not in dropped]
        return messages, new, duplicates

    def _remember(self, new: list[bytes], duplicates: tuple[int, ...], at: Instant, changes: Changes) -> None:
        if self._history is not None and (new or duplicates):
            self._history.remember(new, at)
            changes.history = RememberIdentities(at, new)

    def _enqueue_transferred(
        self,
        messages: list[Message],
        identities: Sequence[str | None] | None,
        transfer: Transfer,
        held_bytes: int,
        at: Instant,
        changes: Changes,
    ) -> Enqueued:
        """Enqueue what an outbox sends, except what it has already sent without getting the answer (P-34)."""
        arrived = self._transferred.get(transfer.source, SequenceNumber(0))
        known = sum(number <= arrived for number in transfer.numbers)
        enqueued = self.enqueue(
            messages[known:], None if identities is None else identities[known:], held_bytes, at, changes
        )
        last = max(arrived, transfer.numbers[-1])
        self._transferred[transfer.source] = last
        # Recorded even if nothing is new: a repeated transfer is answered once the original one is durable.
        changes.transferred = MarkTransferred(transfer.source, last)
        if known:
            later = [known + index for index in enqueued.duplicates]
            return replace(enqueued, duplicates=(*range(known), *later))
        return enqueued

    def schedule_numbered(
        self,
        messages: list[Message],
        identities: Sequence[str | None] | None,
        held_bytes: int,
        at: Instant,
        changes: Changes,
    ) -> Enqueued:
        """Accept scheduled messages that already have reserved numbers. Duplicates are dropped."""
        messages, new, duplicates = self._sifted(messages, identities, at)
        arriving_bytes = sum([message.size for message in messages])
        self.refuse_beyond_quota(held_bytes, arriving_bytes)
        self._shelf.size_bytes += arriving_bytes
        # This number belongs to no message. Its confirmation means that these messages, whose own numbers may
        # be lower, are durable.
        (ticket,) = self.take_numbers(1)
        self.leave_vacant((ticket,))
        self._schedule.arrive_numbered(messages, ticket)
        changes.stored = messages
        self._remember(new, duplicates, at, changes)
        return Enqueued(ticket, 1, scheduled=True, duplicates=duplicates)

    def reserve(self, count: int, changes: Changes) -> Enqueued:
        """Take numbers for messages that come later (`schedule_numbered`)."""
        first = self.next_sequence_number
        # A message that gets one of them is scheduled, and gets another one before it is active.
        self.leave_vacant(self.take_numbers(count))
        changes.reserved = True
        return Enqueued(first, count)

    def take_numbers(self, count: int) -> Sequence[SequenceNumber]:
        """The next numbers, for new messages or for messages that get a new number."""
        first = self.next_sequence_number
        self.next_sequence_number = SequenceNumber(first + count)
        return cast(Sequence[SequenceNumber], range(first, first + count))

    def leave_vacant(self, numbers: Iterable[SequenceNumber]) -> None:
        """No reader of the main queue misses a message under these numbers (vacant.py)."""
        if self._vacant is not None:
            self._vacant.add_each(numbers)

    def expiry_limit(self, at: Instant) -> Instant:
        """The latest expiry time of a message that is enqueued now."""
        ttl_s = self.description.default_message_ttl_s
        return NEVER if ttl_s is None else Instant(at + int(ttl_s * 1000))

    @property
    def quota_bytes(self) -> int:
        """The size of this partition."""
        return self.description.max_size_mb * _MEBIBYTE // self._size_divisor

    def refuse_beyond_quota(self, held_bytes: int, arriving_bytes: int) -> None:
        quota_bytes = self.quota_bytes
        if held_bytes + arriving_bytes > quota_bytes:
            raise QuotaExceeded(
                f"Partition {self.number} of '{self.description.path}' holds {held_bytes} bytes; "
                f"{arriving_bytes} more would exceed its size of {quota_bytes}."
            )

    def confirm(self, number: SequenceNumber) -> list[Message]:
        """The messages up to this number that are now durable and may be shown, in order."""
        ready = self.confirm_arrived(number)
        if self._schedule.activated:
            ready += self._schedule.take_activated(number)
            ready.sort(key=_number)
        return ready

    def confirm_arrived(self, number: SequenceNumber) -> list[Message]:
        """`confirm` without messages that have become due: a topic keeps those until they `leave`."""
        unconfirmed = self._unconfirmed
        # Many commands may be waiting for their commits, and each is confirmed on its own.
        durable = bisect_right(unconfirmed, number, key=_number)
        ready = unconfirmed[:durable]
        del unconfirmed[:durable]
        if self._schedule.unconfirmed:
            self._schedule.confirm_arrived(number)
        return ready

    # -- scheduled ----------------------------------------------------------------

    def activate(self, at: Instant, changes: Changes) -> Enqueued | Done:
        """Enqueue messages that are due, under new numbers. They can be locked once they are confirmed."""
        due = self._schedule.take_due(at)
        return self._renumber(due, at, changes) if due else Done()

    def enqueue_again(self, messages: list[Message], at: Instant, changes: Changes) -> Enqueued:
        """Enqueue durable messages that are on no shelf, as if they had just been sent (completed.py)."""
        self._schedule.activated += messages
        return self._renumber(messages, at, changes)

    def _renumber(self, messages: list[Message], at: Instant, changes: Changes) -> Enqueued:
        """Give durable messages new numbers, and lifetimes that begin now."""
        first = self.next_sequence_number
        limit = self.expiry_limit(at)
        if self._vacant is not None:
            self.leave_vacant([message.sequence_number for message in messages])
            for message in messages:
                earlier = message.sequence_number
                message.amendment = replace(message.amendment or Amendment(), earlier_number=earlier)
        for number, message in enumerate(messages, first):
            own = NEVER if message.expires_at is None else message.expires_at - message.enqueued_at + at
            expires_at = Instant(min(own, limit))
            message.expires_at = None if expires_at == NEVER else expires_at
            message.enqueued_at = at
            message.sequence_number = SequenceNumber(number)
            self._expiry.expect(message.expires_at)
        self.next_sequence_number = SequenceNumber(first + len(messages))
        changes.update(messages)
        return Enqueued(first, len(messages))

    def leave(self, messages: Sequence[Message]) -> None:
        """Forget messages that were due here and now go to the subscriptions."""
        self._schedule.leave(messages)

    def cancel_scheduled(self, numbers: Sequence[SequenceNumber]) -> list[Message]:
        """Cancel these messages, all or none. They count towards the size until the caller removes them."""
        messages = self.find_scheduled(numbers)
        self._schedule.cancel(messages)
        self.leave_vacant(numbers)
        return messages

    def find_scheduled(
        self, numbers: Sequence[SequenceNumber], cancelled: Container[SequenceNumber] = ()
    ) -> list[Message]:
        """These scheduled messages. `MessageNotFound` if one of them is not scheduled.

        `cancelled`: those that will have been cancelled by then.
        """
        found = dict(zip(numbers, self._schedule.find(numbers), strict=True))
        missing = [number for number, message in found.items() if message is None or number in cancelled]
        if missing:
            listed = ", ".join(map(str, missing))
            raise MessageNotFound(
                f"Not, or no longer, scheduled in partition {self.number} of '{self.description.path}': "
                f"{listed}."
            )
        return [message for message in found.values() if message is not None]

    # -- duplicates ---------------------------------------------------------------

    @property
    def _window_ms(self) -> int:
        return int(self.description.duplicate_detection_window_s * 1000)

    def forget_identities(self, at: Instant, changes: Changes) -> None:
        window_ms = self._window_ms
        if self._history is None or at < self._history.next_sweep(window_ms):
            return
        since = Instant(at - window_ms)
        if self._history.forget(at, since):
            changes.history = ForgetIdentities(since)
