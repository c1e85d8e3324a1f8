"""The crash check, short enough for every day. The long one: `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crash_check import CrashCheck

SEED = 20260
KILLS = 3


@pytest.mark.row("B-08", "P-12", "P-13", "P-15", "P-16", "P-18", "P-23", "P-26", "P-34")
async def test_kills_under_load_lose_repeat_reorder_and_halve_nothing(tmp_path: Path) -> None:
    check = CrashCheck(tmp_path, SEED)
    verdicts = await check.run(KILLS)
    for name, verdict in verdicts.items():
        assert verdict.violations == [], name
        assert verdict.acknowledged and verdict.completed, name
    assert "Traceback" not in check.log.read_text()
