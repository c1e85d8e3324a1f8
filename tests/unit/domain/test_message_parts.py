"""The plain parts of a message: what is added to it, and why it was dead-lettered."""

from __future__ import annotations

import pytest

from bendybus.domain.message_parts import Amendment, Cause, Posting
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath, SequenceNumber


def test_later_properties_follow_earlier_ones() -> None:
    amended = Amendment(dead_letter_reason="late").with_properties(b"one").with_properties(b"three")

    assert amended == Amendment((b"one", b"three"), dead_letter_reason="late")
    assert amended.size == 8


@pytest.mark.parametrize("nothing", [None, b""])
def test_no_properties_change_nothing(nothing: bytes | None) -> None:
    amendment = Amendment((b"one",))

    assert amendment.with_properties(nothing) is amendment


def test_a_message_without_a_number_was_sent_through() -> None:
    assert Posting(EntityPath("orders"), SequenceNumber(0)).sent_through
    assert not Posting(EntityPath("orders"), SequenceNumber(7)).sent_through


@pytest.mark.parametrize(
    ("reason", "description", "name"),
    [("x" * 4097, None, "DeadLetterReason"), (None, "x" * 4097, "DeadLetterErrorDescription")],
)
def test_a_text_that_is_too_long_is_refused_by_name(
    reason: str | None, description: str | None, name: str
) -> None:
    assert Cause("x" * 4096, "x" * 4096).reason == "x" * 4096
    with pytest.raises(ArgumentError, match=f"{name} has 4097 characters; at most 4096"):
        Cause(reason, description)
