"""How messages enter a partition: sent, forwarded, copied from a topic, scheduled, or inserted.

The intake numbers them and keeps them until they are durable (intake.py). Only then does `confirm` put them
on a shelf, so a receiver never gets a message that a crash could undo.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.domain.changes import Changes
from bendybus.domain.commands import CancelScheduled, Confirm, Done, Enqueue, Enqueued, Publish, Reserve
from bendybus.domain.handlers.sessions import refuse_sessionless
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.parts import Parts
from bendybus.domain.stock import Stock
from bendybus.errors import InvalidOperation
from bendybus.names import Instant

__all__ = ["cancel_scheduled", "confirm", "enqueue", "publish", "reserve"]


def enqueue(parts: Parts, command: Enqueue, at: Instant, changes: Changes) -> Enqueued:
    messages, stock, intake = command.messages, parts.stock, parts.intake
    if command.destination is not None:
        return parts.outbox.enqueue(messages, command.destination, at, changes)
    if stock.session_locks is not None:
        refuse_sessionless(stock, messages)
    if command.numbered:
        return intake.schedule_numbered(messages, command.identities, stock.size_bytes, at, changes)
    enqueued = intake.enqueue(messages, command.identities, stock.size_bytes, at, changes, command.transfer)
    if command.shelved:
        _count_shelved(stock, messages, SubQueue.DEAD_LETTER)
        parts.aside_arriving += sum(map(_is_aside, messages))
        parts.outbox.arriving += _count_shelved(stock, messages, SubQueue.OUTBOX)
        elsewhere = [each.sequence_number for each in messages if each.subqueue is not SubQueue.MAIN]
        intake.leave_vacant(elsewhere)
    return enqueued


def _is_aside(message: Message) -> bool:
    """Whether a message is a dead letter or deferred from the beginning."""
    return message.subqueue is SubQueue.DEAD_LETTER or message.state is MessageState.DEFERRED


def _count_shelved(stock: Stock, arriving: Iterable[Message], subqueue: SubQueue) -> int:
    """How many of these belong to this sub-queue. The intake has counted them all for the main one."""
    shelved = [message for message in arriving if message.subqueue is subqueue]
    size_bytes = sum(message.size for message in shelved)
    stock.shelves[SubQueue.MAIN].size_bytes -= size_bytes
    stock.shelves[subqueue].size_bytes += size_bytes
    return len(shelved)


def reserve(parts: Parts, command: Reserve, at: Instant, changes: Changes) -> Enqueued:
    return parts.intake.reserve(command.count, changes)


def confirm(parts: Parts, command: Confirm, at: Instant, changes: Changes) -> Done:
    ready = parts.intake.confirm(command.sequence_number)
    if parts.outbox.arriving or parts.aside_arriving:
        elsewhere = [each for each in ready if each.subqueue is SubQueue.OUTBOX or _is_aside(each)]
        ready = [each for each in ready if each.subqueue is not SubQueue.OUTBOX and not _is_aside(each)]
        aside = sum(map(_is_aside, elsewhere))
        parts.aside_arriving -= aside
        parts.outbox.arriving -= len(elsewhere) - aside
        parts.stock.put_back(elsewhere, changes)
    if ready:
        parts.stock.arrive(ready, changes)
    return Done()


def cancel_scheduled(parts: Parts, command: CancelScheduled, at: Instant, changes: Changes) -> Done:
    parts.stock.remove(parts.intake.cancel_scheduled(command.sequence_numbers), changes)
    return Done()


def publish(parts: Parts, command: Publish, at: Instant, changes: Changes) -> Done:
    raise InvalidOperation(f"'{parts.stock.description.path}' is not a topic.")
