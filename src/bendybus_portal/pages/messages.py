"""Messages of an entity: peek with filters, send, receive and settle, cancel, move, purge and replay."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from nicegui import ui

from bendybus.errors import ArgumentError
from bendybus.operations.drafts import milliseconds
from bendybus.operations.peeking import State
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import choice, confirm, field, form_dialog, switch
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.held_panel import HeldPanel
from bendybus_portal.components.live import told_errors
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.message_view import message_dialog, message_table
from bendybus_portal.components.replay_form import replay_form
from bendybus_portal.components.send_form import SendForm
from bendybus_portal.components.table import ClickedAction, actions_of, empty_state
from bendybus_portal.layout import Visit, button, portal_page
from bendybus_portal.markup import EMPTY, Html, icon, join, page_url, tag
from bendybus_portal.messages import cancel_scheduled, move_work, purge_work, schedule_again
from bendybus_portal.peeking import Filters, PeekedPage, find_message, peek_page
from bendybus_portal.reading import EntityInfo, refuse_duplicates
from bendybus_portal.sessions import Session
from bendybus_portal.shown import number, plural

__all__: list[str] = []


@portal_page("/messages", lambda visit: f"Messages of {entity_title(visit)}")
async def messages_page(visit: Visit) -> None:
    info = await entity_frame(visit, "messages")
    if info.kind == "topic" or not visit.session.rights.listen:
        _only_send(visit.session, info)
        return
    await _Messages(visit, info).build()


def _only_send(session: Session, info: EntityInfo) -> None:
    form = SendForm(session, info.path)
    what = (
        "A topic's messages are in its subscriptions." if info.kind == "topic" else "This key may only send."
    )
    markup(empty_state("send", "Send messages", what))
    with ui.element("div").classes("actions"):
        button("Send messages", form.open, "send", "primary")


class _Messages:
    def __init__(self, visit: Visit, info: EntityInfo) -> None:
        self._visit = visit
        self._session = visit.session
        self._info = info
        self._first = visit.query.get("from", "")

    async def build(self) -> None:
        session, path, query = self._session, self._info.path, self._visit.query
        rights = session.rights
        with ui.element("div").classes("actions"):
            if rights.send:
                self._send = SendForm(session, path, self.refresh)
                button("Send", self._send.open, "send", "primary")
            self._held = HeldPanel(session, self._info, self.refresh)
            button("Receive", self._held.ask, "move_to_inbox")
            if rights.send:
                button("Move…", self._move_dialog().open, "drive_file_move")
            button("Purge…", self._purge_dialog().open, "delete_sweep")
            if self._info.values.get("keepCompleted"):
                button("Replay…", replay_form(session, path).open, "replay")
        self._held.build()
        with ui.element("div").classes("toolbar"):
            states = {"": "All states", "active": "Active", "deferred": "Deferred", "scheduled": "Scheduled"}
            state = query.get("state", "")
            self._state = choice("State", states, state if state in states else "").classes("slim")
            self._partition = field("Partition", query.get("partition", ""), example="any").classes("slim")
            self._in_session = field("Session", query.get("session", ""), example="any").classes("slim")
            self._since = field("Enqueued within", query.get("since", ""), example="as 30m").classes("slim")
            self._text = field("Text in body or properties", query.get("text", ""), example="as region=eu")
            self._text.classes("search")
            button("Look", self._look, "search")
        for each in (self._partition, self._in_session, self._since, self._text):
            each.on("keydown.enter", self._look)
        self._listed = actions_of(self._act)
        with told_errors():
            await self.refresh()
        wanted = query.get("message", "")
        if wanted.isdigit():
            with told_errors():
                await self._open(int(wanted))

    # -- the list -----------------------------------------------------------------

    def _filters(self) -> Filters:
        partition = self._partition.value.strip()
        if partition and not partition.isdigit():
            raise ArgumentError("The partition must be a number.")
        since = self._since.value.strip()
        return Filters(
            state=self._state.value or "",
            partition=int(partition) if partition else None,
            session_id=self._in_session.value.strip(),
            text=self._text.value.strip(),
            since_ms=round(time.time() * 1000) - milliseconds(since) if since else 0,
        )

    def _url(self, first: str = "", message: int | None = None) -> str:
        return page_url(
            "messages",
            path=self._info.path,
            state=self._state.value,
            partition=self._partition.value.strip(),
            session=self._in_session.value.strip(),
            since=self._since.value.strip(),
            text=self._text.value.strip(),
            message=message,
            **{"from": first},
        )

    async def _look(self) -> None:
        self._first = ""
        ui.navigate.history.replace(self._url())
        with told_errors():
            await self.refresh()

    async def refresh(self) -> None:
        found = await in_thread(
            peek_page, self._session.access, self._info.path, self._filters(), self._first
        )
        self._listed.put(self._shown(found))

    def _shown(self, found: PeekedPage) -> Html:
        if not found.messages:
            some = self._filters() != Filters()
            more = f"{plural(found.scanned, 'message')} looked at." if some else ""
            title = "No such messages" if some else "No messages"
            advice = more or "Send one here, or wait for an application to send one."
            return join(empty_state("mark_email_read", title, advice), self._following(found))
        actions = {"fetch": "Fetch"} | ({"cancel": "Cancel"} if self._session.rights.send else {})
        return join(message_table(found.messages, actions=actions), self._following(found))

    def _following(self, found: PeekedPage) -> Html:
        begin = tag("a", icon("first_page"), "First", href=self._url()) if self._first else EMPTY
        if found.following is None:
            after = EMPTY
        else:
            after = tag("a", "Next", icon("chevron_right"), href=self._url(found.following))
        looked = tag(
            "span", f"{number(len(found.messages))} shown, {number(found.scanned)} looked at", class_="soft"
        )
        return tag("nav", begin, looked, after, class_="pager", aria_label="Pages")

    # -- one message --------------------------------------------------------------

    async def _act(self, clicked: ClickedAction) -> None:
        with told_errors():
            if clicked.action == "open":
                await self._open(int(clicked.subject))
            elif clicked.action == "cancel":
                access, path = self._session.access, self._info.path
                cancelled = await in_thread(cancel_scheduled, access, path, int(clicked.subject))
                self._session.undos.offer(
                    "The scheduled message is cancelled.", partial(schedule_again, access, path, cancelled)
                )
                await self.refresh()
            elif clicked.action == "fetch":
                await self._held.fetch(int(clicked.subject))
                await self.refresh()

    async def _open(self, number: int) -> None:
        message = await in_thread(find_message, self._session.access, self._info.path, number)
        actions: dict[str, Any] = {}
        if self._session.rights.send:

            async def copy(chosen: Any) -> None:
                await self._send.open_copy(chosen)

            actions["Send a copy…"] = copy
        ui.navigate.history.replace(self._url(self._first, number))
        message_dialog(message, actions, lambda: ui.navigate.history.replace(self._url(self._first)))

    # -- all of them --------------------------------------------------------------

    def _purge_dialog(self) -> Any:
        async def purge() -> None:
            states = [state for state, box in boxes.items() if box.value]
            if not states:
                raise ArgumentError("Choose which messages to delete.")
            names = ", ".join(states)
            sure = await confirm(
                "Delete messages?", f"All {names} messages of {path} will be deleted.", "Delete"
            )
            if sure:
                access = self._session.access
                self._session.jobs.start(
                    f"Purging {path}",
                    lambda job: purge_work(access, path, states, job),
                    self._held_in(states),
                )

        path = self._info.path
        with form_dialog(f"Purge {path}", "Purge", purge) as form:
            boxes = {state: switch(state.capitalize(), state is State.ACTIVE) for state in State}
        return form

    def _held_in(self, states: list[State]) -> int | None:
        """How many messages there were in these states when the page was opened; None if that is not told."""
        names = {State.ACTIVE: "activeMessageCount", State.SCHEDULED: "scheduledMessageCount"}
        total = 0
        for state in states:
            count = self._info.counts.get(names.get(state, ""))
            if count is None:
                return None
            total += count
        return total or None

    def _move_dialog(self) -> Any:
        async def move() -> None:
            target, access, source = to.value.strip(), self._session.access, self._info.path
            if not target or target.lower() == source.lower():
                raise ArgumentError("Name another queue or topic.")
            chosen, new_ids = one.value.strip(), bool(ids.value)
            if self._session.rights.manage and not new_ids:
                await in_thread(refuse_duplicates, access, self._session.rights, target)
            total = None if chosen else self._info.counts.get("activeMessageCount")
            self._session.jobs.start(
                f"Moving {chosen or source} to {target}",
                lambda job: move_work(
                    access, source, target, job, sessions=sessions, session_id=chosen, new_ids=new_ids
                ),
                total,
            )

        sessions = self._info.sessions
        with form_dialog(f"Move the messages of {self._info.path}", "Move", move) as form:
            to = field("To the queue or topic")
            one = field("Session id", hint="empty: all sessions; a session that a receiver holds stays")
            one.set_visibility(sessions)
            ids = switch("Give each a new message id")
        return form
