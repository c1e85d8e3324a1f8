"""Durations as people write them and as the management API does."""

from __future__ import annotations

import pytest

from bendybus.domain.durations import UNLIMITED
from bendybus.errors import ArgumentError
from bendybus.management.durations import read_duration, shown_duration


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("30s", "PT30S"),
        ("1h30m", "PT1H30M"),
        ("14d", "P14D"),
        ("1.5s", "PT1.5S"),
        ("250ms", "PT0.25S"),
        ("2W", "P14D"),
        ("PT30S", "PT30S"),
        ("pt1m", "PT1M"),
        ("unlimited", UNLIMITED),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, written: str) -> None:
    assert read_duration(text) == written


@pytest.mark.parametrize("text", ["", "30", "s", "PT", "-5s", "30 s", "5y", "1.2.3s"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a duration such as 30s"):
        read_duration(text)


@pytest.mark.parametrize(
    ("written", "shown"),
    [("PT1M30S", "1m30s"), ("P14D", "14d"), (UNLIMITED, "unlimited"), ("PT0S", "0s"), ("Paris", "Paris")],
)
def test_durations_are_shown_short(written: str, shown: str) -> None:
    assert shown_duration(written) == shown
