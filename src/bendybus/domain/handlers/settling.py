"""How locked messages are settled (completed, abandoned, released, deferred, dead-lettered) and renewed.

A settlement reports which locks are lost; the other messages are settled. In a transaction, either all
are settled or none: `refuse_lost` ensures that. What happens when a lock expires instead: stock.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from bendybus.domain.changes import Changes
from bendybus.domain.commands import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Done,
    Enqueued,
    LoseLocks,
    Release,
    Renew,
    Renewed,
    Settled,
)
from bendybus.domain.deadletter import Cause
from bendybus.domain.expiry import NEVER
from bendybus.domain.messages import Amendment, Message, MessageState, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.range_commands import Replay, Replayable
from bendybus.domain.resting import delay_ms
from bendybus.domain.stock import Stock
from bendybus.errors import ArgumentError, InvalidOperation, MessageLockLost
from bendybus.names import Instant, LockToken

__all__ = [
    "AMENDMENT_BYTES_MAX",
    "abandon",
    "complete",
    "dead_letter",
    "defer",
    "lose_locks",
    "refuse_dead_letters",
    "refuse_large_amendments",
    "refuse_lost",
    "release",
    "renew",
    "replay",
]

# "Maximum message header size 64 KB". The same limit applies to what settlements add to the properties.
AMENDMENT_BYTES_MAX: Final = 64 * 1024


def complete(parts: Parts, command: Complete, at: Instant, changes: Changes) -> Settled:
    stock = parts.stock
    messages, lost = stock.unlock(command.lock_tokens, at, changes)
    if messages and messages[0].subqueue is SubQueue.MAIN:
        stock.tally.completed += len(messages)
    parts.completed.finish(messages, at, changes)
    return Settled(lost)


def replay(parts: Parts, command: Replay, at: Instant, changes: Changes) -> Enqueued | Replayable:
    """The reverse of `complete`, for messages that are kept."""
    return parts.completed.put_back(command, at, changes)


def abandon(parts: Parts, command: Abandon, at: Instant, changes: Changes) -> Settled:
    stock = parts.stock
    refuse_large_amendments(stock, command.lock_tokens, command.properties)
    messages, lost = stock.unlock(command.lock_tokens, at, changes)
    _amend(messages, command.properties)
    if messages and messages[0].subqueue is SubQueue.MAIN:
        stock.tally.abandoned += len(messages)
    if command.delay_ms is None and not stock.description.retry_delay_s:
        stock.fail_delivery(messages, changes)
    else:
        stock.fail_delivery(messages, changes, partial(_rest_until, stock, command.delay_ms, at))
    return Settled(lost)


def _rest_until(stock: Stock, asked_ms: int | None, at: Instant, message: Message) -> Instant | None:
    """Until when an abandoned message rests: as its receiver asks, or as its entity says (resting.py)."""
    delay = delay_ms(stock.description, message.delivery_count) if asked_ms is None else asked_ms
    return Instant(at + delay) if delay > 0 else None


def lose_locks(parts: Parts, command: LoseLocks, at: Instant, changes: Changes) -> Done:
    stock = parts.stock
    ended = stock.locks.expire(NEVER)
    stock.tally.lost_locks += len(ended)
    stock.fail_delivery(ended, changes)
    if stock.session_locks is not None:
        for session in stock.session_locks.overdue(NEVER):
            assert session.lock is not None
            changes.sessions.lost.append(session.lock)
            stock.free_session(session, changes, failed=True)
    return Done()


def release(parts: Parts, command: Release, at: Instant, changes: Changes) -> Settled:
    messages, lost = parts.stock.unlock(command.lock_tokens, at, changes)
    parts.stock.put_back(messages, changes)
    return Settled(lost)


def defer(parts: Parts, command: Defer, at: Instant, changes: Changes) -> Settled:
    """Deferring counts as a delivery but never dead-letters the message."""
    stock = parts.stock
    refuse_large_amendments(stock, command.lock_tokens, command.properties)
    messages, lost = stock.unlock(command.lock_tokens, at, changes)
    _amend(messages, command.properties)
    for message in messages:
        message.state = MessageState.DEFERRED
        if message.subqueue is SubQueue.MAIN:
            message.delivery_count += 1
    changes.update(messages)
    stock.put_back(messages, changes)
    return Settled(lost)


def dead_letter(parts: Parts, command: DeadLetter, at: Instant, changes: Changes) -> Settled:
    stock = parts.stock
    cause = Cause(command.reason, command.description)
    refuse_dead_letters(stock, command.lock_tokens, at)
    refuse_large_amendments(stock, command.lock_tokens, command.properties)
    messages, lost = stock.unlock(command.lock_tokens, at, changes)
    _amend(messages, command.properties)
    stock.dead_letter(messages, cause, changes)
    return Settled(lost)


def renew(parts: Parts, command: Renew, at: Instant, changes: Changes) -> Renewed:
    """Renew locks. A message in a session is locked until the session's lock ends, so it is unchanged."""
    stock = parts.stock
    stock.end_locks(at, changes)
    ends = stock.locks.renew(command.lock_tokens, stock.lock_end(at))
    if stock.session_locks is not None:
        for index, token in enumerate(command.lock_tokens):
            message = stock.session_locks.find(token)
            if message is not None:
                ends[index] = message.locked_until
    return Renewed(ends)


def _amend(messages: list[Message], properties: bytes | None) -> None:
    if properties:
        for message in messages:
            message.amendment = (message.amendment or Amendment()).with_properties(properties)


# -- refusing: before anything changes ----------------------------------------------


def refuse_lost(stock: Stock, tokens: Sequence[LockToken], at: Instant) -> None:
    for token in tokens:
        message = stock.locked(token)
        if message is None or message.locked_until <= at:
            raise MessageLockLost(
                "The lock supplied is invalid. Either the lock expired, or the message has already been "
                f"removed from the queue '{stock.description.path}'."
            )


def refuse_large_amendments(stock: Stock, tokens: Sequence[LockToken], properties: bytes | None) -> None:
    """Limit the total size of the added properties: a message can be deferred any number of times."""
    if not properties:
        return
    for token in tokens:
        message = stock.locked(token)
        before = 0 if message is None or message.amendment is None else message.amendment.size
        if before + len(properties) > AMENDMENT_BYTES_MAX:
            raise ArgumentError(
                f"The properties set while settling a message of '{stock.description.path}' have "
                f"{before + len(properties)} bytes together; at most {AMENDMENT_BYTES_MAX} are kept."
            )


def refuse_dead_letters(stock: Stock, tokens: Sequence[LockToken], at: Instant) -> None:
    """A dead letter cannot be dead-lettered again."""
    for token in tokens:
        message = stock.locked(token)
        if message and message.subqueue is not SubQueue.MAIN and message.locked_until > at:
            raise InvalidOperation(
                f"Message {message.sequence_number} of '{stock.description.path}' is already in the "
                "dead-letter queue."
            )
