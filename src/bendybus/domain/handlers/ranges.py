"""Ranges: a partition's messages by their numbers, for readers that keep their own position.

Such a reader reads up to a *stable* number: no message will appear at or below it any more. Numbers are
given in order, and a message that is not durable yet has a higher number; a scheduled message gets a new
number when it is due. Its old number is then one under which nothing is missing (vacant.py). Reading changes
nothing. What the reader has finished with is removed by number;
repeating that request has no effect.

Dead letters keep the number they had, so their sub-queues have no stable number.
What may be asked: range_commands.py. Ordinary receivers use locks: receiving.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from bendybus.domain.changes import Changes
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.range_commands import (
    Browse,
    Browsed,
    Discard,
    Discarded,
    DiscardThrough,
    Survey,
    Surveyed,
)
from bendybus.domain.run import Run
from bendybus.domain.shelf import Shelf
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation
from bendybus.names import Instant, SequenceNumber
from bendybus.session_ids import OneSession

__all__ = ["SCANNED_MAX", "browse", "discard", "discard_through", "survey"]

# How many messages are read for one answer, even if none passes the filter: a few milliseconds of work.
SCANNED_MAX: Final = 20_000


_Concerned: TypeAlias = Callable[[Message], bool]


# -- reading ----------------------------------------------------------------------


def survey(parts: Parts, command: Survey, at: Instant, changes: Changes) -> Surveyed:
    intake, subqueue = parts.intake, command.subqueue
    shelf, locked = parts.stock.shelves[subqueue], parts.stock.locked_messages(subqueue)
    following = intake.next_sequence_number
    unconfirmed = intake.first_unconfirmed()
    oldest = shelf.peek(SequenceNumber(0), 1, locked)
    first = vacant_from = oldest[0].sequence_number if oldest else following
    if subqueue is SubQueue.MAIN:
        # A message that is not durable yet is not missing.
        first = min(first, unconfirmed)
        vacant_from = parts.vacant.lowest_below(first)
        # Nothing appears below the oldest message any more.
        parts.vacant.forget_below(vacant_from)
    return Surveyed(
        first=first,
        next=following,
        stable=SequenceNumber(unconfirmed - 1),
        counts=shelf.counts(locked),
        vacant_from=vacant_from,
    )


def browse(parts: Parts, command: Browse, at: Instant, changes: Changes) -> Browsed:
    stock = parts.stock
    shelf, locked = stock.shelves[command.subqueue], stock.locked_messages(command.subqueue)
    session = (
        None
        if command.session_id is None
        else OneSession(command.session_id, exact=stock.description.exact_keys)
    )
    chunk = shelf.peek(command.first, min(max(1, command.count), SCANNED_MAX), locked)
    found: list[Message] = []
    size = scanned = 0
    while chunk:
        for message in chunk:
            if message.sequence_number > command.last:
                return Browsed(found, None)
            if not _passes(command, session, message):
                continue
            size += message.size
            if found and (size > command.size_max or len(found) >= command.count):
                return Browsed(found, message.sequence_number)
            found.append(message)
        following = SequenceNumber(chunk[-1].sequence_number + 1)
        scanned += len(chunk)
        if len(found) >= command.count or scanned >= SCANNED_MAX:
            return Browsed(found, following)
        chunk = shelf.peek(following, SCANNED_MAX - scanned, locked)
    return Browsed(found, None)


def _passes(command: Browse, session: OneSession | None, message: Message) -> bool:
    return (
        message.state in command.states
        and (session is None or session.includes(message.session_id))
        and (command.enqueued_from is None or message.enqueued_at >= command.enqueued_from)
        and (command.enqueued_before is None or message.enqueued_at < command.enqueued_before)
    )


# -- removing ---------------------------------------------------------------------


def discard_through(parts: Parts, command: DiscardThrough, at: Instant, changes: Changes) -> Discarded:
    stock, number, states, subqueue = parts.stock, command.number, command.states, command.subqueue
    _refuse_locked(stock, subqueue, lambda each: each.sequence_number <= number and each.state in states)
    return _finish(_take_through(stock.shelves[subqueue], number, states), parts, at, changes)


def discard(parts: Parts, command: Discard, at: Instant, changes: Changes) -> Discarded:
    stock, subqueue, wanted = parts.stock, command.subqueue, frozenset(command.numbers)
    _refuse_locked(stock, subqueue, lambda each: each.sequence_number in wanted)
    return _finish(_take(stock.shelves[subqueue], wanted), parts, at, changes)


def _refuse_locked(stock: Stock, subqueue: SubQueue, concerned: _Concerned) -> None:
    """Refuse to remove a message that a receiver has locked. It must not be skipped silently either."""
    locked = [message.sequence_number for message in stock.locked_messages(subqueue) if concerned(message)]
    if locked:
        raise InvalidOperation(
            f"{len(locked)} messages of '{stock.description.path}', the first of them {min(locked)}, are "
            "locked by receivers. Nothing was removed."
        )


def _take_through(shelf: Shelf, number: SequenceNumber, states: Collection[MessageState]) -> list[Message]:
    taken: list[Message] = []
    runs = {MessageState.ACTIVE: shelf.available, MessageState.DEFERRED: shelf.deferred}
    for state in states:
        run = runs.get(state)
        if run is None:
            continue
        if isinstance(run, Run):
            beyond = len(run.starting_at(SequenceNumber(number + 1), len(run)))
            taken += run.take(len(run) - beyond)
        else:
            taken += [message for message in run if message.sequence_number <= number]
            run.replace([message for message in run if message.sequence_number > number])
    return taken


def _take(shelf: Shelf, numbers: Collection[SequenceNumber]) -> list[Message]:
    taken: list[Message] = []
    for run in (shelf.available, shelf.deferred):
        found = [message for message in run if message.sequence_number in numbers]
        if found:
            run.replace([message for message in run if message.sequence_number not in numbers])
            taken += found
    return taken


def _finish(messages: list[Message], parts: Parts, at: Instant, changes: Changes) -> Discarded:
    """The reader has processed them."""
    parts.completed.finish(messages, at, changes)
    return Discarded(len(messages))
