"""Sends to a partition of a topic whose rules take long to evaluate: the work is done in slices.

The order of commands is kept: while one waits for its evaluation, later ones wait behind it. A command
is applied only after its evaluation, so a crash or an outage meanwhile has nothing to undo.
How rules are evaluated: domain/evaluation.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from bendybus.broker.lifecycle import Availability
from bendybus.broker.mailbox import OnReply
from bendybus.domain.commands import Command, Enqueue, Publish
from bendybus.domain.evaluation import Evaluated
from bendybus.domain.fanout import FanOut
from bendybus.domain.topic import TopicPartition
from bendybus.errors import RulesTooCostly

if TYPE_CHECKING:
    from bendybus.broker.topic_host import TopicHost

__all__ = ["COPIES_MAX", "Evaluations", "SLICE_WORK", "evaluate", "is_long"]

# In simple filters. One takes a few microseconds.
SLICE_WORK: Final = 1_000
# A send that takes no longer than this does not wait for a turn.
AT_ONCE_WORK: Final = 4 * SLICE_WORK
# How many copies one send may make over all subscriptions. They are applied at once, and the record of
# a message takes about 250 bytes.
COPIES_MAX: Final = 200_000


def is_long(command: Command, fan_out: FanOut) -> bool:
    """Whether the rules for the messages of a command have to be evaluated before it is applied."""
    if not isinstance(command, Enqueue | Publish):
        return False
    evaluated = command.evaluated
    if isinstance(evaluated, Evaluated) and evaluated.fan_out is fan_out:
        return False
    count = len(command.messages)
    return count * fan_out.work > AT_ONCE_WORK or count * fan_out.subscription_count > COPIES_MAX


async def evaluate(host: TopicHost, command: Command) -> None:
    """Evaluate the rules for the messages of a command, unless that is quick enough when it is applied.

    `RulesTooCostly` if too many copies would be made.
    """
    # A command that has to wait for its partition is submitted again. Its rules are evaluated then.
    while (
        host.availability is Availability.AVAILABLE
        and (partition := host.partition) is not None
        and is_long(command, fan_out := host.topic.fan_out())
    ):
        assert isinstance(command, Enqueue | Publish), "all others are short"
        command.evaluated = await _asked(host, partition, command, fan_out)


async def _asked(
    host: TopicHost, partition: TopicPartition, command: Enqueue | Publish, fan_out: FanOut
) -> Evaluated:
    evaluated, done = Evaluated(fan_out), 0
    at = host.topic.now()
    for place, message in enumerate(command.messages):
        seen = partition.foreseen(message, place, at) if isinstance(command, Enqueue) else message
        steps = fan_out.evaluate(message, seen, evaluated)
        for heavy in steps:
            done += heavy
            if done > SLICE_WORK:
                done = heavy
                await asyncio.sleep(0)
        if evaluated.copies > COPIES_MAX and isinstance(command, Enqueue):
            raise RulesTooCostly(
                f"{len(command.messages)} messages to topic '{host.topic.path}' would become more than "
                f"{COPIES_MAX:,} copies in its subscriptions. Send fewer at once."
            )
    return evaluated


class Evaluations:
    """The commands of one partition that wait for evaluation, in order."""

    def __init__(self, host: TopicHost) -> None:
        self._host = host
        self._waiting: deque[tuple[Command, OnReply]] = deque()
        self._task: asyncio.Task[None] | None = None

    def detain(self, command: Command, done: OnReply) -> bool:
        """Whether this command has to wait. If so, it is submitted again when its turn comes."""
        if self._task is None and not is_long(command, self._host.topic.fan_out()):
            return False
        self._waiting.append((command, done))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        return True

    async def _work(self) -> None:
        while self._waiting:
            command, done = self._waiting.popleft()
            try:
                await evaluate(self._host, command)
            except RulesTooCostly as refusal:
                done(refusal)
            else:
                self._host.submit_evaluated(command, done)
        self._task = None
