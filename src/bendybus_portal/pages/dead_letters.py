"""Dead letters: grouped by reason; edit and resubmit one, some or all, to the source or elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from bendybus.client import ReceivedMessage
from bendybus.errors import ArgumentError
from bendybus.operations.peeking import State
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import confirm, field, form_dialog, switch
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.live import tell, told_errors
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.message_view import message_dialog, message_table
from bendybus_portal.components.send_form import SendForm
from bendybus_portal.components.table import ClickedAction, actions_of, empty_state
from bendybus_portal.layout import Visit, button, portal_page
from bendybus_portal.markup import EMPTY, Html, icon, join, page_url, tag
from bendybus_portal.messages import (
    DEAD_LETTERS,
    Reasons,
    origin_of,
    purge_work,
    remove_numbers,
    resubmit_numbers,
    resubmit_work,
    scan_reasons,
)
from bendybus_portal.peeking import Filters, PeekedPage, find_message, peek_page
from bendybus_portal.reading import EntityInfo, describe, refuse_duplicates
from bendybus_portal.shown import number, plural

__all__: list[str] = []


@portal_page("/dead-letters", lambda visit: f"Dead letters of {entity_title(visit)}")
async def dead_letters_page(visit: Visit) -> None:
    info = await entity_frame(visit, "dead-letters")
    await _DeadLetters(visit, info).build()


class _DeadLetters:
    def __init__(self, visit: Visit, info: EntityInfo) -> None:
        self._session = visit.session
        self._info = info
        self._path = f"{info.path}/{DEAD_LETTERS}"
        self._reason = visit.query.get("reason", "")
        self._first = visit.query.get("from", "")
        self._wanted = visit.query.get("message", "")
        self._reasons = Reasons()
        self._picked: set[int] = set()

    async def build(self) -> None:
        rights = self._session.rights
        with ui.element("div").classes("actions"):
            if rights.send:
                self._send = SendForm(self._session, origin_of(self._info.path), self.refresh)
                label = "Resubmit these…" if self._reason else "Resubmit all…"
                button(label, self._resubmit_dialog().open, "replay", "primary")
                if rights.extensions:
                    self._some = button("Resubmit chosen", self._resubmit_chosen, "done_all")
                    self._some.set_visibility(False)
            button("Refresh", self.refresh, "refresh")
            button("Purge…", self._purge, "delete_sweep")
        self._groups = markup(classes="reasons")
        self._listed = actions_of(self._act)
        with told_errors():
            await self.refresh()
            if self._wanted.isdigit():
                self._open(await in_thread(find_message, self._session.access, self._path, int(self._wanted)))

    async def refresh(self) -> None:
        access = self._session.access
        found = await in_thread(peek_page, access, self._path, Filters(reason=self._reason), self._first)
        self._listed.put(self._shown(found))
        self._reasons = await in_thread(scan_reasons, access, self._info.path)
        self._groups.put(self._grouped(self._reasons))

    def _grouped(self, reasons: Reasons) -> Html:
        if not reasons.scanned:
            return EMPTY
        path = self._info.path
        every = tag(
            "a",
            "All",
            tag("strong", number(reasons.scanned) + ("" if reasons.whole else "+")),
            href=page_url("dead-letters", path=path),
            class_=None if self._reason else "here",
        )
        links = [
            tag(
                "a",
                reason,
                tag("strong", number(count)),
                href=page_url("dead-letters", path=path, reason=reason),
                class_="here" if reason == self._reason else None,
            )
            for reason, count in reasons.counts.most_common(30)
        ]
        note = EMPTY
        if not reasons.whole:
            note = tag("p", f"Reasons of the first {number(reasons.scanned)} dead letters.", class_="soft")
        return join(tag("nav", every, *links, class_="reason-list", aria_label="Reasons"), note)

    def _shown(self, found: PeekedPage) -> Html:
        if not found.messages:
            return empty_state(
                "verified", "No dead letters", "Messages that cannot be delivered or processed would be here."
            )
        actions = {}
        if self._session.rights.send and self._session.rights.extensions:
            actions = {"resubmit": "Resubmit", "edit": "Edit…"}
        after = EMPTY
        if found.following is not None:
            following = tag("a", "Next", icon("chevron_right"), href=self._url(found.following))
            begin = tag("a", icon("first_page"), "First", href=self._url()) if self._first else EMPTY
            after = tag("nav", begin, following, class_="pager", aria_label="Pages")
        chosen = self._picked if actions else None
        return join(message_table(found.messages, letters=True, actions=actions, chosen=chosen), after)

    # -- one ----------------------------------------------------------------------

    async def _act(self, clicked: ClickedAction) -> None:
        with told_errors():
            chosen = int(clicked.subject)
            if clicked.action == "choose":
                self._choose(chosen, clicked.checked)
                return
            if clicked.action == "resubmit":
                await self._resubmit([chosen])
                return
            message = await in_thread(find_message, self._session.access, self._path, chosen)
            if clicked.action == "edit":
                await self._edit(message)
            else:
                self._open(message)

    def _open(self, message: ReceivedMessage) -> None:
        actions = {"Edit and resubmit…": self._edit} if self._session.rights.send else {}
        ui.navigate.history.replace(self._url(self._first, message.sequence_number))
        message_dialog(message, actions, lambda: ui.navigate.history.replace(self._url(self._first)))

    def _url(self, first: str = "", message: int | None = None) -> str:
        return page_url(
            "dead-letters", path=self._info.path, reason=self._reason, message=message, **{"from": first}
        )

    def _choose(self, number: int, wanted: bool) -> None:
        if wanted:
            self._picked.add(number)
        else:
            self._picked.discard(number)
        self._some.set_text(f"Resubmit {len(self._picked)} chosen")
        self._some.set_visibility(bool(self._picked))

    async def _resubmit_chosen(self) -> None:
        numbers, self._picked = sorted(self._picked), set()
        self._some.set_visibility(False)
        with told_errors():
            await self._resubmit(numbers)

    async def _resubmit(self, numbers: list[int]) -> None:
        access, path, to = self._session.access, self._info.path, origin_of(self._info.path)
        job = self._session.jobs.start(
            f"Resubmitting to {to}",
            lambda job: resubmit_numbers(access, path, numbers, to, False, job),
            len(numbers),
        )
        while job.running:
            await asyncio.sleep(0.1)
        await self.refresh()

    async def _edit(self, message: ReceivedMessage) -> None:
        async def remove() -> None:
            def ask() -> None:
                with self._session.access.bus() as client:
                    remove_numbers(client, self._path, [message.sequence_number])

            await in_thread(ask)
            tell("The dead letter is resubmitted.")

        await self._send.open_copy(message, origin_of(self._info.path), remove)

    # -- all ----------------------------------------------------------------------

    def _resubmit_dialog(self) -> Any:
        async def resubmit() -> None:
            target = to.value.strip()
            if not target:
                raise ArgumentError("Name a queue or topic.")
            session, path, reason = self._session, self._info.path, self._reason
            total: int | None = self._reasons.counts[reason] if reason else None
            if session.rights.manage:
                if not ids.value:
                    await in_thread(refuse_duplicates, session.access, session.rights, target)
                if not reason:
                    current = await in_thread(describe, session.access, session.rights, path)
                    total = current.counts.get("deadLetterMessageCount")
            new_ids = bool(ids.value)
            session.jobs.start(
                f"Resubmitting to {target}",
                lambda job: resubmit_work(session.access, path, target, reason, new_ids, job),
                total,
            )

        what = f"“{self._reason}”" if self._reason else "all dead letters"
        with form_dialog(f"Resubmit {what}", "Resubmit", resubmit) as form:
            to = field("To", origin_of(self._info.path))
            ids = switch("Give each a new message id")
        return form

    async def _purge(self) -> None:
        path = self._path
        text = f"{plural(self._reasons.scanned, 'dead letter')} of {self._info.path} will be deleted."
        if await confirm("Delete all dead letters?", text, "Delete"):
            access = self._session.access
            states = [State.ACTIVE, State.DEFERRED]
            with told_errors():
                self._session.jobs.start(
                    f"Purging dead letters of {self._info.path}",
                    lambda job: purge_work(access, path, states, job),
                    self._reasons.scanned if self._reasons.whole else None,
                )
