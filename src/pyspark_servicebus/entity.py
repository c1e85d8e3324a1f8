"""An entity as a reader sees it: the extent of its partitions, and their messages by ranges.

There are two implementations. `RangedEntity` uses Bendybus's extensions: reliable marks
and large answers. `PlainEntity` is for namespaces without them
(Azure): it peeks page by page, so its marks are only as good as
what a peek shows. Positions are counters, the low 48 bits of sequence numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bendybus.amqp.types import Array, Int
from bendybus.client import BusClient, Management, ReceivedMessage
from bendybus.errors import BrokerError, NotSupported
from bendybus.names import COUNTER_MAX, PARTITION_SHIFT
from bendybus.session_ids import OneSession
from pyspark_servicebus.options import ReadOptions

__all__ = ["Entity", "EntityInfo", "MessageRange", "PartitionInfo", "open_entity"]

PAGE_COUNT: Final = 250
# Standard has 16 partitions; Premium has no more.
PARTITIONS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    first: int
    """The oldest message, or the next number to be given."""
    mark: int
    """No message at or below this number will appear later."""
    vacant_from: int
    """From this number up to `first`, no active or deferred message is missing. Without the extensions, or if
    the broker cannot say, it is `first`."""


@dataclass(frozen=True, slots=True)
class EntityInfo:
    generation: str
    ordered: bool
    """Whether new messages only ever appear above the marks."""
    partitions: Mapping[int, PartitionInfo]
    """The partitions that can be read now."""


@dataclass(frozen=True, slots=True)
class MessageRange:
    """`(after, through]` of one partition."""

    partition: int
    after: int
    through: int

    @property
    def count(self) -> int:
        """The maximum number of messages; numbers have gaps."""
        return max(0, self.through - self.after)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of a range to read."""

    states: tuple[int, ...]
    session_id: str | None = None
    from_ms: int | None = None
    before_ms: int | None = None


class Entity(Protocol):
    def info(self) -> EntityInfo: ...

    def browse(self, wanted: MessageRange, selection: Selection) -> Iterator[list[bytes]]:
        """The encoded messages of a range, in order, hundreds or thousands at a time."""


def open_entity(client: BusClient, options: ReadOptions) -> Entity:
    """Find out which implementation the namespace supports."""
    management = client.management(options.entity)
    if not options.extensions:
        return PlainEntity(management)
    ranged = RangedEntity(management, options.fetch_bytes)
    try:
        ranged.info()
    except NotSupported:
        return PlainEntity(management)
    return ranged


class RangedEntity:
    def __init__(self, management: Management, fetch_bytes: int) -> None:
        self._management = management
        self._fetch_bytes = fetch_bytes

    def info(self) -> EntityInfo:
        answer = self._management.request("bendybus:partition-info", {})
        assert answer is not None
        return EntityInfo(
            generation=str(answer["generation"]),
            ordered=bool(answer["ordered"]),
            partitions={
                int(each["partition"]): PartitionInfo(
                    each["first-sequence-number"] & COUNTER_MAX,
                    each["high-water-mark"] & COUNTER_MAX,
                    each.get("vacant-from-sequence-number", each["first-sequence-number"]) & COUNTER_MAX,
                )
                for each in answer["partitions"]
                if each["available"]
            },
        )

    def browse(self, wanted: MessageRange, selection: Selection) -> Iterator[list[bytes]]:
        base = wanted.partition << PARTITION_SHIFT
        last = base + wanted.through
        following: int | None = base + wanted.after + 1
        if wanted.after >= wanted.through:
            return
        body: dict[str, object] = {
            "to-sequence-number": last,
            "max-bytes": self._fetch_bytes,
            "states": Array(Int, [Int(state) for state in selection.states]),
        }
        if selection.session_id is not None:
            body["session-id"] = selection.session_id
        if selection.from_ms is not None:
            body["enqueued-from"] = selection.from_ms
        if selection.before_ms is not None:
            body["enqueued-before"] = selection.before_ms
        ticket: str | None = None
        while following is not None:
            body["from-sequence-number"] = following
            answer = self._answer(ticket, body)
            following = answer["next"]
            ticket = None
            if following is not None:
                # The broker works on the next piece while this one is converted to rows.
                ticket = self._ask({**body, "from-sequence-number": following})
            if answer["messages"]:
                yield answer["messages"]

    def _ask(self, body: Mapping[str, object]) -> str | None:
        try:
            return self._management.ask("bendybus:peek-range", body)
        except BrokerError as error:
            if not error.retryable:
                raise
            return None

    def _answer(self, ticket: str | None, body: Mapping[str, object]) -> dict[Any, Any]:
        answer = None
        if ticket is not None:
            try:
                answer = self._management.answer(ticket, "bendybus:peek-range")
            except BrokerError as error:
                if not error.retryable:
                    raise
        if answer is None:
            answer = self._management.request("bendybus:peek-range", body)
        assert answer is not None
        return answer

    def acquire_lease(self, consumer: str, duration_ms: int) -> None:
        body = {"consumer": consumer, "duration-ms": duration_ms}
        self._management.request("bendybus:consumer-lease", body)

    def complete_up_to(self, consumer: str, positions: Mapping[int, int], states: tuple[int, ...]) -> int:
        """Remove everything up to these positions. Returns the number of messages removed."""
        numbers = [
            partition << PARTITION_SHIFT | position
            for partition, position in positions.items()
            if position > 0
        ]
        if not numbers:
            return 0
        answer = self._management.request(
            "bendybus:complete-up-to",
            {
                "consumer": consumer,
                "sequence-numbers": Array(int, [*numbers]),
                "states": Array(Int, [Int(state) for state in states]),
            },
        )
        assert answer is not None
        return int(answer["removed"])


class PlainEntity:
    """Uses only `com.microsoft:peek-message`."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._marks: dict[int, int] = {}

    def info(self) -> EntityInfo:
        """Reads through everything. A partition is known once it has shown a message."""
        partitions: dict[int, PartitionInfo] = {}
        number = 0
        while number >> PARTITION_SHIFT < PARTITIONS_MAX:
            page = self._peek(number, 1)
            if not page:
                break
            first = page[0].sequence_number
            partition = first >> PARTITION_SHIFT
            mark = self._find_mark(partition, first & COUNTER_MAX)
            partitions[partition] = PartitionInfo(first & COUNTER_MAX, mark, first & COUNTER_MAX)
            number = (partition + 1) << PARTITION_SHIFT
        for partition, mark in self._marks.items():
            # The partition has been emptied since. Its numbers continue from where they were.
            partitions.setdefault(partition, PartitionInfo(mark + 1, mark, mark + 1))
        return EntityInfo(generation="", ordered=True, partitions=partitions)

    def _find_mark(self, partition: int, first: int) -> int:
        mark = max(self._marks.get(partition, 0), first)
        while True:
            page = self._peek((partition << PARTITION_SHIFT) + mark + 1, PAGE_COUNT)
            inside = [
                each.sequence_number for each in page if each.sequence_number >> PARTITION_SHIFT == partition
            ]
            if not inside:
                self._marks[partition] = mark
                return mark
            mark = max(inside) & COUNTER_MAX

    def browse(self, wanted: MessageRange, selection: Selection) -> Iterator[list[bytes]]:
        base = wanted.partition << PARTITION_SHIFT
        number, last = base + wanted.after + 1, base + wanted.through
        while number <= last:
            page = self._peek(number, PAGE_COUNT)
            inside = [message for message in page if message.sequence_number <= last]
            picked = [message.payload for message in inside if _passes(message, selection)]
            if picked:
                yield picked
            if len(inside) < len(page) or not page:
                return
            number = page[-1].sequence_number + 1

    def _peek(self, number: int, count: int) -> list[ReceivedMessage]:
        answer = self._management.request(
            "com.microsoft:peek-message", {"from-sequence-number": number, "message-count": Int(count)}
        )
        if answer is None:
            return []
        return [ReceivedMessage(bytes(each["message"])) for each in answer["messages"]]


def _passes(message: ReceivedMessage, selection: Selection) -> bool:
    enqueued = message.enqueued_time_ms
    return (
        message.state in selection.states
        and (selection.session_id is None or OneSession(selection.session_id).includes(message.session_id))
        and (selection.from_ms is None or enqueued >= selection.from_ms)
        and (selection.before_ms is None or enqueued < selection.before_ms)
    )
