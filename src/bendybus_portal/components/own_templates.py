"""Choosing a template, and keeping one's own in the browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from nicegui import ui

from bendybus_portal.components.dialogs import choice, field, form_dialog
from bendybus_portal.components.live import tell
from bendybus_portal.layout import button
from bendybus_portal.templates import (
    BUILT_IN,
    Template,
    read_templates,
    with_template,
    written_templates,
)

__all__ = ["TemplateChoice"]

KEPT_AS: Final = "bendybus-portal-templates"


class TemplateChoice:
    def __init__(self, use: Callable[[Template], None], current: Callable[[], Template]) -> None:
        """`use` fills the form; `current` is what the form has now."""
        self._use = use
        self._current = current
        self._own: dict[str, Template] = {}
        self._quiet = False
        with ui.element("div").classes("with-buttons"):
            self._chosen = choice("Template", list(BUILT_IN), "Empty")
            button("Save as…", self._ask_name, "bookmark_add")
            self._delete_button = button("Delete", self._delete, "delete")
            self._delete_button.set_visibility(False)
        with form_dialog("Save as a template", "Save", self._save) as self._form:
            self._name = field("Name", hint="Templates are kept in this browser, and not on the server.")
        self._chosen.on_value_change(self._choose)

    async def load(self) -> None:
        """Those that this browser has."""
        try:
            kept = await ui.run_javascript(f"return localStorage.getItem({json.dumps(KEPT_AS)})", timeout=3)
        except TimeoutError:
            kept = None
        self._own = read_templates(kept)
        self._show(str(self._chosen.value))

    def start(self) -> None:
        """Nothing is chosen, and the form stays as it is."""
        self._show("Empty", quietly=True)

    def _show(self, chosen: str, *, quietly: bool = False) -> None:
        names = [*BUILT_IN, *sorted(self._own)]
        self._quiet = quietly
        self._chosen.set_options(names, value=chosen if chosen in names else "Empty")
        self._quiet = False
        self._delete_button.set_visibility(self._chosen.value in self._own)

    def _choose(self) -> None:
        name = str(self._chosen.value)
        self._delete_button.set_visibility(name in self._own)
        if not self._quiet:
            self._use(self._own.get(name) or BUILT_IN.get(name) or Template())

    def _ask_name(self) -> None:
        self._name.set_value(str(self._chosen.value) if self._chosen.value in self._own else "")
        self._form.open()

    async def _save(self) -> None:
        name = self._name.value.strip()
        self._own = with_template(self._own, name, self._current())
        self._keep()
        self._show(name, quietly=True)
        tell(f"The template “{name}” is kept in this browser.")

    def _delete(self) -> None:
        name = str(self._chosen.value)
        self._own.pop(name, None)
        self._keep()
        self.start()
        tell(f"The template “{name}” is deleted.")

    def _keep(self) -> None:
        text = json.dumps(written_templates(self._own))
        ui.run_javascript(f"localStorage.setItem({json.dumps(KEPT_AS)}, {text})")
