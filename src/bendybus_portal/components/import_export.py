"""Entities in and out of the namespace as the emulator's Config.json."""

from __future__ import annotations

from nicegui import events, ui

from bendybus.errors import ArgumentError
from bendybus_portal.access import in_thread
from bendybus_portal.components.dialogs import FormDialog, field, form_dialog
from bendybus_portal.components.live import told_errors
from bendybus_portal.config_file import export_config, import_work, read_config
from bendybus_portal.sessions import Session

__all__ = ["export", "import_dialog"]

FILE_BYTES_MAX = 2 * 1024 * 1024


async def export(session: Session) -> None:
    with told_errors():
        text = await in_thread(export_config, session.access, session.rights.name)
        ui.download.content(text, "Config.json", "application/json")


def import_dialog(session: Session) -> FormDialog:
    async def begin() -> None:
        if not (text.value or "").strip():
            raise ArgumentError("Choose a file, or paste its content.")
        namespace = read_config(text.value)
        session.jobs.start("Importing entities", lambda job: import_work(session.access, namespace, job))

    async def chosen(event: events.UploadEventArguments) -> None:
        content = await event.file.read()
        text.set_value(content.decode("utf-8", "replace"))

    with form_dialog("Import entities", "Import", begin) as form:
        upload = ui.upload(
            label="Config.json", on_upload=chosen, auto_upload=True, max_file_size=FILE_BYTES_MAX
        )
        upload.props('accept=".json" flat bordered').classes("field")
        text = field("or paste it here", area=True, hint="Entities that exist stay as they are.")
        text.classes("mono")
    return form
