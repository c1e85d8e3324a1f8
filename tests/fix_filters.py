"""Messages for rules to read, with predictable ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from bendybus.domain.filters import Reading, SqlFilter, SystemProperty, Value
from bendybus.domain.filters.evaluate import compile_condition
from bendybus.domain.filters.parameters import fold_parameters
from bendybus.domain.filters.parser import parse_condition


@dataclass
class SomeMessage:
    user: Mapping[str, Value] = field(default_factory=dict)
    properties: Mapping[SystemProperty, Value] = field(default_factory=dict)

    def system(self, name: SystemProperty) -> Value:
        return self.properties.get(name)

    def field(self, name: str) -> Value:
        return None


def reading(
    user: Mapping[str, Value] | None = None, system: Mapping[SystemProperty, Value] | None = None
) -> Reading:
    ids: Iterator[int] = count(1)
    return Reading(SomeMessage(user or {}, system or {}), lambda: UUID(int=next(ids)))


def ask(condition: str, parameters: Mapping[str, Value] | None = None, **user: Value) -> bool | None:
    """The answer before unknown becomes "no match"."""
    compiled = compile_condition(parse_condition(condition), fold_parameters(parameters or {}))
    answer = compiled(reading(user))
    assert SqlFilter(condition, parameters or {}).matches(reading(user)) is (answer is True)
    return answer
