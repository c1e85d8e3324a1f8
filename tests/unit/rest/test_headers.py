"""Custom properties go through headers and come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bendybus.amqp.types import Char, Int, Symbol, Timestamp, UInt
from bendybus.rest.headers import custom_properties, http_date, instant_of_date, property_headers

# What a header's value can hold: no control characters, no half surrogate pairs.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(
    lambda text: instant_of_date(text) is None
)
SECONDS = st.integers(-2_208_988_800, 253_402_300_799)
VALUES = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    SECONDS.map(lambda seconds: Timestamp(seconds * 1000)),
)
NAMES = st.from_regex(r"x[A-Za-z0-9_.!#$%&'*+^`|~-]{0,20}", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES))
@example({"xQuote": 'a "quoted" \\" word\\'})
@example({"xLikeNumber": "12", "xLikeFlag": "true"})
def test_properties_come_back_as_they_went(properties):
    seen = custom_properties(property_headers(properties))
    assert seen == properties
    assert {name: isinstance(value, bool) for name, value in seen.items()} == {
        name: isinstance(value, bool) for name, value in properties.items()
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"High"', "High"),
        (b'"say \\"hi\\""', 'say "hi"'),
        (b'"C:\\new"', "C:\\new"),
        (b'""', ""),
        (b'"Sun, 06 Nov 1994 08:49:37 GMT"', Timestamp(784_111_777_000)),
        (b"true", True),
        (b"False", False),
        (b"12", Int(12)),
        (b"3000000000", 3_000_000_000),
        (b"100000000000000000000", 1e20),
        (b"-1.5", -1.5),
        (b"High", "High"),
        (b"12345,ABC", "12345,ABC"),
        (b"1_000", "1_000"),
        (b'"', '"'),
        (b"", ""),
        ('"Grüße"'.encode(), "Grüße"),
        ('"Grüße"'.encode("latin-1"), "Grüße"),
    ],
)
def test_each_syntax_has_its_type(text, value):
    (seen,) = custom_properties([(b"Priority", text)]).values()
    assert (type(seen), seen) == (type(value), value)


def test_headers_of_http_are_no_properties():
    request = [
        (b"Host", b"h"),
        (b"Content-Type", b"t"),
        (b"BrokerProperties", b"{}"),
        (b"AUTHORIZATION", b"s"),
    ]
    assert custom_properties([*request, (b"Mine", b"1")]) == {"Mine": 1}


def test_properties_cannot_pose_as_headers_of_the_response():
    """Names of HTTP's own, and line breaks, would let a sender write the receiver's response."""
    hostile = {"Content-Length": 5, "location": "x", "BrokerProperties": "{}", "a b": 1, "x:y": 1, "": 1}
    assert property_headers(hostile) == []
    assert property_headers({"x": "a\r\nSet-Cookie: b\0"}) == [(b"x", b'"a  Set-Cookie: b "')]


def test_what_a_header_cannot_carry_is_left_out():
    assert property_headers({"n": None, "b": b"x", "l": [1], "m": {}}) == []


def test_other_amqp_types_are_shown_as_what_they_come_nearest_to():
    shown = property_headers({"s": Symbol("sym"), "c": Char("c"), "u": UInt(7), "i": float("inf")})
    assert shown == [(b"s", b'"sym"'), (b"c", b'"c"'), (b"u", b"7"), (b"i", b'"inf"')]


def test_the_spelling_of_a_name_survives_a_host_that_lower_cases():
    ((name, _),) = property_headers({"PriorityClass": 1})
    assert name.lower() == b"PriorityClass"


def test_an_instant_beyond_the_calendar_is_no_error():
    assert http_date(1 << 62) == "Thu, 01 Jan 1970 00:00:00 GMT"
