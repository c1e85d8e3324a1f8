"""Ranges: a partition's messages by their numbers, for readers that keep their own place.

Such a reader goes by sequence numbers up to a *stable* mark: everything at or
below it that will ever be shown is shown already. Numbers are given in order and
what is not durable yet is above the mark; a scheduled message gets a new number
when its time comes, so it is counted then. Looking changes nothing; what the
reader is done with is removed by number, which may be asked for twice.

Dead letters keep the number they had, so their sub-queues have no stable mark.
What may be asked: range_commands.py. Ordinary receivers go by locks: stock.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from bendybus.domain.changes import Changes
from bendybus.domain.intake import Intake
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.range_commands import (
    Browse,
    Browsed,
    Discard,
    Discarded,
    DiscardThrough,
    RangeCommand,
    RangeReply,
    Survey,
    Surveyed,
)
from bendybus.domain.run import Run
from bendybus.domain.shelf import Shelf
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation
from bendybus.names import SequenceNumber
from bendybus.session_ids import OneSession

__all__ = ["perform"]

# Looked at for one answer, though a filter may let none of them pass: some milliseconds.
SCANNED_MAX: Final = 20_000


_Concerned: TypeAlias = Callable[[Message], bool]


def perform(command: RangeCommand, stock: Stock, intake: Intake, changes: Changes) -> RangeReply:
    match command:
        case Survey(subqueue=subqueue):
            return _survey(stock, intake, subqueue)
        case Browse():
            return _browse(command, stock)
        case DiscardThrough(number=number, states=states, subqueue=subqueue):
            _refuse_locked(
                stock, subqueue, lambda each: each.sequence_number <= number and each.state in states
            )
            return _discard(_take_through(stock.shelves[subqueue], number, states), stock, changes)
        case Discard(numbers=numbers, subqueue=subqueue):
            wanted = frozenset(numbers)
            _refuse_locked(stock, subqueue, lambda each: each.sequence_number in wanted)
            return _discard(_take(stock.shelves[subqueue], wanted), stock, changes)


# -- looking ----------------------------------------------------------------------


def _survey(stock: Stock, intake: Intake, subqueue: SubQueue) -> Surveyed:
    shelf, locked = stock.shelves[subqueue], stock.on_loan(subqueue)
    following = intake.next_sequence_number
    oldest = shelf.peek(SequenceNumber(0), 1, locked)
    return Surveyed(
        first=oldest[0].sequence_number if oldest else following,
        next=following,
        stable=SequenceNumber(intake.first_unconfirmed() - 1),
        counts=shelf.counts(locked),
    )


def _browse(command: Browse, stock: Stock) -> Browsed:
    shelf, locked = stock.shelves[command.subqueue], stock.on_loan(command.subqueue)
    session = None if command.session_id is None else stock.one_session(command.session_id)
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


def _refuse_locked(stock: Stock, subqueue: SubQueue, concerned: _Concerned) -> None:
    """What a receiver holds is the receiver's: neither taken from it nor passed over in silence."""
    locked = [message.sequence_number for message in stock.on_loan(subqueue) if concerned(message)]
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


def _discard(messages: list[Message], stock: Stock, changes: Changes) -> Discarded:
    stock.remove(messages, changes)
    return Discarded(len(messages))
