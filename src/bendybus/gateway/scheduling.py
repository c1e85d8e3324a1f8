"""Scheduling by request: `schedule-message` and `cancel-scheduled-message` at a queue's partitions.

Messages of one request are admitted like a batch: all of them or none, in the
partition that their key names or, without a key, in one that is available. A
plain send with the annotation `x-opt-scheduled-enqueue-time` needs nothing of
this: envelope.py finds it there. How a message waits: domain/schedule.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bendybus.broker.clock import now
from bendybus.broker.host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.domain.commands import CancelScheduled, Enqueue, Enqueued
from bendybus.domain.messages import Message
from bendybus.errors import ArgumentError, MessageSizeExceeded, Unavailable
from bendybus.gateway.envelope import admit_all
from bendybus.names import SequenceNumber

__all__ = ["cancel", "schedule"]


async def schedule(queue: Queue, entries: Sequence[object]) -> list[SequenceNumber]:
    """Enqueue the messages of these maps; gives the number of each, good until it is due."""
    limit = queue.description.max_message_size_kb * 1024
    payloads = [_payload(entry) for entry in entries]
    if any(len(payload) > limit for payload in payloads):
        raise MessageSizeExceeded(
            f"A message to be scheduled exceeds the limit of {limit} bytes that '{queue.path}' accepts."
        )
    messages, key = admit_all(payloads, now(), queue.description, partitioned=len(queue.hosts) > 1)
    enqueued = await _enqueue(queue, messages, key)
    return [SequenceNumber(enqueued.first + offset) for offset in range(len(messages))]


async def _enqueue(queue: Queue, messages: list[Message], key: str | None) -> Enqueued:
    attempts = len(queue.hosts) if key is None else 1
    while True:
        attempts -= 1
        try:
            enqueued = await queue.place(key).ask(Enqueue(messages))
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
