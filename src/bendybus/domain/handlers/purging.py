"""Purging: removing, or dead-lettering, all messages that pass a filter and that nobody has locked.

Locked messages stay, and are counted for the client. Payloads are not looked at: a filter on properties is
evaluated by the caller, who names the messages (`Purge.numbers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeAlias

from bendybus.domain.changes import Changes
from bendybus.domain.deadletter import Cause
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.range_commands import Purge, Purged
from bendybus.domain.run import Run
from bendybus.domain.shelf import Waiting
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation
from bendybus.names import Instant, SequenceNumber
from bendybus.session_ids import OneSession

__all__ = ["purge"]

_Passes: TypeAlias = Callable[[Message], bool]


def purge(parts: Parts, command: Purge, at: Instant, changes: Changes) -> Purged:
    stock = parts.stock
    cause = Cause(command.reason, command.description) if command.dead_letters else None
    if cause is not None and command.subqueue is not SubQueue.MAIN:
        raise InvalidOperation(f"Dead letters of '{stock.description.path}' are in the dead-letter queue.")
    session = _session(stock, command)
    passes = _filter(command, session)
    # Messages whose locks have expired can be taken.
    stock.end_locks(at, changes)
    shelf = stock.shelves[command.subqueue]
    taken: list[Message] = []
    if MessageState.ACTIVE in command.states:
        taken += _take(shelf.available, command, passes, command.count, session)
    if MessageState.DEFERRED in command.states:
        taken += _take(shelf.deferred, command, passes, command.count - len(taken), session)
    if MessageState.SCHEDULED in command.states and command.subqueue is SubQueue.MAIN:
        found = _chosen(shelf.scheduled, passes, command.count - len(taken))
        taken += parts.intake.cancel_scheduled([message.sequence_number for message in found])
    if cause is None:
        stock.remove(taken, changes)
    else:
        stock.dead_letter(taken, cause, changes)
    locked = sum(passes(message) for message in stock.locked_messages(command.subqueue))
    return Purged(len(taken), locked, more=len(taken) >= command.count)


def _session(stock: Stock, command: Purge) -> OneSession | None:
    if command.session_id is None:
        return None
    return OneSession(command.session_id, exact=stock.description.exact_keys)


def _filter(command: Purge, session: OneSession | None) -> _Passes:
    numbers = None if command.numbers is None else frozenset(command.numbers)
    states, since, before = command.states, command.enqueued_from, command.enqueued_before

    def passes(message: Message) -> bool:
        return (
            message.state in states
            and (numbers is None or message.sequence_number in numbers)
            and (session is None or session.includes(message.session_id))
            and (since is None or message.enqueued_at >= since)
            and (before is None or message.enqueued_at < before)
        )

    return passes


def _take(
    waiting: Waiting, command: Purge, passes: _Passes, count: int, session: OneSession | None
) -> list[Message]:
    if command.numbers is not None and isinstance(waiting, Run):
        named = waiting.take_these(list(islice(sorted(command.numbers), max(0, count))))
        returned = [message for message in named if not passes(message)]
        waiting.insert(returned)
        return [message for message in named if passes(message)]
    candidates = waiting if session is None else waiting.in_session(session, SequenceNumber(0))
    chosen = _chosen(candidates, passes, count)
    waiting.discard(chosen)
    return chosen


def _chosen(waiting: Iterable[Message], passes: _Passes, count: int) -> list[Message]:
    """Up to `count` messages that pass, without taking them."""
    return list(islice(filter(passes, waiting), max(0, count)))
