"""Dialogs: confirmations before something is lost, and forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nicegui import ui

from bendybus.errors import BrokerError
from bendybus_portal.components.markup_element import markup
from bendybus_portal.markup import EMPTY, Child, icon, tag

__all__ = ["FormDialog", "choice", "confirm", "field", "form_dialog", "switch"]


def field(
    label: str,
    value: str = "",
    *,
    hint: str = "",
    example: str = "",
    area: bool = False,
    secret: bool = False,
) -> ui.input:
    """A text field; the label stays above it. `example` is shown while it is empty."""
    made = ui.textarea(label, value=value) if area else ui.input(label, value=value, password=secret)
    made.props('outlined dense stack-label autocomplete="off" spellcheck="false"').classes("field")
    if area:
        made.props("rows=4")
    if hint:
        made.props.update(hint=hint)
    if example:
        made.props.update(placeholder=example)
    return made


def choice(label: str, options: dict[str, str] | list[str], value: str) -> ui.select:
    made = ui.select(options, label=label, value=value)
    made.props("outlined dense stack-label options-dense").classes("field")
    return made


def switch(label: str, value: bool = False) -> ui.checkbox:
    return ui.checkbox(label, value=value).props("dense").classes("tick")


def _name(dialog: ui.dialog, box: ui.element, role: str, title: str) -> None:
    """For those who cannot see it. Not as text of `props`: a title may have quotes in it."""
    dialog.props.update({"aria-label": title})
    box.props.update({"role": role, "aria-label": title})


async def confirm(title: str, text: Child, action: str, *, danger: bool = True) -> bool:
    """Whether the person confirms."""
    with ui.dialog() as dialog, ui.element("div").classes("dialog") as box:
        _name(dialog, box, "alertdialog", title)
        markup(tag("h2", title))
        markup(tag("p", text))
        with ui.element("div").classes("dialog-foot"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False), color=None).props(
                "no-caps unelevated autofocus"
            ).classes("button plain")
            ui.button(action, on_click=lambda: dialog.submit(True), color=None).props(
                "no-caps unelevated"
            ).classes("button danger" if danger else "button primary")
    answer = await dialog
    dialog.delete()
    return bool(answer)


class FormDialog:
    """A form in a dialog: it stays open, and says why, until the server has accepted it."""

    def __init__(self, title: str, action: str, submit: Callable[[], Awaitable[None]]) -> None:
        self._dialog = ui.dialog().props("persistent")
        self._submit = submit
        with self._dialog, ui.element("div").classes("dialog form") as box:
            _name(self._dialog, box, "dialog", title)
            markup(tag("h2", title))
            self.body = ui.element("div").classes("form-body")
            self._problem = markup(classes="problem-slot").props('role="alert"')
            with ui.element("div").classes("dialog-foot"):
                ui.button("Cancel", on_click=self.close, color=None).props("no-caps unelevated").classes(
                    "button plain"
                )
                self._button = ui.button(action, on_click=self._try, color=None)
                self._button.props("no-caps unelevated").classes("button primary")

    def open(self) -> None:
        self._problem.put(EMPTY)
        self._dialog.open()

    def close(self) -> None:
        self._dialog.close()

    async def _try(self) -> None:
        self._button.disable()
        try:
            await self._submit()
            self.close()
        except BrokerError as error:
            self.refuse(str(error))
        finally:
            self._button.enable()

    def refuse(self, reason: str) -> None:
        self._problem.put(tag("div", icon("error_outline"), tag("span", reason), class_="banner bad"))


@contextmanager
def form_dialog(title: str, action: str, submit: Callable[[], Awaitable[None]]) -> Iterator[FormDialog]:
    """`with form_dialog("Create", "Create", create) as form:` put the fields here; then `form.open()`."""
    made = FormDialog(title, action, submit)
    with made.body:
        yield made
