"""Scheduling by request: `schedule-message` and `cancel-scheduled-message` at a queue's partitions.

Messages of one request are admitted like a batch: all of them or none, in the
partition that their key names or, without a key, in one that is available. A
plain send with the annotation `x-opt-scheduled-enqueue-time` needs nothing of
this: envelope.py finds it there. How a message waits: domain/schedule.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from bendybus.broker.host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.domain.commands import CancelScheduled, Enqueue, Enqueued
from bendybus.domain.duplicates import Identities
from bendybus.domain.messages import UNASSIGNED
from bendybus.envelope import admit_all
from bendybus.errors import ArgumentError, MessageSizeExceeded, Unavailable
from bendybus.names import SequenceNumber

__all__ = ["cancel", "schedule"]


async def schedule(queue: Queue, entries: Sequence[object]) -> list[SequenceNumber]:
    """Enqueue the messages of these maps; gives the number of each, good until it is due.

    A duplicate is accepted and dropped like any other, so its number is one that no message has.
    """
    limit = queue.description.max_message_size_kb * 1024
    payloads = [_payload(entry) for entry in entries]
    if any(len(payload) > limit for payload in payloads):
        raise MessageSizeExceeded(
            f"A message to be scheduled exceeds the limit of {limit} bytes that '{queue.path}' accepts."
        )
    partitioned = len(queue.hosts) > 1
    detects = queue.description.requires_duplicate_detection
    identities = Identities(partitioned=partitioned) if detects else None
    messages, key = admit_all(payloads, queue.now(), queue.description, identities, partitioned=partitioned)
    found = None if identities is None else identities.found
    enqueued = await _enqueue(queue, Enqueue(messages, found), key)
    following = count(enqueued.first)
    dropped = set(enqueued.duplicates)
    return [
        UNASSIGNED if place in dropped else SequenceNumber(next(following)) for place in range(len(messages))
    ]


async def _enqueue(queue: Queue, command: Enqueue, key: str | None) -> Enqueued:
    attempts = len(queue.hosts) if key is None else 1
    while True:
        attempts -= 1
        try:
            enqueued = await queue.place(key).ask(command)
        except Unavailable:
            # "if the chosen one is unavailable another is taken ... and the send succeeds" (P-16)
            if attempts:
                continue
            raise
        assert isinstance(enqueued, Enqueued)
        return enqueued


async def cancel(shares: Mapping[PartitionHost, Sequence[SequenceNumber]]) -> None:
    """Remove these scheduled messages; in each partition all of them or none."""
    for host, numbers in shares.items():
        await host.ask(CancelScheduled(numbers))


def _payload(entry: object) -> bytes:
    message = entry.get("message") if isinstance(entry, Mapping) else None
    if not isinstance(message, bytes):
        raise ArgumentError("'messages' must hold maps, each with an encoded 'message'.")
    return message
