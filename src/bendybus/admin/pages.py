"""Which part of a long list our own routes show: `?skip=0&top=50`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus.errors import ArgumentError

__all__ = ["page_of"]

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200


def page_of(asked: Mapping[str, str]) -> tuple[int, int]:
    """How many to leave out, and how many to show."""
    return _number(asked, "skip", 0), min(_number(asked, "top", PAGE_DEFAULT), PAGE_MAX)


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    text = asked.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentError(f"'{name}' must be a number, not '{text[:60]}'.")
    return int(text)
