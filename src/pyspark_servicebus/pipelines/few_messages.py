"""Comparing and copying a part with few messages in this process. Spark would take longer to start its tasks.

The rules are those of parts.py, which uses Spark for everything larger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from bendybus.amqp.annotations import SCHEDULED_ENQUEUE_TIME
from bendybus.client import BusClient, ReceivedMessage
from bendybus.names import COUNTER_MAX
from pyspark_servicebus.entity import MessageRange, RangedEntity, Selection
from pyspark_servicebus.options import STATES
from pyspark_servicebus.pipelines.copies import as_sent, checksum, mark_of, mark_of_original

__all__ = ["Few", "Pair", "out_of_order", "paired", "read_few", "send_few"]

FETCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Few:
    """One message of few."""

    number: int
    state: str
    key: str | None
    """The message's own; None if it has none."""
    partition: int
    mark: str | None
    checksum: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Pair:
    """A message and its copy. Either may be missing."""

    here: Few | None
    there: Few | None


def read_few(client: BusClient, entity: str, generation: str | None) -> list[Few]:
    """All messages of an entity. With `generation` they are originals, otherwise copies with their marks."""
    ranged = RangedEntity(client.management(entity), FETCH_BYTES)
    everything = Selection(tuple(range(len(STATES))))
    return [
        _few(payload, partition, generation)
        for partition in ranged.info().partitions
        for payloads in ranged.browse(MessageRange(partition, 0, COUNTER_MAX), everything)
        for payload in payloads
    ]


def _few(payload: bytes, partition: int, generation: str | None) -> Few:
    message, digest = ReceivedMessage(payload), checksum(payload)
    own = message.session_id if message.session_id is not None else message.partition_key
    if generation is None:
        mark = mark_of(payload)
    else:
        was_scheduled = message.annotation(SCHEDULED_ENQUEUE_TIME) is not None
        mark = mark_of_original(generation, message.sequence_number, digest, was_scheduled=was_scheduled)
    key = None if own is None else own.upper()
    return Few(message.sequence_number, STATES[message.state], key, partition, mark, digest, payload)


def paired(here: Iterable[Few], there: Iterable[Few]) -> list[Pair]:
    """Messages with their copies, by their marks."""
    found: dict[str | None, tuple[list[Few], list[Few]]] = defaultdict(lambda: ([], []))
    for message in here:
        found[message.mark][0].append(message)
    for copy in there:
        found[copy.mark][1].append(copy)
    pairs: list[Pair] = []
    for messages, copies in found.values():
        messages.sort(key=_place)
        copies.sort(key=_place)
        both = min(len(messages), len(copies))
        pairs += [Pair(*each) for each in zip(messages[:both], copies[:both], strict=True)]
        pairs += [Pair(message, None) for message in messages[both:]]
        pairs += [Pair(None, copy) for copy in copies[both:]]
    return pairs


def _place(message: Few) -> tuple[str, int]:
    return message.checksum, message.number


def out_of_order(pairs: Iterable[Pair]) -> list[int]:
    """The copies of keys whose order is wrong, by their numbers."""
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for pair in pairs:
        here, there = pair.here, pair.there
        if here is None or there is None or here.key is None:
            continue
        if here.state == there.state == "active":
            by_key[here.key].append((there.number, here.number))
    wrong: list[int] = []
    for numbers in by_key.values():
        originals = [original for _, original in sorted(numbers)]
        if originals != sorted(originals):
            wrong += [copy for copy, _ in numbers]
    return wrong


def send_few(client: BusClient, target: str, messages: Sequence[Few]) -> None:
    """Send copies of these messages, each key's in their order."""
    sender = client.sender(target)
    groups: dict[tuple[str | None, int], list[Few]] = defaultdict(list)
    for message in sorted(messages, key=attrgetter("number")):
        groups[message.key, 0 if message.key is not None else message.partition].append(message)
    for (key, _), group in groups.items():
        if key is None:
            # Without a key each goes where there is room.
            for message in group:
                sender.post([as_sent(message.payload, message.mark)])
        else:
            sender.post([as_sent(message.payload, message.mark) for message in group], key)
    sender.flush()
    sender.close()
