"""Values of the language, and its operators.

The rules are those of C#. An integer and a double together are computed as doubles.
Integer division truncates. There are no other implicit conversions, except to text when a
value is added to a string. None is the unknown value: a missing property or null. The
operators here never see None, because their callers return None first.
Operands that C# would not accept raise `FilterError`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias, TypeGuard
from uuid import UUID

from bendybus.errors import FilterError

__all__ = [
    "COMPARE",
    "Spelling",
    "TEXT_VALUE_LENGTH_MAX",
    "Value",
    "arithmetic",
    "comparable",
    "compare",
    "is_number",
    "signed",
    "text_of",
    "type_name",
]

Value: TypeAlias = str | int | float | bool | UUID | datetime | timedelta | bytes | None
"""Subclasses, such as integers with an AMQP width, count as their base type."""


class Spelling(NamedTuple):
    """A value as a client wrote it: its XML schema type, and the text. It is returned in the same form."""

    kind: str
    text: str


INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

# Service Bus allows 32 KB per property. Without a limit, 32 times `SET a = a + a` turns one byte into 4 GB.
TEXT_VALUE_LENGTH_MAX: Final = 32 * 1024

# For two values that `compare` has found to be comparable.
COMPARE: Final[dict[str, Callable[..., bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# The first match counts: in Python a bool is an int, and a datetime must not match anything else.
_TYPE_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "Boolean"),
    (int, "Int64"),
    (float, "Double"),
    (str, "String"),
    (UUID, "Guid"),
    (datetime, "DateTime"),
    (timedelta, "TimeSpan"),
    (bytes, "Byte[]"),
)
_NUMBERS: Final = frozenset({"Int64", "Double"})
_ORDERED: Final = frozenset({"Int64", "Double", "String", "DateTime", "TimeSpan"})


def type_name(value: object) -> str:
    """The .NET name of the type, as in the documentation of Service Bus."""
    for kind, name in _TYPE_NAMES:
        if isinstance(value, kind):
            return name
    return "Null" if value is None else type(value).__name__


def is_number(value: Value) -> TypeGuard[int | float]:
    """Whether this is a number. In C#, unlike Python, a bool is not."""
    return type_name(value) in _NUMBERS


def comparable(left: Value, right: Value) -> bool:
    """Whether `=` is defined for these two values."""
    return type_name(left) == type_name(right) or (is_number(left) and is_number(right))


def compare(sign: str, left: Value, right: Value) -> bool:
    """`left sign right`, neither of them None."""
    one, other = type_name(left), type_name(right)
    if one != other:
        if not (is_number(left) and is_number(right)):
            raise FilterError(f"{one} and {other} cannot be compared")
        # As in C#: the integer is promoted to a double, with the precision of a double.
        left, right = float(left), float(right)
    elif sign not in ("=", "<>") and one not in _ORDERED:
        raise FilterError(f"values of type {one} have no order")
    try:
        return COMPARE[sign](left, right)
    except TypeError as error:
        raise FilterError(f"{one} and {other} cannot be compared: {error}") from None


def arithmetic(sign: str, left: Value, right: Value) -> Value:
    """`left sign right`, neither of them None."""
    one, other = type_name(left), type_name(right)
    if sign == "+" and "String" in (one, other):
        return _bounded(text_of(left) + text_of(right))
    if not (is_number(left) and is_number(right)):
        raise FilterError(f"'{sign}' does not take {one} and {other}")
    if isinstance(left, int) and isinstance(right, int):
        return _whole(sign, int(left), int(right))
    return _double(sign, float(left), float(right))


def signed(sign: str, value: Value) -> Value:
    """`-value` or `+value`, not None."""
    if not is_number(value):
        raise FilterError(f"a sign does not go before {type_name(value)}")
    if sign == "+":
        return value
    return _int64(-int(value)) if isinstance(value, int) else -float(value)


def text_of(value: Value) -> str:
    """A value as text, as it is added to a string."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "True" if value else "False"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return _span(value)
        case bytes():
            raise FilterError("Byte[] has no form as text")
        case _:
            return str(value)


def _span(value: timedelta) -> str:
    """The form in which .NET writes a TimeSpan: [-][days.]hh:mm:ss[.fraction]."""
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if value < timedelta(0) else ""
    days = f"{size.days}." if size.days else ""
    # .NET counts in units of 100 ns, so there is a seventh digit.
    fraction = f".{size.microseconds:06d}0" if size.microseconds else ""
    return f"{sign}{days}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


def _whole(sign: str, left: int, right: int) -> int:
    match sign:
        case "+":
            return _int64(left + right)
        case "-":
            return _int64(left - right)
        case "*":
            return _int64(left * right)
    if right == 0:
        raise FilterError("division by zero")
    # Python rounds down and takes the divisor's sign; C# truncates and takes the dividend's.
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return _int64(quotient if sign == "/" else left - right * quotient)


def _double(sign: str, left: float, right: float) -> float:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if right == 0:
            # In C# this is not an error: the result is infinity or NaN.
            signs = math.copysign(1, left) * math.copysign(1, right)
            return math.nan if left == 0 or math.isnan(left) else math.inf * signs
        case "/":
            return left / right
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


def _int64(value: int) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise FilterError("the result does not fit in 64 bits")


def _bounded(text: str) -> str:
    if len(text) > TEXT_VALUE_LENGTH_MAX:
        raise FilterError(f"the text made has {len(text)} characters; at most {TEXT_VALUE_LENGTH_MAX}")
    return text
