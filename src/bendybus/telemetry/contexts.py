"""The trace that a message belongs to, as the SDKs of Azure write it into its application properties.

They write the W3C trace context: `traceparent`, or under its older name `Diagnostic-Id`.
"""

from __future__ import annotations

import re
from typing import Final

from opentelemetry.trace import SpanContext, TraceFlags

from bendybus.amqp.message import application_properties
from bendybus.amqp.sections import scan
from bendybus.envelope import Stored
from bendybus.errors import WireError

__all__ = ["context_of", "parse"]

NAMES: Final = ("traceparent", "Diagnostic-Id")
_MARKS: Final = tuple(name.encode() for name in NAMES)

# version-trace-span-flags; a later version may add more fields.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


def parse(text: object) -> SpanContext | None:
    """The context that a `traceparent` names; None if it is not one."""
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & 1))
    return context if context.is_valid else None


def context_of(payload: bytes) -> SpanContext | None:
    """The context of a stored message; None if it has none."""
    if not any(mark in payload for mark in _MARKS):
        return None
    stored = Stored.of(payload)
    try:
        written = stored.annotations()
        sections = scan(stored.bare)
        if sections.application_properties >= 0:
            written.update(application_properties(stored.bare, sections.application_properties))
    except WireError:
        return None
    for name in NAMES:
        context = parse(written.get(name))
        if context is not None:
            return context
    return None
