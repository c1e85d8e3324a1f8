"""Actions of rules: SET and REMOVE, run on a draft. The result is a set of changes.

The message itself is never changed, because all subscriptions share it. Statements run
in order, and each sees the changes of the statements before it. Any failure is a `FilterError`
with the reason RuleActionException; the action then makes no changes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from bendybus.domain.filters.ast import Property, Remove, Set, Statement
from bendybus.domain.filters.evaluate import Parameters, compile_expression
from bendybus.domain.filters.parameters import fold_parameters
from bendybus.domain.filters.parser import parse_action
from bendybus.domain.filters.reading import Reading, SystemProperty, system_property
from bendybus.domain.filters.text import to_text
from bendybus.domain.filters.values import (
    TEXT_VALUE_LENGTH_MAX,
    Spelling,
    Value,
    is_number,
    text_of,
    type_name,
)
from bendybus.errors import RULE_ACTION_EXCEPTION, FilterError

__all__ = ["NO_CHANGES", "Changes", "SqlRuleAction"]

# Ids that Service Bus limits to 128 characters.
_ID_LENGTH_MAX: Final = 128

# For each property that an action may set: the maximum length of a text, or the required type.
_SETTABLE: Final[dict[SystemProperty, int | type]] = {
    SystemProperty.MESSAGE_ID: _ID_LENGTH_MAX,
    SystemProperty.SESSION_ID: _ID_LENGTH_MAX,
    SystemProperty.REPLY_TO_SESSION_ID: _ID_LENGTH_MAX,
    SystemProperty.PARTITION_KEY: _ID_LENGTH_MAX,
    SystemProperty.VIA_PARTITION_KEY: _ID_LENGTH_MAX,
    SystemProperty.CORRELATION_ID: TEXT_VALUE_LENGTH_MAX,
    SystemProperty.LABEL: TEXT_VALUE_LENGTH_MAX,
    SystemProperty.TO: TEXT_VALUE_LENGTH_MAX,
    SystemProperty.REPLY_TO: TEXT_VALUE_LENGTH_MAX,
    SystemProperty.CONTENT_TYPE: TEXT_VALUE_LENGTH_MAX,
    SystemProperty.TIME_TO_LIVE: timedelta,
    SystemProperty.SCHEDULED_ENQUEUE_TIME: datetime,
}


@dataclass(frozen=True, slots=True)
class Changes:
    """How a copy differs from the message that was sent."""

    system: Mapping[SystemProperty, Value] = field(default_factory=dict)
    """None for a property that is cleared."""
    user: Mapping[str, Value] = field(default_factory=dict)
    """Properties that are set or replaced, in the spelling of the message if it had them."""
    removed: tuple[str, ...] = ()
    """User properties of the message that the copy does not have, in the message's spelling."""


NO_CHANGES: Final = Changes()


class _Draft(Reading):
    """A reading that statements are changing."""

    __slots__ = ("_properties", "_read_system", "system_set", "user_removed", "user_set")

    def __init__(self, reading: Reading) -> None:
        self._properties = dict(reading.user)
        self.user = self._properties
        self.system = self._system
        self.new_id = reading.new_id
        self._folded = None
        self._read_system = reading.system
        self.system_set: dict[SystemProperty, Value] = {}
        self.user_set: dict[str, Value] = {}
        self.user_removed: dict[str, None] = {}

    def _system(self, name: SystemProperty) -> Value:
        return self.system_set[name] if name in self.system_set else self._read_system(name)

    def set_user(self, name: str, value: Value) -> None:
        spelled = self.spelling(name) or name
        before = self.user.get(spelled)
        # "SET performs implicit conversion if possible": in C#, from an integer to a double.
        if isinstance(before, float) and is_number(value):
            value = float(value)
        self.user_removed.pop(spelled, None)
        self.user_set[spelled] = value
        self._properties[spelled] = value
        self._folded = None

    def remove_user(self, name: str) -> None:
        """Remove every spelling: a removed name must not exist any more."""
        folded = name.lower()
        gone = [spelled for spelled in self.user if spelled.lower() == folded]
        for spelled in gone:
            del self._properties[spelled]
            self.user_set.pop(spelled, None)
            self.user_removed[spelled] = None
        self._folded = None

    def changes(self, original: Mapping[str, Value]) -> Changes:
        removed = tuple(name for name in self.user_removed if name in original)
        return Changes(self.system_set, self.user_set, removed)


@dataclass(frozen=True, slots=True)
class SqlRuleAction:
    """Compiled when it is created. `ArgumentError` if the text is not an action."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict, hash=False)
    spelled: Mapping[str, Spelling] = field(default_factory=dict, hash=False, compare=False)
    """The parameters as the client wrote them, if known."""
    preprocessing: bool | None = field(default=None, compare=False)
    """The same as in `SqlFilter`."""
    _steps: tuple[Callable[[_Draft], None], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parameters = fold_parameters(self.parameters)
        steps = tuple(_compile(statement, parameters) for statement in parse_action(self.expression))
        object.__setattr__(self, "_steps", steps)

    def apply(self, reading: Reading) -> Changes:
        draft = _Draft(reading)
        try:
            for step in self._steps:
                step(draft)
        except FilterError as error:
            raise FilterError(str(error), reason=RULE_ACTION_EXCEPTION) from None
        return draft.changes(reading.user)


def _compile(statement: Statement, parameters: Parameters) -> Callable[[_Draft], None]:
    target = statement.target
    match statement:
        case Set(Property(name, "user"), expression):
            value = compile_expression(expression, parameters)
            return lambda draft: draft.set_user(name, value(draft))
        case Remove(Property(name, "user")):
            return lambda draft: draft.remove_user(name)
        case Set(_, expression):
            value = compile_expression(expression, parameters)
            return lambda draft: _set_system(draft, target, value(draft))
        case Remove():
            return lambda draft: _set_system(draft, target, None)


def _set_system(draft: _Draft, target: Property, value: Value) -> None:
    name = system_property(target.name)
    if name is None:
        raise FilterError(f"there is no system property '{target.name}'")
    if name not in _SETTABLE:
        raise FilterError(f"the system property '{name}' is the broker's own and cannot be set")
    draft.system_set[name] = None if value is None else _fitted(target, _SETTABLE[name], value)


def _fitted(target: Property, wanted: int | type, value: Value) -> Value:
    if isinstance(wanted, type):
        if isinstance(value, wanted):
            return value
        raise FilterError(f"{to_text(target)} must be a {wanted.__name__}, not {type_name(value)}")
    text = text_of(value)
    if len(text) > wanted:
        raise FilterError(f"{to_text(target)} would have {len(text)} characters; at most {wanted}")
    return text
