"""The form that sends messages: every broker property, templates, and many at once."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from typing import Final

from nicegui import ui

from bendybus.client import ReceivedMessage
from bendybus.errors import ArgumentError
from bendybus.operations.drafts import Draft, instant, milliseconds, shown_message
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import FormDialog, field, form_dialog, switch
from bendybus_portal.components.live import tell
from bendybus_portal.components.own_templates import TemplateChoice
from bendybus_portal.jobs import Job
from bendybus_portal.messages import ADDED, parse_properties, send_work
from bendybus_portal.sessions import Session
from bendybus_portal.shown import plural
from bendybus_portal.templates import Template

__all__ = ["SendForm"]

COUNT_MAX: Final = 1_000_000
# Up to this many are sent while the person waits; more are a job.
AT_ONCE_MAX: Final = 100

_TEXTS: Final = {
    "message_id": "Message id",
    "session_id": "Session id",
    "partition_key": "Partition key",
    "subject": "Subject",
    "correlation_id": "Correlation id",
    "content_type": "Content type",
    "to": "To",
    "reply_to": "Reply to",
    "reply_to_session_id": "Reply to session id",
}


class SendForm:
    """One for each page that sends. `open` shows it, empty or with a message to copy."""

    def __init__(
        self, session: Session, path: str, sent: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._session = session
        self._path = path
        self._sent = sent
        self._afterwards: Callable[[], Awaitable[None]] | None = None
        self.form: FormDialog
        with form_dialog(f"Send to {path}", "Send", self._send) as self.form:
            self._templates = TemplateChoice(self._use, self._current)
            self._body = field("Body", area=True)
            self._body.classes("mono")
            self._encoded = switch("The body is base64")
            self._to = field("Entity", path)
            with ui.element("div").classes("columns"):
                self._texts = {name: field(label) for name, label in _TEXTS.items()}
            self._properties = field(
                "Application properties", area=True, hint="one a line: name=text, or name:=12 for a number"
            )
            with ui.element("div").classes("columns"):
                self._life = field("Time to live", hint="as 30s or PT1H")
                self._due = field("Enqueue later", hint="as 10m, or 2030-01-31T12:00Z")
                self._count = field("How many", "1")

    async def open(self) -> None:
        self._afterwards = None
        self._to.set_value(self._path)
        self.form.open()
        await self._templates.load()

    async def open_copy(
        self,
        message: ReceivedMessage,
        to: str | None = None,
        afterwards: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """A copy to edit; `afterwards` runs when it has been accepted."""
        values = shown_message(message)
        encoded = "bodyBase64" in values
        self._templates.start()
        self._encoded.set_value(encoded)
        self._body.set_value(str(values.get("bodyBase64" if encoded else "body", "")))
        names = {"message_id": "messageId", "session_id": "sessionId", "partition_key": "partitionKey"}
        for name, element in self._texts.items():
            wire = names.get(name, _camel(name))
            element.set_value(str(values.get(wire) or ""))
        own = {name: value for name, value in message.application_properties.items() if name not in ADDED}
        self._properties.set_value("\n".join(f"{name}{_written(value)}" for name, value in own.items()))
        self._to.set_value(to or self._path)
        self._afterwards = afterwards
        self.form.open()

    def _use(self, template: Template) -> None:
        self._body.set_value(template.body)
        self._encoded.set_value(template.encoded)
        for name, element in self._texts.items():
            element.set_value(template.texts.get(name, ""))
        self._properties.set_value(template.properties)
        self._life.set_value(template.life)

    def _current(self) -> Template:
        texts = {name: each.value for name, each in self._texts.items() if each.value}
        return Template(
            self._body.value or "",
            bool(self._encoded.value),
            texts,
            self._properties.value or "",
            self._life.value or "",
        )

    async def _send(self) -> None:
        draft, count = self._draft(), self._number()
        session, path = self._session, self._to.value.strip() or self._path
        if count > AT_ONCE_MAX:
            session.jobs.start(
                f"Sending to {path}", lambda job: send_work(session.access, path, draft, count, job), count
            )
            return
        await in_thread(send_work, session.access, path, draft, count, Job(0, "", count))
        tell(f"Sent {plural(count, 'message')} to {path}.")
        if self._afterwards is not None:
            await self._afterwards()
        if self._sent is not None:
            await self._sent()

    def _draft(self) -> Draft:
        text = self._body.value or ""
        body = text.encode()
        if self._encoded.value:
            try:
                body = base64.b64decode(text, validate=True)
            except ValueError:
                raise ArgumentError("The body is not base64.") from None
        return Draft(
            body,
            {name: each.value.strip() for name, each in self._texts.items() if each.value.strip()},
            parse_properties(self._properties.value or ""),
            milliseconds(self._life.value) if self._life.value.strip() else None,
            self._due_at(),
        )

    def _due_at(self) -> int | None:
        text = self._due.value.strip()
        if not text:
            return None
        if "-" in text and ":" in text:
            return instant(text)
        return round(time.time() * 1000) + milliseconds(text)

    def _number(self) -> int:
        text = self._count.value.strip()
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= COUNT_MAX):
            raise ArgumentError(f"'How many' must be a number from 1 to {COUNT_MAX:,}.")
        return int(text)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return f":={str(value).lower()}"
    return f":={value}" if isinstance(value, int | float) else f"={value}"
