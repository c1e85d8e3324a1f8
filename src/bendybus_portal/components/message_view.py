"""A message as a person reads it: its body formatted, and all its properties."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from bendybus.client import ReceivedMessage
from bendybus.names import PARTITION_SHIFT
from bendybus_portal.components.markup_element import markup
from bendybus_portal.components.table import Column, action_button, table
from bendybus_portal.layout import button
from bendybus_portal.markup import EMPTY, Html, badge, join, tag
from bendybus_portal.messages import shown_fields
from bendybus_portal.peeking import reason_of
from bendybus_portal.shown import body_of, clock_time, plural, size, words

__all__ = ["message_dialog", "message_markup", "message_table"]

_STATES: Final = (("Active", "neutral"), ("Deferred", "warn"), ("Scheduled", "good"))

DEFERRED: Final = 1
SCHEDULED: Final = 2

# What a row shows of a body.
PREVIEW: Final = 120


def preview(message: ReceivedMessage) -> str:
    body = message.body
    text = body[: PREVIEW * 4].decode("utf-8", "replace")
    if "\0" in text or (body and "\ufffd" in text[:PREVIEW]):
        return plural(len(body), "byte")
    return " ".join(text.split())[:PREVIEW]


def message_table(
    messages: Sequence[ReceivedMessage],
    *,
    letters: bool = False,
    actions: Mapping[str, str] | None = None,
    chosen: Container[int] | None = None,
) -> Html:
    """`actions` are label by name, for each row; `letters`: show the reason; `chosen`: with boxes to tick."""
    # A column for what no message on the page can do would be empty.
    acts = bool(actions) and any(_possible(each, actions or {}) for each in messages)
    columns = [
        Column("Sequence number", _number, numeric=True),
        *([] if letters else [Column("Partition", _partition, numeric=True, narrow=False)]),
        Column("Enqueued (UTC)", _enqueued, narrow=False),
        Column("Message id", lambda each: _clipped(str(each.message_id or "–"), 20)),
        Column("Reason", lambda each: _clipped(reason_of(each), 22))
        if letters
        else Column(
            "Key", lambda each: _clipped(each.session_id or each.partition_key or "–", 16), narrow=False
        ),
        Column("Body", lambda each: _body(each, 16 if acts else 32), narrow=False),
    ]
    if chosen is not None:
        unseen = tag("span", "Choose", class_="visually-hidden")
        columns.insert(0, Column(unseen, lambda each: _box(each, each.sequence_number in chosen)))
    if not letters:
        columns.append(Column("State", _state, narrow=False))
    if actions and acts:
        columns.append(Column("Actions", lambda each: _row_actions(each, actions)))
    return table("Messages", columns, messages)


def _number(message: ReceivedMessage) -> Html:
    number = str(message.sequence_number)
    return tag(
        "button", number, type="button", class_="as-link mono", data_action="open", data_subject=number
    )


def _box(message: ReceivedMessage, ticked: bool) -> Html:
    number = str(message.sequence_number)
    return tag(
        "input",
        type="checkbox",
        class_="pick",
        checked=ticked,
        data_action="choose",
        data_subject=number,
        aria_label=f"Choose message {number}",
    )


def _partition(message: ReceivedMessage) -> str:
    return str(message.sequence_number >> PARTITION_SHIFT)


def _enqueued(message: ReceivedMessage) -> Html:
    return tag("span", clock_time(message.enqueued_time_ms), class_="nowrap num")


def _body(message: ReceivedMessage, width: int) -> Html:
    return tag("span", preview(message), class_="mono clip", style=f"max-width:{width}ch")


def _clipped(text: str, width: int) -> Html:
    return tag("span", text, class_="clip", style=f"max-width:{width}ch", title=text)


def _state(message: ReceivedMessage) -> Html:
    label, tone = _STATES[message.state]
    return badge(label, tone)


def _row_actions(message: ReceivedMessage, actions: Mapping[str, str]) -> Html:
    shown = [
        action_button(actions[name], name, message.sequence_number) for name in _possible(message, actions)
    ]
    return tag("span", *shown, class_="row-actions")


def _possible(message: ReceivedMessage, actions: Mapping[str, str]) -> list[str]:
    only = {"cancel": SCHEDULED, "fetch": DEFERRED}
    return [name for name in actions if only.get(name, message.state) == message.state]


def message_markup(message: ReceivedMessage) -> Html:
    body = body_of(message.body)
    own = message.application_properties
    note = EMPTY if body.whole else tag("p", "Only the beginning is shown.", class_="soft")
    heading = tag("h3", "Body ", tag("span", f"{body.kind}, {size(len(message.body))}", class_="soft"))
    shown = (
        tag("pre", body.text, class_="body", tabindex="0")
        if body.text
        else tag("p", "No body.", class_="soft")
    )
    return join(
        heading,
        shown,
        note,
        tag("h3", "Application properties"),
        _details({str(name): value for name, value in own.items()})
        if own
        else tag("p", "None.", class_="soft"),
        tag("h3", "Properties"),
        _details({words(name): value for name, value in shown_fields(message).items()}),
    )


def _details(values: Mapping[str, Any]) -> Html:
    pairs = [Html(tag("dt", name) + tag("dd", str(value))) for name, value in values.items()]
    return tag("dl", *pairs, class_="details")


def message_dialog(
    message: ReceivedMessage, actions: Mapping[str, Any], closed: Callable[[], None] = lambda: None
) -> None:
    """Open the message; `actions` are handlers by their labels, called when the dialog has been closed."""
    with ui.dialog(value=True) as dialog, ui.element("div").classes("dialog wide"):
        dialog.props('aria-label="Message"')
        markup(tag("h2", f"Message {message.sequence_number}"))
        markup(message_markup(message), classes="message-view")

        with ui.element("div").classes("dialog-foot"):
            for label, handler in actions.items():

                async def act(handler: Any = handler) -> None:
                    dialog.close()
                    await handler(message)

                button(label, act)
            button("Close", dialog.close, kind="primary")

    def hidden() -> None:
        closed()
        dialog.delete()

    dialog.on("hide", hidden)
