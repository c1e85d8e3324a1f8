"""The crash check, short enough for every day. The long one: `make faults`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from faults.crash_check import CrashCheck

SEED = 20260
KILLS = 3


def test_kills_under_load_lose_repeat_and_reorder_nothing(tmp_path: Path) -> None:
    # P-12, P-16, P-18, P-26, B-08
    check = CrashCheck(tmp_path, SEED)
    verdict = asyncio.run(check.run(KILLS))
    assert verdict.violations == []
    assert verdict.acknowledged and verdict.completed and verdict.redelivered
    assert "Traceback" not in check.log.read_text()
