"""How messages are handed out: locked, received and deleted, peeked, or deleted in bulk.

Expired locks are ended first, so their messages can be received again. Messages of an entity with
sessions are received by the holder of their session (handlers/sessions.py); its sub-queues have no sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from bendybus.domain.changes import Changes
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Deleted,
    DeleteOldest,
    Given,
    Lock,
    LockDeferred,
    LockThese,
    Peek,
    Receive,
    ReceiveDeferred,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.run import Run
from bendybus.domain.session_locks import SessionLocks
from bendybus.domain.sessions import Session
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation, MessageNotFound
from bendybus.names import Instant, SequenceNumber
from bendybus.session_ids import OneSession

__all__ = ["delete_oldest", "lock", "lock_deferred", "lock_these", "peek", "receive", "receive_deferred"]


# -- the oldest -------------------------------------------------------------------


def lock(parts: Parts, command: Lock, at: Instant, changes: Changes) -> Given:
    stock = parts.stock
    assert len(command.entropy) >= ENTROPY_PER_LOCK * command.count, "too little entropy for these locks"
    _refuse_without_session(stock, command.subqueue)
    stock.end_locks(at, changes)
    messages = stock.take(command.count, command.subqueue, at, changes)
    stock.grant(messages, command.entropy, at)
    if command.subqueue is SubQueue.MAIN:
        stock.tally.give(messages, at)
    return Given(messages)


def receive(parts: Parts, command: Receive, at: Instant, changes: Changes) -> Given:
    stock = parts.stock
    _refuse_without_session(stock, command.subqueue)
    stock.end_locks(at, changes)
    messages = stock.take(command.count, command.subqueue, at, changes)
    if command.subqueue is SubQueue.MAIN:
        stock.tally.give(messages, at)
        stock.tally.completed += len(messages)
    given = parts.completed.given(messages)
    parts.completed.finish(messages, at, changes)
    return Given(given)


def delete_oldest(parts: Parts, command: DeleteOldest, at: Instant, changes: Changes) -> Deleted:
    stock, before = parts.stock, command.enqueued_before
    stock.end_locks(at, changes)
    if command.session_id is None:
        messages = _take_oldest(stock, command, at, changes)
    else:
        wanted = OneSession(command.session_id, exact=stock.description.exact_keys)
        messages = _take_of_session(stock, wanted, command.count, before, command.subqueue)
    stock.remove(messages, changes)
    return Deleted(len(messages))


def _take_oldest(stock: Stock, command: DeleteOldest, at: Instant, changes: Changes) -> list[Message]:
    """The oldest messages that the command deletes.

    Messages that stay are not taken and put back: a session without messages is forgotten, with its rest.
    """
    available = stock.shelves[command.subqueue].available
    messages: list[Message] = []
    while len(messages) < command.count:
        oldest = available.starting_at(SequenceNumber(0), command.count - len(messages))
        taken = [message for message in oldest if message.enqueued_at < command.enqueued_before]
        available.discard(taken)
        alive = taken
        if command.subqueue is SubQueue.MAIN:
            alive = stock.expire_among(taken, at, changes)
        messages += alive
        if len(alive) == len(taken):
            break
    return messages


def _take_of_session(
    stock: Stock, wanted: OneSession, count: int, enqueued_before: Instant, subqueue: SubQueue
) -> list[Message]:
    """Up to `count` of the session's oldest available messages that were enqueued before this time."""
    available = stock.shelves[subqueue].available
    found = (
        message
        for message in available
        if message.enqueued_at < enqueued_before and wanted.includes(message.session_id)
    )
    taken = list(islice(found, max(0, count)))
    for message in taken:
        available.remove(message)
    return taken


# -- by number --------------------------------------------------------------------


def lock_these(parts: Parts, command: LockThese, at: Instant, changes: Changes) -> Given:
    stock, subqueue = parts.stock, command.subqueue
    _refuse_without_session(stock, subqueue)
    stock.end_locks(at, changes)
    available = stock.shelves[subqueue].available
    assert isinstance(available, Run), "messages of a session are for its holder"
    messages = available.take_these(command.sequence_numbers)
    if subqueue is SubQueue.MAIN:
        messages = stock.expire_among(messages, at, changes)
        stock.tally.give(messages, at)
    stock.grant(messages, command.entropy, at)
    return Given(messages)


def lock_deferred(parts: Parts, command: LockDeferred, at: Instant, changes: Changes) -> Given:
    stock = parts.stock
    held = _session_of_deferred(stock, command, at)
    messages = _take_deferred(stock, command.sequence_numbers, command.subqueue, held)
    if held is None:
        stock.grant(messages, command.entropy, at)
    else:
        locks, session = held
        locks.grant(session, messages, command.entropy)
    return Given(messages)


def receive_deferred(parts: Parts, command: ReceiveDeferred, at: Instant, changes: Changes) -> Given:
    held = _session_of_deferred(parts.stock, command, at)
    messages = _take_deferred(parts.stock, command.sequence_numbers, command.subqueue, held)
    given = parts.completed.given(messages)
    parts.completed.finish(messages, at, changes)
    return Given(given)


def _session_of_deferred(
    stock: Stock, command: LockDeferred | ReceiveDeferred, at: Instant
) -> tuple[SessionLocks, Session] | None:
    """The session named in the command. With sessions, only the holder gets deferred messages."""
    if stock.session_locks is None or command.subqueue is not SubQueue.MAIN:
        return None
    if command.session is None:
        raise _session_needed(stock)
    return stock.session_locks, stock.session_locks.holding(command.session, at)


def _take_deferred(
    stock: Stock,
    numbers: Sequence[SequenceNumber],
    subqueue: SubQueue,
    held: tuple[SessionLocks, Session] | None,
) -> list[Message]:
    """All of these messages, in the order of the command, or none. In a session, only its messages.

    A lock that has expired but was not ended still counts. Ending it here and then refusing the command
    would be a change without an effect.
    """
    deferred = stock.shelves[subqueue].deferred
    found = {number: deferred.find(number) for number in numbers}
    missing = [
        number
        for number, message in found.items()
        if message is None or (held is not None and held[0].sessions.key_of(message) != held[1].key)
    ]
    if missing:
        listed = ", ".join(map(str, missing))
        raise MessageNotFound(
            f"Not deferred, or locked, in partition {stock.number} of '{stock.description.path}': {listed}."
        )
    messages = [message for message in found.values() if message is not None]
    for message in messages:
        deferred.remove(message)
    return messages


# -- peeking ----------------------------------------------------------------------


def peek(parts: Parts, command: Peek, at: Instant, changes: Changes) -> Given:
    stock, start, count = parts.stock, command.from_sequence_number, command.count
    shelf, locked = stock.shelves[command.subqueue], stock.locked_messages(command.subqueue)
    if command.session_id is None:
        return Given(shelf.peek(start, count, locked))
    return Given(
        shelf.peek_session(
            OneSession(command.session_id, exact=stock.description.exact_keys), start, count, locked
        )
    )


# -- refusing ---------------------------------------------------------------------


def _refuse_without_session(stock: Stock, subqueue: SubQueue) -> None:
    if stock.session_locks is not None and subqueue is SubQueue.MAIN:
        raise _session_needed(stock)


def _session_needed(stock: Stock) -> InvalidOperation:
    return InvalidOperation(
        f"'{stock.description.path}' requires sessions. Its messages are received by the holder of their "
        "session."
    )
