"""Scheduling by request: `schedule-message` and `cancel-scheduled-message` at an entity's partitions.

Messages of one request are admitted like a batch: all of them or none, in the
partition that their key names or, without a key, in one that is available. A
plain send with the annotation `x-opt-scheduled-enqueue-time` needs nothing of
this: envelope/ finds it there. How a message waits: domain/schedule.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from typing import Any, Final, TypeVar

from bendybus.amqp.types import Array
from bendybus.auth.rights import Right
from bendybus.broker.entity import Entity
from bendybus.broker.topic import SendTarget
from bendybus.domain.commands import CancelScheduled, Enqueue, Enqueued, Reserve
from bendybus.domain.duplicates import Identities
from bendybus.domain.messages import UNASSIGNED, Message, MessageState
from bendybus.envelope import admit_all, admit_enlisted
from bendybus.errors import ArgumentError, MessageSizeExceeded, Unavailable
from bendybus.gateway.management.fields import Body, array, sequence_numbers
from bendybus.gateway.management.operation import Answer, Managed, Operation, by_partition
from bendybus.gateway.transaction import Transaction
from bendybus.names import RoutingKey, SequenceNumber

__all__ = ["OPERATIONS"]

T = TypeVar("T")

# Admitted in one go, in about a tenth of a second. As many as in a batch on a link.
MESSAGES_MAX: Final = 10_000


# -- requests ---------------------------------------------------------------------


async def _schedule_message(managed: Managed, body: Body) -> Answer:
    managed.entity.refuse_sending(managed.subqueue)
    numbers = await _schedule(managed.entity, array(body, "messages"))
    return {"sequence-numbers": Array(int, [*numbers])}


async def _schedule_message_in_transaction(managed: Managed, body: Body, transaction: Transaction) -> Answer:
    managed.entity.refuse_sending(managed.subqueue)
    numbers = await _schedule_in_transaction(managed.entity, array(body, "messages"), transaction)
    return {"sequence-numbers": Array(int, [*numbers])}


async def _cancel_scheduled_message(managed: Managed, body: Body) -> Answer:
    """In each partition all of these are removed, or none."""
    entity: Entity[Any, Any, Any] = managed.entity
    entity.refuse_sending(managed.subqueue)
    for host, numbers in by_partition(entity, sequence_numbers(body)).items():
        await host.ask(CancelScheduled(numbers))
    return {}


async def _cancel_scheduled_message_in_transaction(
    managed: Managed, body: Body, transaction: Transaction
) -> Answer:
    entity: Entity[Any, Any, Any] = managed.entity
    entity.refuse_sending(managed.subqueue)
    for host, numbers in by_partition(entity, sequence_numbers(body)).items():
        await transaction.cancel_scheduled(managed.entity, host, numbers)
    return {}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "com.microsoft:schedule-message": Operation(
        Right.SEND, _schedule_message, _schedule_message_in_transaction
    ),
    "com.microsoft:cancel-scheduled-message": Operation(
        Right.SEND, _cancel_scheduled_message, _cancel_scheduled_message_in_transaction
    ),
}

# -- messages ---------------------------------------------------------------------


async def _schedule(target: SendTarget, entries: Sequence[object]) -> list[SequenceNumber]:
    """Enqueue the messages of these maps. Returns their numbers, which are valid until they are due.

    A duplicate is accepted and dropped like any other, so its number is one that no message has.
    """
    messages, found, key = _admit(target, entries)
    enqueued = await _enqueue(target, Enqueue(messages, found), key)
    following = count(enqueued.first)
    dropped = set(enqueued.duplicates)
    return [
        UNASSIGNED if index in dropped else SequenceNumber(next(following)) for index in range(len(messages))
    ]


async def _schedule_in_transaction(
    target: SendTarget, entries: Sequence[object], transaction: Transaction
) -> list[SequenceNumber]:
    """The same as part of a transaction: the numbers are returned at once, and the messages are stored later.

    The commit sends a message that is already due, and gives it a new number.
    """
    payloads = _payloads(target, entries)
    identities = _identities(target)
    exact = target.description.exact_keys
    admitted = [
        admit_enlisted(each, target.now(), target.description, identities, via_exact=exact)
        for each in payloads
    ]
    messages = [message for message, _ in admitted]
    known_by = None if identities is None else identities.found
    keys = [each for _, each in admitted]
    host = transaction.placed(target, keys)
    generation = target.generation
    reserved = await host.ask(Reserve(len(messages)))
    assert isinstance(reserved, Enqueued)
    numbers = [SequenceNumber(reserved.first + index) for index in range(len(messages))]
    for message, number in zip(messages, numbers, strict=True):
        message.sequence_number = number
    waits = [message.state is MessageState.SCHEDULED for message in messages]
    is_due = [not each for each in waits]
    if any(waits):
        transaction.schedule(
            target, generation, _chosen(messages, waits), known_by and _chosen(known_by, waits)
        )
    if any(is_due):
        transaction.send_scheduled(target, _chosen(messages, is_due), known_by and _chosen(known_by, is_due))
    return numbers


def _chosen(values: Iterable[T], chosen: Iterable[bool]) -> list[T]:
    return list(compress(values, chosen))


def _admit(
    target: SendTarget, entries: Sequence[object]
) -> tuple[list[Message], Sequence[str | None] | None, RoutingKey | None]:
    """The messages of these maps, what they are known by, and the one key they share."""
    payloads = _payloads(target, entries)
    identities = _identities(target)
    partitioned = len(target.hosts) > 1
    messages, key = admit_all(payloads, target.now(), target.description, identities, partitioned=partitioned)
    return messages, None if identities is None else identities.found, key


def _identities(target: SendTarget) -> Identities | None:
    detects = target.description.requires_duplicate_detection
    return Identities(partitioned=len(target.hosts) > 1) if detects else None


def _payloads(target: SendTarget, entries: Sequence[object]) -> list[bytes]:
    if len(entries) > MESSAGES_MAX:
        raise ArgumentError(
            f"'messages' holds {len(entries)} messages; at most {MESSAGES_MAX} are scheduled at once."
        )
    limit = target.description.max_message_bytes
    payloads = [_payload(entry) for entry in entries]
    if any(len(payload) > limit for payload in payloads):
        raise MessageSizeExceeded(
            f"A message to be scheduled exceeds the limit of {limit} bytes that '{target.path}' accepts."
        )
    return payloads


async def _enqueue(target: SendTarget, command: Enqueue, key: RoutingKey | None) -> Enqueued:
    attempts = len(target.hosts) if key is None else 1
    while True:
        attempts -= 1
        try:
            enqueued = await target.host_for(key).ask(command)
        except Unavailable:
            # "if the chosen one is unavailable another is taken ... and the send succeeds" (P-16)
            if attempts:
                command = Enqueue([message.unsent() for message in command.messages], command.identities)
                continue
            raise
        assert isinstance(enqueued, Enqueued)
        return enqueued


def _payload(entry: object) -> bytes:
    message = entry.get("message") if isinstance(entry, Mapping) else None
    if not isinstance(message, bytes):
        raise ArgumentError("'messages' must hold maps, each with an encoded 'message'.")
    return message
