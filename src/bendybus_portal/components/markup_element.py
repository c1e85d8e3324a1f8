"""An element of a page with markup of ours in it. When the markup changes, only what is new is sent."""

from __future__ import annotations

import json
from typing import Self

from nicegui import ui

from bendybus_portal.markup import EMPTY, Html
from bendybus_portal.patches import Pieces, changes_between, pieces_of

__all__ = ["Markup", "markup"]


class Markup(ui.element, component="markup.js"):
    def __init__(self, content: Html = EMPTY) -> None:
        super().__init__()
        self.content = content
        self._pieces: Pieces | None = None
        self._revision = self._whole = 0
        # What is in a dialog is not in the page while the dialog is closed, and changes would miss it.
        self._stays = not any(isinstance(each, ui.dialog) for each in self.ancestors())
        self._tell_props()

    def put(self, content: Html) -> Self:
        """Replace the content, unless it is the same."""
        if content == self.content:
            return self
        before, after = self._pieces or pieces_of(self.content), pieces_of(content)
        changes = changes_between(before, after) if self._stays else None
        self.content, self._pieces = content, after
        self._revision += 1
        if changes is None:
            self._whole = self._revision
            self._tell_props()
            self.update()
        else:
            self._tell_props()
            told = json.dumps([self._whole, self._revision, changes])
            self.client.run_javascript(f"runMethod({self.id}, 'change', {told})")
        return self

    def _tell_props(self) -> None:
        with self._props.suspend_updates():
            self._props["innerHTML"] = self.content
            self._props["whole"] = self._whole
            self._props["revision"] = self._revision


def markup(content: Html = EMPTY, *, classes: str = "") -> Markup:
    """An element with markup, which is escaped where it has to be (markup.py)."""
    return Markup(content).classes(classes)
