"""A property of queues, topics or subscriptions: everything that concerns one property alone.

The table of all of them: properties.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, TypeAlias

from bendybus.domain.durations import format_duration, format_time_span, short_duration
from bendybus.errors import ArgumentError

__all__ = ["EntityStatus", "Properties", "Property", "ValueType", "check_one_of"]


class EntityStatus(StrEnum):
    """The values are those of the management API."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def can_send(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def can_receive(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class ValueType(Enum):
    BOOLEAN = auto()
    INTEGER = auto()
    DURATION = auto()
    """Seconds in a description, ISO 8601 on the wire."""
    DURATION_OR_UNLIMITED = auto()
    """None in a description means unlimited."""
    TEXT = auto()
    ENTITY = auto()
    """The path of another entity."""
    STATUS = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Property:
    """A row of the table."""

    name: str
    """The name on the wire: in ATOM and in Config.json."""
    field: str
    """The field of the description."""
    type: ValueType
    default: object = None
    """The value if the creator gives none; None is no value, or unlimited."""
    allowed: Sequence[int] = ()
    """The allowed whole numbers; for a text, the allowed lengths. Empty: any."""
    standard: Sequence[int] = ()
    """Those of them that Basic and Standard offer, if not all."""
    premium: Sequence[int] = ()
    """Those of them that Premium offers, if not all."""
    least_s: float = 0
    most_s: float | None = None
    """The limit of a duration."""
    too_long: str = ""
    """Azure's text for a duration that is too long, if it differs from the usual text."""
    option: str = ""
    """The option of the command line; empty for a property that has no effect here."""
    help: str
    metavar: str = ""
    """The placeholder for the option's value in help."""
    fixed: bool = False
    """Set when the entity is created and fixed from then on (P-07)."""
    removable: bool = False
    """An update without this property removes it. Other properties stay as they are."""
    in_config: bool = True
    """Whether Config.json has this property."""
    since: str = ""
    """The first version of the management API that shows this property."""
    ours: bool = False
    """Azure does not have it: it is shown only where it is set."""

    def check(self, label: str, value: object) -> None:
        """`ArgumentError` for a value that no entity may have; `label` names the entity."""
        match value:
            case bool() | StrEnum() | None:
                return
            case str() if self.allowed:
                check_one_of(label, f"the length of {self.name}", len(value), self.allowed)
            case int() | float() if self.type in _DURATIONS:
                self._check_seconds(label, value)
            case int() if self.allowed:
                check_one_of(label, self.name, value, self.allowed)

    def _check_seconds(self, label: str, value: float) -> None:
        if value >= self.least_s and (self.most_s is None or value <= self.most_s):
            return
        wanted = f"at least {format_duration(self.least_s)}"
        if self.most_s is not None:
            wanted += f" and at most {format_duration(self.most_s)}"
        text = f"{label}: {self.name} is {value} seconds; it must be {wanted}."
        raise ArgumentError(text, azure=self._azure_on_seconds(value))

    def _azure_on_seconds(self, value: float) -> str:
        if self.most_s is None:
            return ""
        limits = f"between {format_time_span(self.least_s)} and {format_time_span(self.most_s)}"
        said = f"The value supplied must be {limits}."
        if self.too_long and value > self.most_s:
            said = self.too_long
        return f"{said}\r\nParameter name: {self.name}\r\nActual value was {format_time_span(value)}."

    @property
    def limits(self) -> str:
        """The allowed values, for people; empty if any value of the type is allowed."""
        if self.type in _DURATIONS:
            least = short_duration(self.least_s)
            return f"at least {least}" if self.most_s is None else f"{least} to {short_duration(self.most_s)}"
        if self.type is ValueType.STATUS:
            return _listed([*EntityStatus])
        if self.type is ValueType.TEXT:
            return f"at most {self.allowed[-1]} characters"
        if not self.standard:
            return _numbers(self.allowed)
        if self.premium:
            return f"{_numbers(self.standard)}; in Premium {_numbers(self.premium)}"
        more = [value for value in self.allowed if value not in self.standard]
        return f"{_numbers(self.standard)}; in Premium also {_numbers(more)}"

    def written(self, value: object) -> object:
        """The value as it is written on the wire."""
        if self.type in _DURATIONS:
            assert value is None or isinstance(value, int | float)
            return format_duration(value)
        return value


Properties: TypeAlias = tuple[Property, ...]

_DURATIONS: Final = (ValueType.DURATION, ValueType.DURATION_OR_UNLIMITED)


def _numbers(allowed: Sequence[int]) -> str:
    if isinstance(allowed, range):
        return f"{allowed[0]} to {allowed[-1]}"
    return _listed(allowed)


def _listed(values: Sequence[object]) -> str:
    if len(values) < 2:
        return "".join(map(str, values))
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}"


def check_one_of(label: str, name: str, value: int, allowed: Sequence[int], *, azure: str = "") -> None:
    if value in allowed:
        return
    if isinstance(allowed, range):
        wanted = f"from {allowed[0]} to {allowed[-1]}"
    else:
        wanted = "one of " + ", ".join(map(str, allowed))
    raise ArgumentError(f"{label}: {name} is {value}; it must be {wanted}.", azure=azure)
