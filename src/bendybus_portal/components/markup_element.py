"""An element of a page with markup of ours in it. When the markup changes, only what is new is sent.

What changes together is sent together: a browser lays out and paints a page once for each message.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final, Self
from weakref import WeakKeyDictionary

from nicegui import Client, ui

from bendybus_portal.markup import EMPTY, Html
from bendybus_portal.patches import Changes, Pieces, changes_between, pieces_of

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
            _send_soon(self.client, (self.id, self._whole, self._revision, changes))
        return self

    def _tell_props(self) -> None:
        with self._props.suspend_updates():
            self._props["innerHTML"] = self.content
            self._props["whole"] = self._whole
            self._props["revision"] = self._revision


# Of each page: the changes since the loop last had its turn.
_waiting: Final[WeakKeyDictionary[Client, list[tuple[int, int, int, Changes]]]] = WeakKeyDictionary()


def _send_soon(client: Client, change: tuple[int, int, int, Changes]) -> None:
    waiting = _waiting.setdefault(client, [])
    waiting.append(change)
    if len(waiting) == 1:
        asyncio.get_running_loop().call_soon(_send, client)


def _send(client: Client) -> None:
    told = json.dumps(_waiting.pop(client, []))
    client.run_javascript(f"for (const [id, ...change] of {told}) runMethod(id, 'change', change)")


def markup(content: Html = EMPTY, *, classes: str = "") -> Markup:
    """An element with markup, which is escaped where it has to be (markup.py)."""
    return Markup(content).classes(classes)
