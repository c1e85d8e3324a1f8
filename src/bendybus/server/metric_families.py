"""The metrics that `/metrics` shows: names, kinds and meanings. What fills them: figures.py, metrics.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bendybus.broker.writer import COMMIT_BOUNDS_S
from bendybus.domain.tally import LATENCY_BOUNDS_MS

__all__ = ["FAMILIES", "Family", "family_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name with the ending that counters have, and what it means."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    bounds: tuple[float, ...] = ()
    """Of a histogram, the upper bounds of its buckets but the last."""


# -- of a process -------------------------------------------------------------------

CONNECTIONS: Final = Family("bendybus_connections", "gauge", "AMQP connections open now.")
MEMORY_USED: Final = Family("bendybus_memory_used_bytes", "gauge", "Bytes kept for connections.")
MEMORY_LIMIT: Final = Family(
    "bendybus_memory_limit_bytes", "gauge", "Bytes that may be kept for connections: --memory."
)
MEMORY_DISCONNECTS: Final = Family(
    "bendybus_memory_disconnects_total", "counter", "Connections that were closed because memory was used up."
)
CPU: Final = Family("process_cpu_seconds_total", "counter", "Processor time that the server has used.")
RESIDENT: Final = Family("process_resident_memory_bytes", "gauge", "Memory of the server's processes.")
DESCRIPTORS: Final = Family("process_open_fds", "gauge", "Open files and sockets.")
DESCRIPTORS_MAX: Final = Family("process_max_fds", "gauge", "Open files and sockets that are allowed.")
STARTED: Final = Family("process_start_time_seconds", "gauge", "When the server started, since 1970.")

# -- of an entity: what is there ----------------------------------------------------

CACHE: Final = Family("bendybus_payload_cache_bytes", "gauge", "Payloads kept in memory.")
MESSAGES: Final = Family("bendybus_messages", "gauge", "Messages held.")
SIZE: Final = Family("bendybus_size_bytes", "gauge", "Bytes held.")
PARTITIONS: Final = Family("bendybus_partitions", "gauge", "Partitions of the entity.")
PARTITIONS_AVAILABLE: Final = Family(
    "bendybus_partitions_available", "gauge", "Partitions of the entity that take commands."
)
PARTITION_AVAILABLE: Final = Family(
    "bendybus_partition_available", "gauge", "1 while the partition takes commands."
)
LINKS: Final = Family("bendybus_links", "gauge", "Links of clients to the entity.")
SESSIONS: Final = Family(
    "bendybus_sessions",
    "gauge",
    "Sessions that a receiver holds, and sessions with messages that wait for one.",
)

# -- of an entity: what has happened ------------------------------------------------

INCOMING: Final = Family("bendybus_incoming_messages_total", "counter", "Messages accepted.")
OUTGOING: Final = Family("bendybus_outgoing_messages_total", "counter", "Messages delivered to receivers.")
COMPLETED: Final = Family("bendybus_completed_messages_total", "counter", "Messages completed.")
ABANDONED: Final = Family("bendybus_abandoned_messages_total", "counter", "Messages abandoned.")
DEAD_LETTERED: Final = Family("bendybus_dead_lettered_messages_total", "counter", "Messages dead-lettered.")
EXPIRED: Final = Family("bendybus_expired_messages_total", "counter", "Messages whose time to live was over.")
KEPT_TOO_SHORT: Final = Family(
    "bendybus_completed_messages_forgotten_early_total",
    "counter",
    "Completed messages that were forgotten before their time, because there was no more room for them.",
)
LOST_LOCKS: Final = Family("bendybus_lost_locks_total", "counter", "Locks that ended before a settlement.")
REFUSED: Final = Family("bendybus_refused_sends_total", "counter", "Messages refused for good when sent.")
THROTTLED: Final = Family(
    "bendybus_throttled_sends_total", "counter", "Messages that a client was told to send again later."
)
DELIVERY: Final = Family(
    "bendybus_delivery_seconds",
    "histogram",
    "Time from accepting a message to handing it out.",
    tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS),
)

# -- of a messaging store -----------------------------------------------------------

COMMITS: Final = Family("bendybus_store_commits_total", "counter", "Commits made durable.")
COMMIT_SECONDS: Final = Family(
    "bendybus_store_commit_seconds", "histogram", "Time that a commit took.", COMMIT_BOUNDS_S
)
STORED: Final = Family("bendybus_messages_stored_total", "counter", "Messages made durable.")
STORE_AVAILABLE: Final = Family(
    "bendybus_store_available",
    "gauge",
    "1 while the store answers, 0.5 while it is slow or damaged, 0 while it is away.",
)
WAITING: Final = Family(
    "bendybus_store_waiting_seconds", "gauge", "How long the store has been with the call that is under way."
)
FAILURES: Final = Family("bendybus_store_failures_total", "counter", "Times it went away.")
DAMAGES: Final = Family(
    "bendybus_store_damages_total", "counter", "Calls that found damaged data in the store."
)

FAMILIES: Final = (
    *(CONNECTIONS, MEMORY_USED, MEMORY_LIMIT, MEMORY_DISCONNECTS),
    *(CPU, RESIDENT, DESCRIPTORS, DESCRIPTORS_MAX, STARTED),
    *(CACHE, MESSAGES, SIZE, PARTITIONS, PARTITIONS_AVAILABLE, PARTITION_AVAILABLE, LINKS, SESSIONS),
    *(INCOMING, OUTGOING, COMPLETED, ABANDONED, DEAD_LETTERED, EXPIRED, LOST_LOCKS, REFUSED, THROTTLED),
    KEPT_TOO_SHORT,
    *(DELIVERY, COMMITS, COMMIT_SECONDS, STORED, STORE_AVAILABLE, WAITING, FAILURES, DAMAGES),
)

_BY_SAMPLE: Final = {
    f"{family.name}{ending}": family
    for family in FAMILIES
    for ending in (("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",))
}


def family_of(sample: str) -> Family:
    """The family of a sample, by the sample's name: a histogram has samples of three names."""
    return _BY_SAMPLE[sample]
