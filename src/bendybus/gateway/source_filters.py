"""The filters of a receiving link's source: which of them are applied, and what the answer says.

"The sending endpoint sets [in the source] the filters actually in place"
[AMQP 3.5.3]. An unknown filter is left out of the answer, so that a client can tell. A JMS
selector is recognised by its descriptor, under any key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bendybus.amqp.performatives import Source
from bendybus.amqp.types import Described
from bendybus.broker.selection import Selection
from bendybus.domain.filters import Selector
from bendybus.engine.sending import SendingLink
from bendybus.errors import ArgumentError, InvalidField
from bendybus.gateway.session_filters import WantedSession, is_session_filter, wanted_session

__all__ = ["SELECTOR", "SourceFilters"]

SELECTOR: Final = "apache.org:selector-filter:string"
SELECTOR_CODE: Final = 0x0000_468C_0000_0004


@dataclass(frozen=True, slots=True)
class SourceFilters:
    session: WantedSession | None
    """None if the client asks for no session."""
    selection: Selection | None
    in_place: dict[str, object]
    """As the client wrote them. A session's link answers with its session: session_receiver.py."""

    @classmethod
    def of(cls, link: SendingLink) -> SourceFilters:
        """`InvalidField` for one that cannot be read."""
        selectors: list[Selector] = []
        in_place: dict[str, object] = {}
        asked: dict[str, object] = getattr(link.source, "filter", None) or {}
        session = wanted_session(link.source)
        for key, value in asked.items():
            if session is not None:
                # A session keeps its order, so a selector is not offered there.
                if is_session_filter(key, value):
                    in_place[key] = value
            elif _is_selector(key, value):
                selectors.append(_selector(value))
                in_place[key] = value
        return cls(session, Selection(selectors) if selectors else None, in_place)

    @classmethod
    def none(cls) -> SourceFilters:
        """For a node that applies no filters."""
        return cls(None, None, {})

    def answer(self, link: SendingLink) -> Source | None:
        """The client's source with the filters that are applied; None if it asked for none."""
        source = link.source
        if not isinstance(source, Source) or not source.filter:
            return None
        return replace(source, filter=self.in_place or None, address=source.address or link.name)


def _is_selector(key: str, value: object) -> bool:
    if isinstance(value, Described):
        return value.descriptor in (SELECTOR, SELECTOR_CODE)
    return key == SELECTOR


def _selector(value: object) -> Selector:
    text = value.value if isinstance(value, Described) else value
    if not isinstance(text, str):
        raise InvalidField(f"A message selector must be a string, not {text!r}.")
    try:
        return Selector(text)
    except ArgumentError as refusal:
        raise InvalidField(f"The message selector cannot be read. {refusal}") from None
