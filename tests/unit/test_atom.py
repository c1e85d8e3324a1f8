"""The vocabulary of ATOM: whatever is written is XML, with times as .NET writes them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bendybus import atom
from bendybus.domain.filters import CorrelationFilter
from bendybus.names import Instant


@pytest.mark.parametrize("value", ["a<b&c>d", "\"quoted'", " tab\tline\n"])
def test_text_and_attributes_are_read_as_they_were_given(value: str) -> None:
    root = ElementTree.fromstring(f"<a b={atom.attribute(value)}>{atom.text(value)}</a>")
    assert (root.text, root.get("b")) == (value, value)


def test_what_xml_cannot_hold_is_replaced() -> None:
    assert atom.element("a", "x\x00y\ud800") == "<a>x\ufffdy\ufffd</a>"


def test_true_and_false_are_written_as_xml_writes_them() -> None:
    assert atom.elements_of([("a", True), "<b/>", ("c", 5)]) == "<a>true</a><b/><c>5</c>"


def test_times_have_seven_digits_and_never_is_the_first_moment_of_dotnet() -> None:
    assert atom.format_time(Instant(1_767_225_600_123)) == "2026-01-01T00:00:00.123Z"
    assert atom.format_time(Instant(0)) == atom.NEVER == "0001-01-01T00:00:00Z"


def test_every_field_of_a_correlation_filter_has_an_element() -> None:
    assert set(atom.CORRELATION_ELEMENTS) == set(CorrelationFilter.FIELDS)
