"""Backups under load, few enough for every day. The long check: `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.backup_check import BackupCheck

ROUNDS = 2


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.row("P-12", "P-32")
def test_every_backup_under_load_is_restored_with_all_that_was_acknowledged(
    tmp_path: Path, brokers: int
) -> None:
    check = BackupCheck(tmp_path, brokers)
    check.run(ROUNDS)
    assert check.complaints == []
    assert check.restored == ROUNDS
    assert check.entities.gone
    assert "Traceback" not in check.live.log.read_text()
