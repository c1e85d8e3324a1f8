"""Figures, times and bodies as people read them."""

from __future__ import annotations

import pytest

from bendybus_portal.series import Counters
from bendybus_portal.shown import age, body_of, clock_time, number, percent, plural, rate, size


def test_figures_are_readable():
    assert [number(1234567), number(None), plural(1, "message"), plural(2, "message")] == [
        *("1,234,567", "–", "1 message", "2 messages"),
    ]
    assert [size(0), size(1536), size(200 * 1024**2), size(None)] == ["0 bytes", "1.5 KB", "200 MB", "–"]
    assert [rate(None), rate(0), rate(0.25), rate(1234.6)] == ["–", "0", "0.2", "1,235"]
    assert [percent(0), percent(0.001), percent(0.255)] == ["0 %", "< 1 %", "26 %"]
    assert [age(500), age(61_000), age(7_200_000), age(3 * 86_400_000)] == ["now", "1 min", "2 h", "3 d"]
    assert [clock_time(0), clock_time(10**18), clock_time(1_700_000_000_000)] == [
        *("–", "–", "2023-11-14 22:13:20"),
    ]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "empty", ""),
        ('{"name":"Zoë"}'.encode(), "JSON", '{\n  "name": "Zoë"\n}'),
        (b"{not json", "text", "{not json"),
        (b"<a><b>1</b></a>", "XML", "<a>\n  <b>1</b>\n</a>"),
        (b"<a><b>", "text", "<a><b>"),
        ("李 🚌".encode(), "text", "李 🚌"),
        (b"\xff\x00A", "bytes", "00000000  ff 00 41                                         ..A"),
    ],
)
def test_a_body_is_shown_as_what_it_is(body, kind, text):
    shown = body_of(body)
    assert (shown.kind, shown.text, shown.whole) == (kind, text, True)


def test_xml_with_a_document_type_is_not_parsed():
    bomb = b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    assert body_of(bomb).kind == "text"


def test_a_long_body_is_cut():
    assert not body_of(b"a" * 100_000).whole
    assert not body_of(b"\xff" * 100_000).whole


def test_rates_are_differences_and_a_counter_that_begins_again_has_none():
    counters = Counters()
    assert counters.rate("q", 10.0, 100) is None
    assert counters.rate("q", 12.0, 120) == 10.0
    assert counters.rate("q", 12.0, 120) is None
    assert counters.rate("q", 14.0, 5) is None
