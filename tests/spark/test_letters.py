"""The stream of a dead-letter queue, called as Spark calls it: what an offset holds, what a commit removes.

With a real Spark: test_streaming.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from bendybus.client import BusClient
from bendybus.errors import ArgumentError, ConsumerLeaseHeld
from fix_server import Kind
from pyspark_servicebus.letters import LetterStreamReader
from pyspark_servicebus.options import ReadOptions
from spark.conftest import Options

Offset = dict[str, Any]


class Stream:
    """A reader whose list of letters is always fresh."""

    def __init__(self, options: dict[str, str]) -> None:
        self.reader = LetterStreamReader(ReadOptions.parse(options), ["sequence_number", "body"])

    def plan(self, start: Offset, most: int = 100) -> Offset:
        self.reader.prepareForTriggerAvailableNow()
        return self.reader.latestOffset(start, ReadMaxRows(most))

    def read(self, start: Offset, end: Offset) -> list[int]:
        found: list[int] = []
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                found += [int(body) for body in batch.column("body").to_pylist()]
        return sorted(found)


@pytest.fixture
def queue(new_queue: Callable[..., str]) -> str:
    return new_queue(Kind.PARTITIONED)


@pytest.fixture
def stream(queue: str, options: Options) -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make(**more: object) -> Stream:
        made.append(Stream(options(f"{queue}/$deadletterqueue", **more)))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


@pytest.fixture
def bury(queue: str, client: BusClient, fill: Callable[..., None]) -> Callable[..., None]:
    """So many new letters; those of one call have lower numbers the later they come."""

    def dead_letter(count: int, first: int = 0) -> None:
        fill(queue, count, first=first)
        receiver = client.receiver(queue)
        taken: list[Any] = []
        while len(taken) < count:
            taken += receiver.receive(count - len(taken))
        for message in sorted(taken, key=lambda each: -each.sequence_number):
            receiver.dead_letter([message], "Bad")
        receiver.close()

    return dead_letter


def test_a_batch_is_the_letters_in_its_offset_and_is_read_again_as_it_was(stream, bury):
    bury(10)
    browsing = stream()
    start = browsing.reader.initialOffset()
    first = browsing.plan(start, most=6)
    bury(5, first=10)
    again = stream()
    assert browsing.read(start, first) == again.read(start, first)
    assert browsing.reader.reportLatestOffset()["lag"] == 4
    second = again.plan(first)
    assert sorted(browsing.read(start, first) + again.read(first, second)) == [*range(15)]
    assert again.plan(second) == second


def test_a_commit_removes_its_letters_and_those_of_a_commit_that_failed(stream, bury):
    bury(10)
    consuming = stream(mode="consume")
    start = consuming.reader.initialOffset()
    first = consuming.plan(start, most=4)
    second = consuming.plan(first, most=4)
    assert len(consuming.read(first, second)) == 4
    # That of the first never came.
    consuming.reader.commit(second)
    third = consuming.plan(second, most=4)
    assert len(consuming.read(second, third)) == 2
    # One empty batch, so that Spark commits the last.
    fourth = consuming.plan(third)
    assert fourth != third and consuming.read(third, fourth) == []
    consuming.reader.commit(third)
    assert consuming.plan(fourth) == fourth
    with pytest.raises(ConsumerLeaseHeld):
        stream(mode="consume", consumer="another").read(start, {**first, "consumer": "another"})


def test_a_checkpoint_of_other_letters_is_refused(stream, options, new_queue):
    other = Stream(options(f"{new_queue(Kind.PARTITIONED)}/$deadletterqueue"))
    offset = other.reader.initialOffset()
    other.reader.stop()
    with pytest.raises(ArgumentError, match="checkpoint is of"):
        stream().plan(offset)
    with pytest.raises(ArgumentError, match="not written by a stream of dead letters"):
        stream().plan({"version": 1, "positions": {}})


@pytest.mark.parametrize(
    "more", [{"startingOffsets": "latest"}, {"minPartitions": "2"}, {"extensions": "never"}]
)
def test_options_that_mean_nothing_for_dead_letters_are_refused(stream, more):
    with pytest.raises(ArgumentError, match="dead letters"):
        stream(**more)
