"""Durations as people write and read them: `30s`, `1h30m`, `14d` or `unlimited`.

The management API uses only ISO 8601 (domain/durations.py), which is accepted too.
"""

from __future__ import annotations

import re
from typing import Final

from bendybus.domain.durations import UNLIMITED, format_duration, parse_duration, short_duration
from bendybus.errors import ArgumentError

__all__ = ["read_duration", "shown_duration"]

_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SHORT: Final = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,7})?(?:ms|[smhdw]))+")
_SHORT_PART: Final = re.compile(r"([0-9.]+)(ms|[smhdw])")


def read_duration(text: str) -> str:
    """`30s`, `1h30m`, `14d`, PT30S or `unlimited` as the API writes it; `ArgumentError` if none of these."""
    given = text.strip()
    if given.lower() == "unlimited":
        return UNLIMITED
    if _SHORT.fullmatch(given.lower()):
        parts = _SHORT_PART.findall(given.lower())
        return format_duration(sum(float(amount) * _UNIT_S[unit] for amount, unit in parts))
    try:
        return format_duration(parse_duration(given.upper()))
    except ArgumentError:
        raise ArgumentError(
            f"'{text}' is not a duration such as 30s, 1h30m, 14d, PT30S or unlimited"
        ) from None


def shown_duration(text: str) -> str:
    """What the API wrote, for a table: PT1M30S as `1m30s`; as it stands if it is no duration."""
    try:
        return short_duration(parse_duration(text))
    except ArgumentError:
        return text
