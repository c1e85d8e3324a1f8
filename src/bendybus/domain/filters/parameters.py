"""Parameters of filters and actions: `@name` in the text, with a value given separately.

The SDKs' documentation writes names with the @; some users leave it out.
Both are accepted, and case is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from bendybus.domain.filters.values import INT64_MAX, INT64_MIN, Value, type_name
from bendybus.errors import ArgumentError

__all__ = ["check_value", "fold_parameters"]


def fold_parameters(parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters by lower-case name without the @, or `ArgumentError`."""
    folded: dict[str, Value] = {}
    for name, value in parameters.items():
        key = name.removeprefix("@").lower()
        if not key:
            raise ArgumentError(f"Parameters has a value under the name '{name}', which is none.")
        if key in folded:
            raise ArgumentError(f"Parameters has '@{key}' more than once.")
        check_value(f"The parameter '@{key}'", value)
        folded[key] = value
    return folded


def check_value(what: str, value: object) -> None:
    """Refuse a value that the language does not have."""
    if not isinstance(value, str | int | float | bool | UUID | datetime | timedelta | None):
        raise ArgumentError(
            f"{what} is of type {type_name(value)}; allowed are string, integer, double, Boolean, "
            "Guid, time and duration."
        )
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise ArgumentError(f"{what} is the time {value.isoformat()}, which does not say its zone.")
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise ArgumentError(f"{what} is {value}, which does not fit in 64 bits.")
