"""Correlation filters: every given field must equal the message's.

Nothing here can fail: a field that is missing or has another type does not match. Texts
are case-sensitive; numbers compare by value, whatever their width. A field that
is not given is not checked, so a filter without fields matches every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bendybus.domain.filters.parameters import check_value
from bendybus.domain.filters.reading import Reading, SystemProperty
from bendybus.domain.filters.values import Spelling, Value, comparable, compare

__all__ = ["CorrelationFilter"]


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    constant: ClassVar[bool | None] = None
    FIELDS: ClassVar[dict[str, SystemProperty]] = {
        "correlation_id": SystemProperty.CORRELATION_ID,
        "message_id": SystemProperty.MESSAGE_ID,
        "to": SystemProperty.TO,
        "reply_to": SystemProperty.REPLY_TO,
        "label": SystemProperty.LABEL,
        "session_id": SystemProperty.SESSION_ID,
        "reply_to_session_id": SystemProperty.REPLY_TO_SESSION_ID,
        "content_type": SystemProperty.CONTENT_TYPE,
    }

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict, hash=False)
    spelled: Mapping[str, Spelling] = field(default_factory=dict, hash=False, compare=False)
    """The properties as the client wrote them, if known."""
    _system: tuple[tuple[SystemProperty, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in self.properties.items():
            check_value(f"The correlation property '{name}'", value)
        given = ((name, getattr(self, attribute)) for attribute, name in self.FIELDS.items())
        object.__setattr__(
            self, "_system", tuple((name, value) for name, value in given if value is not None)
        )

    def matches(self, reading: Reading) -> bool:
        for name, wanted in self._system:
            if reading.system(name) != wanted:
                return False
        for spelled, expected in self.properties.items():
            value = reading.get(spelled)
            if value.__class__ is expected.__class__ is str:
                if value != expected:
                    return False
            elif not _equal(value, expected) or (value is None and not reading.has(spelled)):
                return False
        return True


def _equal(value: Value, expected: Value) -> bool:
    if value is None or expected is None:
        return value is expected
    return comparable(value, expected) and compare("=", value, expected)
