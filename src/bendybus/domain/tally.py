"""What a partition has done since the server started: messages counted per command, never one by one.

The host keeps the tally (broker/), so it outlives the memory of the partition. Only the main sub-queue
counts: what is done with dead letters says nothing about the work of an entity. Commands are counted when
they are applied; if a commit fails, what its commands did is counted and then done again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from bendybus.domain.messages import Message
from bendybus.names import Instant

__all__ = ["LATENCY_BOUNDS_MS", "Tally"]

# From a message that a receiver is waiting for to one that has waited overnight.
LATENCY_BOUNDS_MS: Final = (
    2,
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1000,
    5000,
    30_000,
    300_000,
    3_600_000,
    43_200_000,
)


class Tally:
    __slots__ = (
        "abandoned",
        "completed",
        "dead_lettered",
        "expired",
        "incoming",
        "kept_too_short",
        "latency",
        "latency_sum_ms",
        "lost_locks",
        "outgoing",
    )

    def __init__(self) -> None:
        self.incoming = 0
        """Accepted and durable."""
        self.outgoing = 0
        """Locked for receivers, or received and deleted; each delivery counts."""
        self.completed = 0
        """Removed because they were processed, or received and deleted."""
        self.abandoned = 0
        self.lost_locks = 0
        """Locks of messages that ended before the messages were settled."""
        self.dead_lettered = 0
        self.expired = 0
        self.kept_too_short = 0
        """Completed messages that were forgotten before their time, because there was no more room."""
        self.latency = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        """The number of messages by the time that they waited: up to each bound, and longer."""
        self.latency_sum_ms = 0

    def give(self, messages: Sequence[Message], at: Instant) -> None:
        """Count messages that are handed out together."""
        count = len(messages)
        if count < 2:
            for message in messages:
                waited = at - message.enqueued_at
                self.outgoing += 1
                self.latency_sum_ms += waited
                self.latency[bisect_left(LATENCY_BOUNDS_MS, waited)] += 1
            return
        self.outgoing += count
        enqueued = [message.enqueued_at for message in messages]
        self.latency_sum_ms += count * at - sum(enqueued)
        shortest = bisect_left(LATENCY_BOUNDS_MS, at - max(enqueued))
        longest = bisect_left(LATENCY_BOUNDS_MS, at - min(enqueued))
        if shortest == longest:
            self.latency[longest] += count
        else:
            for time in enqueued:
                self.latency[bisect_left(LATENCY_BOUNDS_MS, at - time)] += 1
