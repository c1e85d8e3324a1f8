"""Figures, times and bodies as people read them. Pure functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final
from xml.dom import minidom
from xml.parsers.expat import ExpatError

__all__ = [
    "Body",
    "age",
    "body_of",
    "clock_time",
    "duration",
    "number",
    "percent",
    "plural",
    "rate",
    "size",
    "words",
]

_SIZES: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

# What a page shows of a body. All of it can be copied.
BODY_SHOWN_MAX: Final = 64 * 1024
HEX_SHOWN_MAX: Final = 4 * 1024


def words(name: str) -> str:
    """`lockDuration` as Lock duration."""
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return spaced[:1].upper() + spaced[1:]


def number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def plural(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def size(value: object) -> str:
    """1536 as 1.5 KB."""
    if not isinstance(value, int | float):
        return "–"
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_SIZES[unit]}" if unit == 0 or amount >= 100 else f"{amount:.1f} {_SIZES[unit]}"


def rate(per_s: float | None) -> str:
    if per_s is None:
        return "–"
    if per_s == 0:
        return "0"
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.01 or share == 0 else "< 1 %"


def age(milliseconds: float) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = max(0.0, milliseconds / 1000)
    for unit_s, name in _AGES:
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {name}"
    return "now"


def duration(milliseconds: float) -> str:
    return "< 1 s" if milliseconds < 1000 else age(milliseconds)


def clock_time(milliseconds: object) -> str:
    """In UTC, as the command line shows it."""
    if not isinstance(milliseconds, int) or milliseconds <= 0:
        return "–"
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "–"


class Body:
    """A body as it is shown: what it is, the text, and whether that is all of it."""

    __slots__ = ("kind", "text", "whole")

    def __init__(self, kind: str, text: str, whole: bool) -> None:
        self.kind = kind
        self.text = text
        self.whole = whole


def body_of(body: bytes) -> Body:
    """JSON and XML indented, other text as it is, and bytes that are no text as hex."""
    if not body:
        return Body("empty", "", True)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Body("bytes", _hex(body[:HEX_SHOWN_MAX]), len(body) <= HEX_SHOWN_MAX)
    if "\0" in text:
        return Body("bytes", _hex(body[:HEX_SHOWN_MAX]), len(body) <= HEX_SHOWN_MAX)
    kind = "text"
    if len(text) <= BODY_SHOWN_MAX:
        kind, text = _formatted(text)
    return Body(kind, text[:BODY_SHOWN_MAX], len(text) <= BODY_SHOWN_MAX)


def _formatted(text: str) -> tuple[str, str]:
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            return "JSON", json.dumps(json.loads(stripped), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return "text", text
    # A document type may define entities that grow without bound.
    if stripped[:1] == "<" and "<!" not in stripped:
        try:
            lines = minidom.parseString(stripped).toprettyxml(indent="  ").splitlines()
            return "XML", "\n".join(line for line in lines[1:] if line.strip())
        except (ExpatError, ValueError, RecursionError):
            return "text", text
    return "text", text


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        piece = data[start : start + 16]
        codes = " ".join(f"{byte:02x}" for byte in piece)
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:08x}  {codes:<47}  {letters}")
    return "\n".join(lines)
