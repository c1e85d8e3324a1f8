"""Lists of entities: what stands in their cells."""

from __future__ import annotations

import pytest

from bendybus.cli.entities import _cell, _tell_of_partial_counts


def test_counts_of_an_entity_with_partitions_away_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"activeMessageCount": 5}
    whole = {"name": "a", "entityAvailabilityStatus": "Available", "countDetails": counts}
    limited = {"name": "b", "entityAvailabilityStatus": "Limited", "countDetails": counts}
    assert _cell(whole, "activeMessageCount") == 5
    assert _cell(limited, "activeMessageCount") == "5 (partial)"
    assert _cell(limited, "name") == "b"
    _tell_of_partial_counts([whole])
    assert capsys.readouterr().err == ""
    _tell_of_partial_counts([whole, limited])
    assert capsys.readouterr().err.startswith("Counts of b are partial:")
