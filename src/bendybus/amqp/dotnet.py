"""Values that .NET adds to AMQP: ticks, and the described types for time spans, dates and URIs.

A tick is 100 ns. Dates are counted from the start of the year 1.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from bendybus.amqp.types import Described, Symbol

__all__ = [
    "DATETIME_OFFSET",
    "TIMESPAN",
    "URI",
    "instant_of_ticks",
    "span_of_ticks",
    "ticks_of_instant",
    "timespan",
]

TIMESPAN: Final = Symbol("com.microsoft:timespan")
DATETIME_OFFSET: Final = Symbol("com.microsoft:datetime-offset")
URI: Final = Symbol("com.microsoft:uri")

_TICKS_PER_MICROSECOND: Final = 10
_TICKS_PER_MS: Final = 10_000
# Ticks from the year 1 to 1970.
_TICKS_AT_EPOCH: Final = 621_355_968_000_000_000
_MICROSECOND: Final = timedelta(microseconds=1)


def ticks_of_instant(instant_ms: int) -> int:
    """A date, given in milliseconds since 1970, in ticks."""
    return _TICKS_AT_EPOCH + instant_ms * _TICKS_PER_MS


def instant_of_ticks(ticks: int) -> int:
    """A date, given in ticks, in milliseconds since 1970."""
    return (ticks - _TICKS_AT_EPOCH) // _TICKS_PER_MS


def span_of_ticks(ticks: int) -> timedelta:
    """Raises `OverflowError` if the span is longer than Python can express."""
    return timedelta(microseconds=ticks // _TICKS_PER_MICROSECOND)


def timespan(span: timedelta) -> Described:
    """A span as .NET writes its `TimeSpan`."""
    return Described(TIMESPAN, span // _MICROSECOND * _TICKS_PER_MICROSECOND)
