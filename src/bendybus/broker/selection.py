"""What a receiver with selectors wants: which messages match."""

from __future__ import annotations

from collections.abc import Sequence

from bendybus.domain.filters import Selector
from bendybus.domain.messages import Message
from bendybus.envelope.contents import selector_view
from bendybus.errors import FilterError

__all__ = ["Selection"]


class Selection:
    """The messages that all of its selectors match."""

    def __init__(self, selectors: Sequence[Selector]) -> None:
        self._selectors = selectors

    @classmethod
    def parse(cls, text: str) -> Selection:
        """`ArgumentError` for a text that is no selector."""
        return cls([Selector(text)])

    @property
    def text(self) -> str:
        """As one selector."""
        texts = [selector.text for selector in self._selectors]
        return texts[0] if len(texts) == 1 else " AND ".join(f"({text})" for text in texts)

    def matches(self, message: Message, payload: bytes) -> bool:
        """A message that cannot be read does not match."""
        try:
            view = selector_view(message, payload)
        except FilterError:
            return False
        return all(selector.matches(view) for selector in self._selectors)
