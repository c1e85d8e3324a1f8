"""Operations of `$management` that Service Bus does not have: an entity read by ranges of numbers.

Their names begin with `bendybus:`; docs/reference/extensions.md has their fields. Azure answers them with
not-implemented, so a client can detect that. What a range is, and why it can be trusted:
domain/handlers/ranges.py. Which consumer may remove messages: domain/leases.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus.amqp.types import Timestamp
from bendybus.auth.rights import Right
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.leases import LeaseRequest
from bendybus.domain.messages import MessageState, SubQueue
from bendybus.domain.range_commands import (
    Browse,
    Browsed,
    Discard,
    Discarded,
    DiscardThrough,
    Survey,
    Surveyed,
)
from bendybus.envelope import render_browsed
from bendybus.errors import ArgumentError, InvalidOperation, Unavailable
from bendybus.gateway.management.fields import (
    Body,
    sequence_numbers,
    session_id_of,
    states_of,
    time_of,
    whole_number,
)
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.names import SequenceNumber

__all__ = ["OPERATIONS"]

# One answer is one message on the wire, rendered in one go: 16 MB are some 50 ms of work.
RANGE_BYTES_MAX: Final = 16 * 1024 * 1024
RANGE_BYTES_DEFAULT: Final = 4 * 1024 * 1024
RANGE_COUNT_MAX: Final = 20_000

LEASE_MAX_MS: Final = 15 * 60 * 1000
CONSUMER_LENGTH_MAX: Final = 200


async def _partition_info(managed: Managed, body: Body) -> Answer:
    queue, subqueue = managed.queue, managed.subqueue
    partitions = [await _surveyed(host, subqueue) for host in queue.hosts]
    return {
        "generation": queue.generation,
        "ordered": subqueue is SubQueue.MAIN,
        "partition-count": len(queue.hosts),
        "duplicate-detection": queue.description.requires_duplicate_detection,
        "partitions": partitions,
    }


async def _surveyed(host: ReceivingPort, subqueue: SubQueue) -> dict[str, object]:
    await host.loaded()
    unavailable: dict[str, object] = {"partition": int(host.number), "available": False}
    if host.availability in (Availability.UNAVAILABLE, Availability.GONE):
        return unavailable
    try:
        survey = await host.ask(Survey(subqueue))
    except Unavailable:
        return unavailable
    assert isinstance(survey, Surveyed)
    counts = survey.counts
    vacant_from = survey.first if survey.vacant_from is None else survey.vacant_from
    return {
        "partition": int(host.number),
        "available": True,
        "first-sequence-number": int(survey.first),
        "vacant-from-sequence-number": int(vacant_from),
        "next-sequence-number": int(survey.next),
        "high-water-mark": int(survey.stable),
        "active": counts.active,
        "deferred": counts.deferred,
        "scheduled": counts.scheduled,
        "locked": counts.locked,
        "size-bytes": counts.size_bytes,
    }


async def _peek_range(managed: Managed, body: Body) -> Answer:
    queue, subqueue = managed.queue, managed.subqueue
    first, last = whole_number(body, "from-sequence-number"), whole_number(body, "to-sequence-number")
    host = _host(queue, first)
    if _host(queue, last) is not host:
        raise ArgumentError(f"{first} and {last} are not in one partition of '{queue.path}'.")
    size_max = min(whole_number(body, "max-bytes", RANGE_BYTES_DEFAULT), RANGE_BYTES_MAX)
    session_id = session_id_of(body)
    command = Browse(
        SequenceNumber(first),
        SequenceNumber(last),
        min(max(1, whole_number(body, "message-count", RANGE_COUNT_MAX)), RANGE_COUNT_MAX),
        size_max,
        states_of(body),
        subqueue,
        session_id,
        time_of(body, "enqueued-from"),
        time_of(body, "enqueued-before"),
    )
    browsed = await host.ask(command)
    assert isinstance(browsed, Browsed)
    payloads = await host.payloads(browsed.messages)
    # A message that was removed in the meantime is left out.
    messages = [
        render_browsed(message, payload)
        for message, payload in zip(browsed.messages, payloads, strict=True)
        if payload is not None
    ]
    return {"messages": messages, "next": None if browsed.next is None else int(browsed.next)}


async def _complete_up_to(managed: Managed, body: Body) -> Answer:
    queue, subqueue = managed.queue, managed.subqueue
    consumer = _consumer(body)
    states = states_of(body)
    if MessageState.SCHEDULED in states:
        raise ArgumentError("Scheduled messages are not completed by ranges; cancel them.")
    if subqueue is not SubQueue.MAIN:
        raise InvalidOperation(
            f"Messages come to a sub-queue of '{queue.path}' in no order of their numbers: complete them by "
            "their own numbers."
        )
    numbers = sequence_numbers(body)
    await queue.lease(LeaseRequest(consumer, subqueue, None))
    removed = 0
    for number in numbers:
        discarded = await _host(queue, number).ask(DiscardThrough(number, states, subqueue))
        assert isinstance(discarded, Discarded)
        removed += discarded.count
    return {"removed": removed}


async def _complete_numbers(managed: Managed, body: Body) -> Answer:
    queue, subqueue = managed.queue, managed.subqueue
    shares: dict[ReceivingPort, list[SequenceNumber]] = {}
    for number in sequence_numbers(body):
        shares.setdefault(_host(queue, number), []).append(number)
    removed = 0
    for host, share in shares.items():
        discarded = await host.ask(Discard(share, subqueue))
        assert isinstance(discarded, Discarded)
        removed += discarded.count
    return {"removed": removed}


async def _consumer_lease(managed: Managed, body: Body) -> Answer:
    """Take or extend the lease; a duration of 0 gives it up."""
    queue, subqueue = managed.queue, managed.subqueue
    consumer = _consumer(body)
    duration_ms = whole_number(body, "duration-ms")
    if not 0 <= duration_ms <= LEASE_MAX_MS:
        raise ArgumentError(f"A lease lasts up to {LEASE_MAX_MS} ms, not {duration_ms}.")
    at = queue.now()
    await queue.lease(LeaseRequest(consumer, subqueue, duration_ms))
    return {"expires-at": Timestamp(at + duration_ms)}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "bendybus:partition-info": Operation(Right.LISTEN, _partition_info),
    "bendybus:peek-range": Operation(Right.LISTEN, _peek_range),
    "bendybus:complete-up-to": Operation(Right.LISTEN, _complete_up_to),
    "bendybus:complete-numbers": Operation(Right.LISTEN, _complete_numbers),
    "bendybus:consumer-lease": Operation(Right.LISTEN, _consumer_lease),
}


def _host(queue: Queue, number: int) -> ReceivingPort:
    host = queue.host_of_sequence_number(SequenceNumber(number))
    if host is None:
        raise ArgumentError(f"'{queue.path}' has no partition for the sequence number {number}.")
    return host


def _consumer(body: Body) -> str:
    consumer = body.get("consumer")
    if not isinstance(consumer, str) or not 0 < len(consumer) <= CONSUMER_LENGTH_MAX:
        raise ArgumentError(f"'consumer' must be a name of up to {CONSUMER_LENGTH_MAX} characters.")
    return consumer
