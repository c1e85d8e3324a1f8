"""ISO 8601 durations, as Config.json and the management API write them.

`PT1M` is 60 seconds. .NET's longest time span stands for "unlimited" and
is None here. Years and months are refused because they have no fixed length.
The allowed durations of each property: properties.py.
"""

from __future__ import annotations

import re
from typing import Final

from bendybus.errors import ArgumentError

__all__ = ["UNLIMITED", "format_duration", "format_time_span", "parse_duration", "short_duration"]

# TimeSpan.MaxValue: what Service Bus shows if no limit is set.
UNLIMITED: Final = "P10675199DT2H48M5.4775807S"

# Clients round the fraction of TimeSpan.MaxValue in different ways (Python writes microseconds,
# Java writes hours only), so every duration with at least its whole days counts as unlimited.
UNLIMITED_FROM_S: Final = 10_675_199 * 86_400

# .NET's resolution of 100 ns. Nothing finer is ever written.
TICKS_PER_SECOND: Final = 10_000_000

# At least one field must follow the P, and at least one the T. Thirteen digits are enough for the longest
# span in its smallest unit, and limit the size of a number in a hostile text.
_DURATION: Final = re.compile(
    r"P(?=[0-9T])"
    r"(?:(?P<weeks>[0-9]{1,13})W)?"
    r"(?:(?P<days>[0-9]{1,13})D)?"
    r"(?:T(?=[0-9])"
    r"(?:(?P<hours>[0-9]{1,13})H)?"
    r"(?:(?P<minutes>[0-9]{1,13})M)?"
    r"(?:(?P<seconds>[0-9]{1,13}(?:[.,][0-9]{1,9})?)S)?"
    r")?"
)

_SECONDS_IN: Final = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60}


def parse_duration(text: str) -> float | None:
    """Seconds, or None for unlimited."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ArgumentError(f"'{text}' is not a duration such as PT1M or P14D.")
    whole = sum(int(found[field] or 0) * seconds for field, seconds in _SECONDS_IN.items())
    total = whole + float((found["seconds"] or "0").replace(",", "."))
    return None if total >= UNLIMITED_FROM_S else total


def format_duration(seconds: float | None) -> str:
    """The shortest form, with days as the largest unit. None becomes the text for unlimited."""
    if seconds is None or seconds >= UNLIMITED_FROM_S:
        return UNLIMITED
    if seconds < 0:
        raise ArgumentError(f"A duration of {seconds} seconds is negative.")
    whole, ticks = divmod(round(seconds * TICKS_PER_SECOND), TICKS_PER_SECOND)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    fraction = f".{ticks:07d}".rstrip("0") if ticks else ""
    date = f"{days}D" if days else ""
    time = "".join(f"{amount}{unit}" for amount, unit in ((hours, "H"), (minutes, "M")) if amount)
    if rest or fraction:
        time += f"{rest}{fraction}S"
    if not date and not time:
        return "PT0S"
    return f"P{date}T{time}" if time else f"P{date}"


def format_time_span(seconds: float) -> str:
    """The form in which .NET writes a TimeSpan: `00:00:20`, or with days `7.00:00:00`."""
    whole, ticks = divmod(round(seconds * TICKS_PER_SECOND), TICKS_PER_SECOND)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    fraction = f".{ticks:07d}" if ticks else ""
    return f"{f'{days}.' if days else ''}{hours:02d}:{minutes:02d}:{rest:02d}{fraction}"


def short_duration(seconds: float | None) -> str:
    """For people: `1m30s`, `14d` or `unlimited`."""
    if seconds is None or seconds >= UNLIMITED_FROM_S:
        return "unlimited"
    return format_duration(seconds).replace("P", "").replace("T", "").lower()
