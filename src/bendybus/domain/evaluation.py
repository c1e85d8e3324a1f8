"""What the rules of a topic say about messages, asked in steps before the messages are accepted.

A send of many messages to a topic with many rules takes seconds. Asking rules changes nothing, so it is done
first, in steps, and other clients are served between two steps (broker/evaluating.py). When the messages are
accepted, all at once as ever, the answers are at hand. Small sends ask when they are accepted: fanout.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from bendybus.domain.filters import (
    Changes,
    CorrelationFilter,
    Filter,
    Outcome,
    Reading,
    RuleDescription,
    SqlFilter,
    matching,
)
from bendybus.errors import FilterError

if TYPE_CHECKING:
    from bendybus.domain.fanout import FanOut

__all__ = ["Answer", "Asked", "Evaluated", "Steps", "ask", "weight"]

# To write the copy that an action has changed takes as long as asking this many simple filters.
COPY_WEIGHT: Final = 60

# Steps are not shorter than this while there is something to do: each costs as much as a few filters.
STEP_WEIGHT: Final = 100

# A filter takes the time of one more simple filter for each so many letters.
LETTERS_PER_WEIGHT: Final = 32


@dataclass(frozen=True, slots=True)
class Asked:
    """What the rules of one subscription make of a message, if that is more than taking it or not."""

    outcome: Outcome
    payloads: Sequence[bytes | FilterError] = ()
    """Of the copies that actions have changed, in their order."""


Answer: TypeAlias = bool | Asked
Steps: TypeAlias = Generator[int, None, Answer]
"""Gives the weight of each step, which is about `STEP_WEIGHT` or one filter."""


@dataclass(slots=True)
class Evaluated:
    """The answers of the subscriptions whose rules have to look at messages."""

    fan_out: FanOut
    """Whose rules were asked; after they were changed, the answers count no more."""
    answers: dict[int, dict[int, Answer]] = field(default_factory=dict)
    """By the identity of the message and the place of the subscription, for those that take something."""
    copies: int = 0
    """How many all subscriptions take."""


class _Writer(Protocol):
    def changed(self, payload: bytes, changes: Changes) -> bytes: ...


def weight(asked: Filter) -> int:
    """About how long asking a filter takes; a simple comparison is one."""
    if isinstance(asked, SqlFilter):
        return asked.cost + len(asked.expression) // LETTERS_PER_WEIGHT
    return 1 + len(asked.properties) if isinstance(asked, CorrelationFilter) else 1


def ask(
    rules: Sequence[RuleDescription],
    questions: Sequence[Callable[[Reading], bool]],
    weights: Sequence[int],
    reading: Reading,
    payload: bytes,
    writer: _Writer,
) -> Steps:
    """What a subscription with these rules makes of a message.

    `questions`: its filters, if they only select.
    """
    if questions:
        try:
            done = 0
            for matches, heavy in zip(questions, weights, strict=True):
                done += heavy
                if done >= STEP_WEIGHT:
                    yield done
                    done = 0
                if matches(reading):
                    yield done
                    return True
            yield done
            return False
        except FilterError:
            # Which rule has failed, and whether another one takes the message, is found out below.
            pass
    steps = matching(rules, reading)
    try:
        for heavy in weights:
            yield heavy
            next(steps)
    except StopIteration as end:
        outcome: Outcome = end.value
    else:
        outcome = _finished(steps)
    payloads: list[bytes | FilterError] = []
    for copy in outcome.copies:
        if copy.rule_name is not None:
            yield COPY_WEIGHT
            try:
                payloads.append(writer.changed(payload, copy.changes))
            except FilterError as error:
                payloads.append(error)
    return Asked(outcome, payloads)


def _finished(steps: Generator[None, None, Outcome]) -> Outcome:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
