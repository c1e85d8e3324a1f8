"""RFC 1982 arithmetic on 32 bits: delivery-counts, delivery-ids and transfer-ids wrap around.

"the addition of a positive integer n to a serial number s gives (s + n) modulo
2^32" [RFC 1982 3.1]. Distances of 2^31 have no order; they count as ahead.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SERIAL_MAX", "add", "before", "distance"]

SERIAL_MAX: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000


def add(serial: int, count: int) -> int:
    """The number `count` steps after `serial` (before it if negative)."""
    return (serial + count) & SERIAL_MAX


def distance(start: int, finish: int) -> int:
    """How far `finish` is ahead of `start`; negative if it is behind."""
    ahead = (finish - start) & SERIAL_MAX
    return ahead if ahead <= _HALF else ahead - SERIAL_MAX - 1


def before(left: int, right: int) -> bool:
    """Whether `left` comes earlier than `right`."""
    return 0 < (right - left) & SERIAL_MAX <= _HALF
