"""Settings of an entity: all properties, with edit and delete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from bendybus.domain.properties import ValueType
from bendybus.errors import ArgumentError
from bendybus.management.durations import read_duration, shown_duration
from bendybus.management.properties import QUEUE, SUBSCRIPTION, TOPIC, changed_elements
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import FormDialog, choice, field, form_dialog, switch
from bendybus_portal.components.entity_frame import entity_frame, entity_title
from bendybus_portal.components.live import go_to
from bendybus_portal.components.markup_element import markup
from bendybus_portal.layout import Visit, button, card, portal_page
from bendybus_portal.markup import Html, page_url, tag
from bendybus_portal.reading import EntityInfo, split_entity
from bendybus_portal.sessions import Session
from bendybus_portal.shown import words

__all__: list[str] = []

_KINDS = {"queue": QUEUE, "topic": TOPIC, "subscription": SUBSCRIPTION}
# Fixed when the entity is created, or not for people.
_FIXED = {"EnablePartitioning", "RequiresSession", "RequiresDuplicateDetection", "MaxSizeInMegabytes"}
_EDITED = {
    *("LockDuration", "DefaultMessageTimeToLive", "MaxDeliveryCount", "DeadLetteringOnMessageExpiration"),
    *(
        "AutoDeleteOnIdle",
        "DuplicateDetectionHistoryTimeWindow",
        "ForwardTo",
        "ForwardDeadLetteredMessagesTo",
    ),
    *("UserMetadata", "DeadLetteringOnFilterEvaluationExceptions", "Status"),
}
_DURATIONS = (ValueType.DURATION, ValueType.DURATION_OR_UNLIMITED)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z")
_STATUS = ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]


@portal_page("/settings", lambda visit: f"Settings of {entity_title(visit)}")
async def settings_page(visit: Visit) -> None:
    info = await entity_frame(visit, "settings")
    with ui.element("div").classes("actions"):
        button("Edit", _edit_dialog(visit.session, info).open, "edit", "primary")
        button("Delete…", _delete_dialog(visit.session, info).open, "delete")
    with card("Properties"):
        markup(_details(info))


def _details(info: EntityInfo) -> Html:
    pairs = [
        Html(tag("dt", words(name)) + tag("dd", _shown(value)))
        for name, value in info.values.items()
        if not isinstance(value, dict) and value is not None
    ]
    return tag("dl", *pairs, class_="details")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    if _TIME.fullmatch(text):
        return f"{text[:10]} {text[11:19]} UTC"
    return shown_duration(text) if text[:1] == "P" and any(letter.isdigit() for letter in text) else text


def _edit_dialog(session: Session, info: EntityInfo) -> FormDialog:
    kind, entry = _KINDS[info.kind], info.entry
    assert entry is not None, "the page is offered to those who may manage"
    fields: dict[str, Any] = {}

    async def save() -> None:
        given: dict[str, object] = {}
        for row in kind.properties:
            if row.name in fields:
                given[row.name] = _given(row.type, fields[row.name].value)

        def change(wanted: Mapping[str, object]) -> Mapping[str, object]:
            """Returns what was there before."""
            with session.access.management() as management:
                current = management.get(info.path)
                management.update(info.path, kind.element, changed_elements(kind, current, wanted))
            return {name: current.text(name) or "" for name in wanted}

        before = await in_thread(change, given)
        session.undos.offer(f"The settings of {info.path} are saved.", partial(change, before))
        go_to(page_url("settings", path=info.path))

    with form_dialog(f"Edit {info.path}", "Save", save) as form:
        for row in kind.properties:
            if row.name not in _EDITED or row.name in _FIXED:
                continue
            text, label = entry.text(row.name) or "", words(row.name[:1].lower() + row.name[1:])
            if row.type is ValueType.BOOLEAN:
                fields[row.name] = switch(label, text.lower() == "true")
            elif row.name == "Status":
                fields[row.name] = choice(label, _STATUS, text if text in _STATUS else "Active")
            elif row.type in _DURATIONS:
                fields[row.name] = field(label, shown_duration(text) if text else "")
            else:
                fields[row.name] = field(label, text)
    return form


def _given(kind: ValueType, value: object) -> object:
    if kind is ValueType.BOOLEAN:
        return str(bool(value)).lower()
    text = str(value or "").strip()
    return read_duration(text) if kind in _DURATIONS and text else text


def _delete_dialog(session: Session, info: EntityInfo) -> FormDialog:
    name = split_entity(info.path)[1] or info.path

    async def delete() -> None:
        if typed.value.strip() != name:
            raise ArgumentError(f"Type {name} to delete it.")

        def ask() -> None:
            with session.access.management() as management:
                management.delete(info.path)

        await in_thread(ask)
        above = split_entity(info.path)[0]
        go_to("/portal/" if above == info.path else page_url("entity", path=above))

    with form_dialog(f"Delete {info.path}?", "Delete", delete) as form:
        markup(
            tag("p", f"The {info.kind} and all its messages will be gone. Type its name, {name}, to confirm.")
        )
        typed = field("Name")
    return form
