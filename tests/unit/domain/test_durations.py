from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.durations import UNLIMITED, format_duration, parse_duration, short_duration
from bendybus.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M", 60),
        ("PT30S", 30),
        ("P14D", 14 * 86_400),
        ("P1DT2H3M4.5S", 86_400 + 7_200 + 180 + 4.5),
        ("PT0S", 0),
        ("PT336H", 14 * 86_400),
        ("P2W", 14 * 86_400),
        ("PT0,25S", 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "P10675199DT2H48M5.4775807S",  # .NET, JavaScript
        "P10675199DT2H48M5.477539S",  # Python
        "PT256204778H48M5.4775807S",  # Java
        "P9999999999999D",
    ],
)
def test_the_longest_span_of_each_client_is_unlimited(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "1M", "PT1", "P1Y", "P1M", "-PT1M", "PT-1M", "PT1.S", "PT1M ", "0:01:00", "pt1m"],
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        parse_duration(text)
    assert f"'{text}'" in str(raised.value)


def test_a_number_of_any_length_is_refused() -> None:
    with pytest.raises(ArgumentError):
        parse_duration("P" + "9" * 10_000 + "D")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (60, "PT1M"),
        (14 * 86_400, "P14D"),
        (0, "PT0S"),
        (0.25, "PT0.25S"),
        (90_061.5, "P1DT1H1M1.5S"),
        (None, UNLIMITED),
        (1e15, UNLIMITED),
    ],
)
def test_seconds_are_written_in_the_shortest_form(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_negative_duration_is_not_written() -> None:
    with pytest.raises(ArgumentError):
        format_duration(-1)


@given(st.integers(min_value=0, max_value=10_675_198 * 86_400 * 1000))
def test_milliseconds_survive_being_written_and_read(milliseconds: int) -> None:
    seconds = parse_duration(format_duration(milliseconds / 1000))
    assert seconds is not None
    assert round(seconds * 1000) == milliseconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "1m30s"), (14 * 86_400, "14d"), (0, "0s"), (0.5, "0.5s"), (None, "unlimited")]
)
def test_a_duration_is_shown_short_to_people(seconds: float | None, text: str) -> None:
    assert short_duration(seconds) == text
