"""Receive and settle: the messages that this person holds, each with its possible outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from bendybus.errors import ArgumentError, BrokerError
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import field, form_dialog
from bendybus_portal.components.live import tell, told_errors
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.message_view import message_dialog, message_table
from bendybus_portal.components.table import ClickedAction, actions_of
from bendybus_portal.holding import RECEIVED_MAX, Holding
from bendybus_portal.layout import button
from bendybus_portal.markup import Html, tag
from bendybus_portal.reading import EntityInfo
from bendybus_portal.sessions import Session
from bendybus_portal.shown import plural

__all__ = ["HeldPanel"]

_ACTIONS = {"complete": "Complete", "abandon": "Abandon", "defer": "Defer", "dead-letter": "Dead-letter"}


class HeldPanel:
    def __init__(self, session: Session, info: EntityInfo, changed: Callable[[], Awaitable[None]]) -> None:
        self._session = session
        self._changed = changed
        self._sessions = info.sessions
        self._holding: Holding = session.memory.setdefault(
            f"held:{info.path}", Holding(session.access, info.path)
        )
        with form_dialog(f"Receive from {info.path}", "Receive", self._receive) as self._form:
            self._count = field(
                "How many", "1", hint=f"up to {RECEIVED_MAX}; they are locked until you settle them"
            )
            self._session_id = field("Session id")
            self._session_id.set_visibility(info.sessions)

    def ask(self) -> None:
        self._form.open()

    def build(self) -> None:
        self._section = ui.element("section").classes("card held")
        with self._section:
            with ui.element("div").classes("toolbar"):
                self._title = markup()
                button("Release all", self._release).classes("push")
            self._listed = actions_of(self._act)
        self._show()

    def _show(self) -> None:
        messages = list(self._holding.messages.values())
        self._section.set_visibility(bool(messages))
        self._title.put(tag("h2", f"Received: {plural(len(messages), 'locked message')}"))
        self._listed.put(message_table(messages, actions=_ACTIONS) if messages else Html(""))

    async def _receive(self) -> None:
        text = self._count.value.strip()
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= RECEIVED_MAX):
            raise ArgumentError(f"'How many' must be a number from 1 to {RECEIVED_MAX}.")
        if self._sessions and not self._session_id.value.strip():
            raise ArgumentError("This entity has sessions: name the one to receive from.")
        came = await in_thread(self._holding.receive, int(text), self._session_id.value.strip())
        self._show()
        tell(f"Received {plural(came, 'message')}." if came else "No message came.")

    async def fetch(self, number: int) -> None:
        """Lock a deferred message, to settle it here."""
        await in_thread(self._holding.fetch_deferred, [number])
        self._show()

    async def _act(self, clicked: ClickedAction) -> None:
        number = int(clicked.subject)
        if clicked.action == "open":
            if number in self._holding.messages:
                message_dialog(self._holding.messages[number], {})
            return
        if clicked.action in _ACTIONS:
            with told_errors():
                try:
                    await in_thread(
                        self._holding.settle,
                        clicked.action,
                        [number],
                        "DeadLetteredByOperator",
                        "In the portal.",
                    )
                    tell(f"{_ACTIONS[clicked.action]}: done.")
                finally:
                    self._show()
                await self._changed()

    async def _release(self) -> None:
        with told_errors():
            try:
                await in_thread(self._holding.release)
            except BrokerError:
                self._show()
                raise
            self._show()
            await self._changed()
