"""Which trace a message belongs to, as Azure's SDKs write it."""

from __future__ import annotations

import pytest

from bendybus.client import encode
from bendybus.domain.entities import QueueDescription
from bendybus.envelope import admit
from bendybus.names import EntityPath, Instant
from bendybus.telemetry.contexts import context_of, parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def stored(**properties: object) -> bytes:
    encoded = encode(b"body", application_properties=properties)
    message, _ = admit(encoded, Instant(1), QueueDescription(EntityPath("q")), None)
    assert message.payload is not None
    return message.payload


@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
def test_a_context_is_found_under_either_name(name: str) -> None:
    context = context_of(stored(**{name: PARENT}))
    assert context is not None
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (TRACE, SPAN)
    assert context.trace_flags.sampled and context.is_remote


def test_the_newer_name_goes_first_and_a_message_without_either_has_none() -> None:
    other = f"00-{'1' * 32}-{'2' * 16}-00"
    context = context_of(stored(**{"Diagnostic-Id": other, "traceparent": PARENT}))
    assert context is not None and f"{context.trace_id:032x}" == TRACE
    assert context_of(stored(colour="red")) is None
    assert context_of(stored(note="traceparent")) is None


@pytest.mark.parametrize(
    "text",
    [None, 7, "", PARENT.upper(), f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}"],
)
def test_what_is_no_context_is_none(text: object) -> None:
    assert parse(text) is None


def test_a_later_version_may_say_more() -> None:
    assert parse(f"01-{TRACE}-{SPAN}-00-more") is not None
