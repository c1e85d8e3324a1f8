"""The fault check, short enough for every day. The long one: `make faults`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from faults.disasters import KilledWithoutPostgres, PageDamagedWhileDown, PostgresFrozen, Stand
from faults.fault_check import FaultCheck, described

SEED = 5
DISASTERS = (KilledWithoutPostgres, PageDamagedWhileDown, PostgresFrozen)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the SDK's, of cut connections
def test_faults_of_stores_and_server_under_load_lose_and_repeat_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # P-04, P-12, P-13, P-15, P-16, P-32, B-08
    caplog.set_level(logging.CRITICAL, "azure")
    with Stand.made(tmp_path, described(), SEED) as stand:
        check = FaultCheck(stand, SEED, DISASTERS)
        counted = asyncio.run(check.run(seconds=0, faults=len(DISASTERS)))
    for name, counts in counted.items():
        assert counts.holds, (name, counts.violations)
        assert counts.acknowledged and counts.completed, name
    assert [fault for fault in check.faults if not fault.noticed or fault.back_after_s is None] == []
    assert "Traceback" not in stand.server.log.read_text()
