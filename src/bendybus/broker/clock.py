"""The one clock of the broker, so that a test or a simulation has one thing to replace."""

from __future__ import annotations

import time

from bendybus.names import Instant

__all__ = ["now"]


def now() -> Instant:
    return Instant(time.time_ns() // 1_000_000)
