"""Planning: which ranges a batch has, and how they are divided among Spark's tasks.

A task has an overhead of about 30 ms, so small ranges share a task. A large range
is split if more tasks are requested than there are ranges. Everything here is arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.datasource import InputPartition

from pyspark_servicebus.entity import EntityInfo, MessageRange
from pyspark_servicebus.offsets import Positions
from pyspark_servicebus.options import EARLIEST, LATEST, ReadOptions, StartingOffsets

__all__ = ["RangesPartition", "limited", "resolve", "selected", "share_out"]

# The minimum work for a task to be worth its start and its connection.
MESSAGES_PER_TASK: Final = 10_000


class RangesPartition(InputPartition):
    """What one task reads, with everything that it needs to know."""

    def __init__(self, ranges: Sequence[MessageRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


def resolve(offsets: StartingOffsets, info: EntityInfo) -> dict[int, int]:
    """The user's offsets in each partition, as the position of the last message before them.

    As in Kafka, an offset is the first message to read or, as an end, the first not to read.
    """
    positions: dict[int, int] = {}
    for partition, each in info.partitions.items():
        asked = offsets.at(partition)
        if asked == EARLIEST:
            positions[partition] = min(each.first - 1, each.mark)
        elif asked == LATEST:
            positions[partition] = each.mark
        else:
            positions[partition] = min(max(asked - 1, 0), each.mark)
    return positions


def selected(options: ReadOptions, partition: int) -> bool:
    return options.partitions is None or partition in options.partitions


def limited(start: Positions, end: Mapping[int, int], most: int | None) -> dict[int, int]:
    """`end`, limited so that at most `most` messages are in between, in proportion for each partition."""
    waiting = {partition: max(0, mark - start.get(partition, 0)) for partition, mark in end.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {partition: max(mark, start.get(partition, 0)) for partition, mark in end.items()}
    taken = {partition: count * most // total for partition, count in waiting.items()}
    left = most - sum(taken.values())
    for partition in sorted(waiting, key=lambda each: taken[each] - waiting[each]):
        more = min(left, 1, waiting[partition] - taken[partition])
        taken[partition] += more
        left -= more
    return {partition: start.get(partition, 0) + count for partition, count in taken.items()}


def share_out(ranges: Sequence[MessageRange], options: ReadOptions) -> list[RangesPartition]:
    """Divide the ranges into tasks: as many as are worthwhile, within the user's limits."""
    ranges = [each for each in ranges if each.count > 0]
    if not ranges:
        return []
    total = sum(each.count for each in ranges)
    tasks = min(len(ranges), max(1, total // MESSAGES_PER_TASK))
    tasks = max(tasks, options.tasks_min or 1)
    if options.tasks_max is not None:
        tasks = min(tasks, max(options.tasks_max, options.tasks_min or 1))
    while len(ranges) < tasks:
        largest = max(ranges, key=lambda each: each.count)
        if largest.count < 2:
            break
        middle = largest.after + largest.count // 2
        ranges.remove(largest)
        ranges += [
            MessageRange(largest.partition, largest.after, middle),
            MessageRange(largest.partition, middle, largest.through),
        ]
    # The largest first, each to the task that has the least so far.
    shares: list[list[MessageRange]] = [[] for _ in range(min(tasks, len(ranges)))]
    loads = [0] * len(shares)
    for each in sorted(ranges, key=lambda one: (-one.count, one.partition, one.after)):
        lightest = loads.index(min(loads))
        shares[lightest].append(each)
        loads[lightest] += each.count
    return [RangesPartition(sorted(share, key=lambda one: (one.partition, one.after))) for share in shares]
