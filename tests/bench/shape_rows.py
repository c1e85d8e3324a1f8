"""The shapes that are measured: one row each, and how each broker does it.

A row says what is sent where and how it is received. A peer does the same unless the row says otherwise:
either what stands in for what it does not have, or that it cannot do the row at all. Pure data; how a row
is run: shape_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shape import PLAIN, Shape

__all__ = ["GENERATOR", "ROWS", "Cannot", "Client", "Row", "Step", "UnknownRow", "Way", "choose"]

Client = str
# Who sends and receives: the load generator, or an SDK with a program of sdk_loads.py.
GENERATOR: Client = "generator"

COUNT, QUICK_COUNT = 100_000, 15_000
KEYS = SESSIONS = 1_000
KB = 1024
# The largest message of the Standard tier is 256 KB with its headers and properties.
LARGE_BODY_BYTES = 255 * KB


@dataclass(frozen=True, slots=True)
class Way:
    """How a broker does a row. `note`: what stands in for what it does not have."""

    shape: Shape = PLAIN
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cannot:
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the load generator. `onward`: at the row's second queue and not at its first."""

    mode: str
    measured: bool = True
    onward: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """`peers`: the brokers that do not do the same; `against`: the row to compare with in the same run."""

    name: str
    title: str
    entity: str = "queue16"
    onward: str = ""
    shape: Shape = PLAIN
    steps: tuple[Step, ...] = (Step("both"),)
    count: int = COUNT
    quick_count: int = QUICK_COUNT
    window: int = 500
    body_bytes: int = KB
    peers: Mapping[str, Way | Cannot] = field(default_factory=dict)
    against: str = "plain"
    client: Client = GENERATOR

    def way(self, broker: str) -> Way | Cannot:
        return self.peers.get(broker, Way(self.shape))

    def whole_batches(self, count: int) -> int:
        """As many of so many messages as fill batches; at least one batch."""
        batch = self.shape.batch or 1
        return max(count // batch, 1) * batch


class UnknownRow(Exception):
    """A name that no row has."""


def choose(names: Iterable[str]) -> list[Row]:
    """The rows of these names, in the order of ROWS; all of them for none."""
    wanted = set(names)
    if unknown := wanted - {row.name for row in ROWS}:
        raise UnknownRow(
            f"no row {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}"
        )
    return [row for row in ROWS if not wanted or row.name in wanted]


SENT_THEN_TAKEN = (Step("send"), Step("receive"))
IN_TRANSACTIONS = (
    Step("send", measured=False),
    Step("transact"),
    Step("receive", measured=False, onward=True),
)

SESSIONS_TAKEN = Shape(sessions=SESSIONS, next_session=True, links=8)
SESSIONS_KEPT = Shape(
    sessions=SESSIONS, next_session=True, keep_session=True, connections=4, links=SESSIONS // 4, credit=5
)
NO_BATCHES = "no batches: one message to a transfer"
NO_SERVICE_BUS = Cannot("the SDKs speak Service Bus's protocol only")
SDK_ONLY: Mapping[str, Way | Cannot] = {"rabbitmq": NO_SERVICE_BUS, "artemis": NO_SERVICE_BUS}
NO_DUPLICATES: Mapping[str, Way | Cannot] = {
    "rabbitmq": Way(note="does not detect duplicates: the same messages to a plain quorum queue"),
    "artemis": Way(Shape(id_property="_AMQ_DUPL_ID"), "detects duplicates by a property; the last 20,000"),
}

ROWS = (
    Row("plain", "plain", against=""),
    Row("plain-1", "plain, 1 partition", "queue1"),
    Row("key", "partition key, 1,000 keys", shape=Shape(keys=KEYS)),
    Row("key-1", "partition key, 1 partition", "queue1", shape=Shape(keys=KEYS), against="plain-1"),
    Row(
        "sessions",
        "1,000 sessions: sent, then 8 receivers take the next",
        "sessions16",
        shape=SESSIONS_TAKEN,
        steps=SENT_THEN_TAKEN,
        peers={
            "rabbitmq": Way(
                Shape(sessions=SESSIONS, links=8), "no sessions: the same messages, any receiver"
            ),
            "artemis": Way(Shape(sessions=SESSIONS, links=8), "message groups in place of sessions"),
        },
        against="",  # the only one that is sent first
    ),
    Row(
        "sessions-kept",
        "1,000 sessions, a receiver each, 4 connections",
        "sessions16",
        shape=SESSIONS_KEPT,
        window=125,
        peers={
            "rabbitmq": Way(
                Shape(sessions=SESSIONS, connections=4), "no sessions: the same messages, 4 receivers"
            ),
            "artemis": Way(
                Shape(sessions=SESSIONS, connections=4, links=SESSIONS // 4, credit=5),
                "message groups in place of sessions",
            ),
        },
    ),
    Row("properties", "ten application properties", shape=Shape(properties=10)),
    Row(
        "batch",
        "the SDKs' batch format, 100 to a batch",
        shape=Shape(batch=100),
        peers={"rabbitmq": Way(note=NO_BATCHES), "artemis": Way(note=NO_BATCHES)},
    ),
    Row(
        "body-64k",
        "bodies of 64 KB",
        body_bytes=64 * KB,
        window=50,
        count=5_000,
        quick_count=1_000,
        against="",
    ),
    Row(
        "body-256k",
        "bodies of 255 KB",
        body_bytes=LARGE_BODY_BYTES,
        window=20,
        count=1_500,
        quick_count=300,
        against="",
    ),
    Row("delete", "receive and delete", shape=Shape(settled=True)),
    Row("topic", "topic, 1 subscription", "topic16"),
    Row("topic-1", "topic of 1 partition, 1 subscription", "topic1", against="plain-1"),
    Row(
        "topic-5",
        "topic, 5 subscriptions",
        "fivefold16",
        count=COUNT // 4,
        quick_count=QUICK_COUNT // 4,
        against="",
    ),
    Row("duplicates", "duplicate detection", "duplicates16", peers=NO_DUPLICATES),
    Row(
        "duplicates-1",
        "duplicate detection, 1 partition",
        "duplicates1",
        peers=NO_DUPLICATES,
        against="plain-1",
    ),
    Row("tls", "TLS", shape=Shape(tls=True)),
    Row("connections-20", "20 connections each way, window 20", shape=Shape(connections=20), window=20),
    Row("connections-200", "200 connections each way, window 20", shape=Shape(connections=200), window=20),
    Row("latency", "one in flight", window=1, count=2_000, quick_count=400, against=""),
    Row(
        "transactions",
        "transactions: complete and send on, 64 at once",
        onward="onward16",
        shape=Shape(keys=KEYS, transactions=64),
        steps=IN_TRANSACTIONS,
        count=10_000,
        quick_count=2_000,
        peers={"rabbitmq": Cannot("no transactions in AMQP 1.0")},
        against="",
    ),
    Row(
        "python-sdk",
        "Python SDK, 100 to a call, each completed",
        client="python",
        count=3_000,
        quick_count=1_000,
        peers=SDK_ONLY,
        against="",
    ),
    Row(
        "dotnet-batches",
        ".NET SDK, 100 to a call, each completed",
        client="dotnet batches",
        count=10_000,
        quick_count=2_000,
        peers=SDK_ONLY,
        against="",
    ),
    Row(
        "dotnet-processor",
        ".NET SDK, a processor, one at a time",
        client="dotnet processor",
        count=3_000,
        quick_count=1_000,
        peers=SDK_ONLY,
        against="",
    ),
)
