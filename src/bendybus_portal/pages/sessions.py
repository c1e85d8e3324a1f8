"""Sessions of an entity: list, look into one, read and set its state, dead-letter all its messages."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from nicegui import ui

from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import confirm, field, form_dialog
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.live import told_errors
from bendybus_portal.components.table import (
    ClickedAction,
    Column,
    action_button,
    actions_of,
    empty_state,
    table,
)
from bendybus_portal.layout import Visit, button, portal_page
from bendybus_portal.markup import EMPTY, Html, icon, join, link, page_url, tag
from bendybus_portal.messages import dead_letter_session, list_sessions, session_state, set_session_state
from bendybus_portal.reading import EntityInfo
from bendybus_portal.shown import body_of

__all__: list[str] = []

PAGE: Final = 50


@portal_page("/sessions", lambda visit: f"Sessions of {entity_title(visit)}")
async def sessions_page(visit: Visit) -> None:
    info = await entity_frame(visit, "sessions")
    await _Sessions(visit, info).build()


class _Sessions:
    def __init__(self, visit: Visit, info: EntityInfo) -> None:
        self._session = visit.session
        self._path = info.path
        self._skip = visit.number("skip")
        self._chosen = ""
        self._before: bytes | None = None

    async def build(self) -> None:
        with ui.element("div").classes("actions"):
            button("Refresh", self.refresh, "refresh")
        self._listed = actions_of(self._act)
        with form_dialog("State of the session", "Save", self._save) as self._form:
            self._state = field("State", area=True, hint="text; empty clears it")
            self._state.classes("mono")
        with told_errors():
            await self.refresh()

    async def refresh(self) -> None:
        found = await in_thread(list_sessions, self._session.access, self._path, self._skip, PAGE + 1)
        self._listed.put(self._shown(found))

    def _shown(self, found: list[str]) -> Html:
        if not found:
            return empty_state("forum", "No sessions", "A session is here while it has messages or a state.")
        columns = [
            Column("Session", lambda each: link(each, "messages", path=self._path, session=each)),
            Column("Actions", _actions),
        ]
        before = after = EMPTY
        if self._skip:
            url = page_url("sessions", path=self._path, skip=max(0, self._skip - PAGE) or None)
            before = tag("a", icon("chevron_left"), "Previous", href=url)
        if len(found) > PAGE:
            url = page_url("sessions", path=self._path, skip=self._skip + PAGE)
            after = tag("a", "Next", icon("chevron_right"), href=url)
        pages = tag("nav", before, after, class_="pager", aria_label="Pages") if before or after else EMPTY
        return join(table("Sessions", columns, sorted(found[:PAGE])), pages)

    async def _act(self, clicked: ClickedAction) -> None:
        access, path, chosen = self._session.access, self._path, clicked.subject
        with told_errors():
            if clicked.action == "state":
                state = await in_thread(session_state, access, path, chosen)
                self._chosen, self._before = chosen, state
                self._state.set_value(body_of(state).text if state else "")
                self._form.open()
            elif clicked.action == "dead-letter":
                text = f"All messages of the session “{chosen}” will be moved to the dead-letter queue."
                if await confirm("Dead-letter the session?", text, "Dead-letter"):
                    self._session.jobs.start(
                        f"Dead-lettering session {chosen}",
                        lambda job: dead_letter_session(access, path, chosen, "DeadLetteredByOperator", job),
                    )

    async def _save(self) -> None:
        state = (self._state.value or "").encode() or None
        access, path, chosen, before = self._session.access, self._path, self._chosen, self._before
        await in_thread(set_session_state, access, path, chosen, state)
        self._session.undos.offer(
            f"The state of the session “{chosen}” is saved.",
            partial(set_session_state, access, path, chosen, before),
        )


def _actions(session_id: Any) -> Html:
    return tag(
        "span",
        action_button("State…", "state", session_id, "edit_note"),
        action_button("Dead-letter…", "dead-letter", session_id, tone="danger"),
        class_="row-actions",
    )
