"""Tables: aligned numbers, headers that sort, pages, and an empty state that says what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import events

from bendybus_portal.components.markup_element import Markup, markup
from bendybus_portal.markup import EMPTY, Child, Html, icon, page_url, tag
from bendybus_portal.shown import number

__all__ = ["Column", "ClickedAction", "action_button", "actions_of", "empty_state", "pager", "table"]


@dataclass(frozen=True, slots=True)
class Column:
    label: Child
    cell: Callable[[Any], Child]
    numeric: bool = False
    sort: str = ""
    """The name by which the list can be sorted; empty if it cannot."""
    narrow: bool = True
    """Whether it is shown on a phone."""


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Any],
    *,
    sorted_by: str = "",
    descending: bool = False,
    sort_url: Callable[[str, bool], str] | None = None,
) -> Html:
    """`caption` is read to those who cannot see the page."""
    heads = EMPTY
    for column in columns:
        classes = _classes(column)
        content: Child = column.label
        order = None
        if column.sort and sort_url is not None:
            current = column.sort == sorted_by
            # Names begin with A, figures with the largest.
            down = not descending if current else column.numeric
            arrow = icon("arrow_downward" if descending else "arrow_upward") if current else EMPTY
            content = tag("a", column.label, arrow, href=sort_url(column.sort, down), class_="sort")
            order = ("descending" if descending else "ascending") if current else None
        heads = Html(heads + tag("th", content, class_=classes, scope="col", aria_sort=order))
    body = Html(
        "".join(
            tag("tr", *(tag("td", column.cell(row), class_=_classes(column)) for column in columns))
            for row in rows
        )
    )
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="visually-hidden"),
            tag("thead", tag("tr", heads)),
            tag("tbody", body),
        ),
        class_="table-scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _classes(column: Column) -> str | None:
    classes = [name for name, given in (("num", column.numeric), ("wide", not column.narrow)) if given]
    return " ".join(classes) or None


def empty_state(symbol: str, title: str, advice: Child) -> Html:
    return tag("div", icon(symbol), tag("h2", title), tag("p", advice), class_="empty")


def pager(page: str, skip: int, size: int, total: int, **query: object) -> Html:
    """Links to the pages before and after; nothing if there is one page."""
    if total <= size:
        return EMPTY
    last = min(total, skip + size)
    before = (
        tag(
            "a",
            icon("chevron_left"),
            "Previous",
            href=page_url(page, skip=max(0, skip - size) or None, **query),
        )
        if skip
        else EMPTY
    )
    after = (
        tag("a", "Next", icon("chevron_right"), href=page_url(page, skip=skip + size, **query))
        if last < total
        else EMPTY
    )
    shown = tag("span", f"{number(skip + 1)}–{number(last)} of {number(total)}", class_="soft num")
    return tag("nav", before, shown, after, class_="pager", aria_label="Pages")


# -- buttons in markup --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClickedAction:
    action: str
    subject: str
    checked: bool


def action_button(label: str, action: str, subject: object, symbol: str = "", *, tone: str = "") -> Html:
    """A button in a table; `actions_of` hears of it."""
    return tag(
        "button",
        icon(symbol) if symbol else None,
        label,
        type="button",
        class_=f"mini {tone}".strip(),
        data_action=action,
        data_subject=str(subject),
    )


_DELEGATED = (
    "(event) => { const it = event.target.closest('[data-action]');"
    " if (it) emit({action: it.dataset.action, subject: it.dataset.subject, checked: !!it.checked}); }"
)


def actions_of(handler: Callable[[ClickedAction], Any], *, classes: str = "") -> Markup:
    """An element whose markup has buttons with `data-action`; the handler is told which was used."""
    element = markup(classes=classes)

    def heard(event: events.GenericEventArguments) -> Any:
        told = event.args
        if not isinstance(told, dict):
            return None
        return handler(
            ClickedAction(str(told.get("action")), str(told.get("subject")), bool(told.get("checked")))
        )

    element.on("click", heard, js_handler=_DELEGATED)
    return element
