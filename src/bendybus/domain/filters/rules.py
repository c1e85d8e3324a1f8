"""Rules of a subscription: a filter, optionally an action, and their effect on a message.

All matching rules without an action together make one copy. Each matching rule with an action makes a
separate copy, marked with the property RuleName. A rule that fails makes no copy and does not affect other
rules. Its failure is returned as data, because only the subscription knows whether to dead-letter the
message.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, TypeAlias

from bendybus.domain.filters.actions import NO_CHANGES, Changes, SqlRuleAction
from bendybus.domain.filters.correlation import CorrelationFilter
from bendybus.domain.filters.cost import ASKING_COST, condition_cost
from bendybus.domain.filters.evaluate import Ask, compile_condition
from bendybus.domain.filters.parameters import fold_parameters
from bendybus.domain.filters.parser import parse_condition
from bendybus.domain.filters.reading import Reading
from bendybus.domain.filters.selectors import SelectorFilter
from bendybus.domain.filters.values import Spelling, Value
from bendybus.errors import ArgumentError, FilterError
from bendybus.names import Instant

__all__ = [
    "DEFAULT_RULE",
    "DEFAULT_RULE_NAME",
    "FALSE_EXPRESSION",
    "TRUE_EXPRESSION",
    "Copy",
    "Failure",
    "FalseFilter",
    "Filter",
    "Outcome",
    "RuleDescription",
    "SqlFilter",
    "TrueFilter",
    "match",
    "matching",
    "sql_filter",
]

RULE_NAME_LENGTH_MAX: Final = 50

# The rule that a new subscription has. No other name may begin with a dollar sign.
DEFAULT_RULE_NAME: Final = "$Default"

# The application property that tells the receiver of a changed copy which rule made it.
RULE_NAME_PROPERTY: Final = "RuleName"

_RULE_NAME: Final = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class TrueFilter:
    constant: ClassVar[bool | None] = True

    def matches(self, reading: Reading) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FalseFilter:
    constant: ClassVar[bool | None] = False

    def matches(self, reading: Reading) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Compiled when it is created. `ArgumentError` if the text is not a condition."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict, hash=False)
    spelled: Mapping[str, Spelling] = field(default_factory=dict, hash=False, compare=False)
    """The parameters as the client wrote them, if known."""
    preprocessing: bool | None = field(default=None, compare=False)
    """The flag RequiresPreprocessing. It has no effect and is returned as it was given."""
    cost: int = field(init=False, repr=False, compare=False)
    """The cost of its evaluation (cost.py)."""
    _ask: Ask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        condition = parse_condition(self.expression)
        parameters = fold_parameters(self.parameters)
        object.__setattr__(self, "_ask", compile_condition(condition, parameters))
        object.__setattr__(self, "cost", ASKING_COST + condition_cost(condition, parameters))

    @property
    def constant(self) -> bool | None:
        """The result, if it is the same for every message; otherwise None."""
        return _CONSTANTS.get(self.expression.replace(" ", ""))

    def matches(self, reading: Reading) -> bool:
        """Whether the message matches. An unknown result is False."""
        return self._ask(reading) is True


# How SDKs write the true filter and the false filter, which have no text of their own.
TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"
_CONSTANTS: Final = {TRUE_EXPRESSION: True, FALSE_EXPRESSION: False}


def sql_filter(expression: str) -> Filter:
    """The filter with this text. The texts of the true and the false filter give those filters."""
    match expression:
        case "1=1":
            return TrueFilter()
        case "1=0":
            return FalseFilter()
    return SqlFilter(expression)


Filter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter | SelectorFilter


@dataclass(frozen=True, slots=True)
class RuleDescription:
    name: str
    filter: Filter = TrueFilter()
    action: SqlRuleAction | None = None
    created_at: Instant = field(default=Instant(0), compare=False)

    def __post_init__(self) -> None:
        if len(self.name) > RULE_NAME_LENGTH_MAX:
            raise ArgumentError(
                f"The rule name '{self.name[:40]}...' has {len(self.name)} characters; "
                f"at most {RULE_NAME_LENGTH_MAX}."
            )
        if not _RULE_NAME.fullmatch(self.name) and self.name.lower() != DEFAULT_RULE_NAME.lower():
            raise ArgumentError(
                f"The rule name '{self.name}' is not allowed: letters, digits, '.', '-' and '_'."
            )


DEFAULT_RULE: Final = RuleDescription(DEFAULT_RULE_NAME)


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message for the subscription."""

    changes: Changes = NO_CHANGES
    rule_name: str | None = None
    """The rule whose action made the changes; None for the unchanged copy."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that could not be applied, with the reason and description for the dead-letter queue."""

    rule_name: str
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class Outcome:
    copies: tuple[Copy, ...] = ()
    failures: tuple[Failure, ...] = ()


UNCHANGED: Final = Copy()
# The result for nearly every message, created once.
_NOTHING: Final = Outcome()
_AS_IT_IS: Final = Outcome((UNCHANGED,))


def match(rules: Iterable[RuleDescription], reading: Reading) -> Outcome:
    """The copies that a subscription with these rules takes of a message, the unchanged one first."""
    steps = matching(rules, reading)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def matching(rules: Iterable[RuleDescription], reading: Reading) -> Generator[None, None, Outcome]:
    """`match` in steps, one for each rule."""
    is_taken = False
    changed: list[Copy] = []
    failures: list[Failure] = []
    for rule in rules:
        yield
        action = rule.action
        if action is None and is_taken:
            # The rules without actions make one copy together, so the others need no evaluation.
            continue
        try:
            if not rule.filter.matches(reading):
                continue
            if action is None:
                is_taken = True
            else:
                changed.append(_changed_copy(rule.name, action.apply(reading)))
        except FilterError as error:
            description = f"Rule '{rule.name}': {error.description}."
            failures.append(Failure(rule.name, error.reason, description))
    if not changed and not failures:
        return _AS_IT_IS if is_taken else _NOTHING
    copies = (UNCHANGED, *changed) if is_taken else tuple(changed)
    return Outcome(copies, tuple(failures))


def _changed_copy(rule_name: str, changes: Changes) -> Copy:
    user = {name: value for name, value in changes.user.items() if name.lower() != "rulename"}
    user[RULE_NAME_PROPERTY] = rule_name
    removed = tuple(name for name in changes.removed if name != RULE_NAME_PROPERTY)
    return Copy(replace(changes, user=user, removed=removed), rule_name)
