"""Evaluation of a topic's rules, in steps, before the messages are accepted.

Evaluating many rules for a send of many messages takes seconds. Evaluation changes nothing, so it is done
first, in steps, and other clients are served between two steps (broker/evaluating.py). The messages are then
accepted all at once, using these results. For small sends, rules are evaluated on acceptance: fanout.py.
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
    SelectorFilter,
    SqlFilter,
    matching,
)
from bendybus.errors import FilterError

if TYPE_CHECKING:
    from bendybus.domain.fanout import FanOut

__all__ = ["Answer", "RuleResult", "Evaluated", "Steps", "evaluate", "weight"]

# Writing the copy that an action has changed takes as long as evaluating this many simple filters.
COPY_WEIGHT: Final = 60

# The minimum weight of a step while there is work left: each step costs as much as a few filters.
STEP_WEIGHT: Final = 100

# For each this many characters, a filter takes the time of one more simple filter.
LETTERS_PER_WEIGHT: Final = 32


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one subscription's rules for a message, if it is more than a plain match or no match."""

    outcome: Outcome
    payloads: Sequence[bytes | FilterError] = ()
    """The payloads of the copies that actions changed, in the order of the copies."""


Answer: TypeAlias = bool | RuleResult
Steps: TypeAlias = Generator[int, None, Answer]
"""Yields the weight of each step, which is about `STEP_WEIGHT` or one filter."""


@dataclass(slots=True)
class Evaluated:
    """The results for subscriptions whose rules have to read messages."""

    fan_out: FanOut
    """The rules that were evaluated. Once they change, the results are no longer valid."""
    answers: dict[int, dict[int, Answer]] = field(default_factory=dict)
    """By the identity of the message and the index of the subscription, for subscriptions that take it."""
    copies: int = 0
    """How many copies all subscriptions take."""


class _Writer(Protocol):
    def changed(self, payload: bytes, changes: Changes) -> bytes: ...


def weight(condition: Filter) -> int:
    """Roughly how long a filter takes to evaluate. A simple comparison is 1."""
    if isinstance(condition, SqlFilter | SelectorFilter):
        return condition.cost + len(condition.expression) // LETTERS_PER_WEIGHT
    return 1 + len(condition.properties) if isinstance(condition, CorrelationFilter) else 1


def evaluate(
    rules: Sequence[RuleDescription],
    filters: Sequence[Callable[[Reading], bool]],
    weights: Sequence[int],
    reading: Reading,
    payload: bytes,
    writer: _Writer,
) -> Steps:
    """Evaluate these rules of a subscription for a message.

    `filters`: its filters, if its rules have no actions.
    """
    if filters:
        try:
            done = 0
            for matches, heavy in zip(filters, weights, strict=True):
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
            # The general path below finds which rule failed and whether another rule matches.
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
    return RuleResult(outcome, payloads)


def _finished(steps: Generator[None, None, Outcome]) -> Outcome:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
