"""HTML that is safe by construction: text is escaped unless it is `Html` already.

Everything that a page shows of a server passes through `tag`, so a name, a property or a body that looks like
HTML is shown and never becomes part of the page.
"""

from __future__ import annotations

from html import escape
from typing import Final, TypeAlias
from urllib.parse import urlencode

__all__ = ["EMPTY", "Child", "Html", "badge", "icon", "join", "link", "page_url", "tag"]

_VOID: Final = frozenset({"br", "hr", "img", "input", "wbr"})


class Html(str):
    """Markup. Only this module and literals make one."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None"

EMPTY: Final = Html("")


def join(*children: Child) -> Html:
    return Html("".join(_shown(child) for child in children))


def tag(name: str, *children: Child, **attributes: str | int | bool | None) -> Html:
    """`tag("a", "text", href="/", class_="row")`: a trailing underscore is dropped, others become hyphens."""
    written = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        written += f" {label}" if value is True else f' {label}="{escape(str(value))}"'
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def icon(name: str, class_: str = "") -> Html:
    """One of the Material icons, which NiceGUI brings. It says nothing that the text beside it does not."""
    return tag("i", name, class_=f"material-icons {class_}".strip(), aria_hidden="true")


def badge(text: str, tone: str = "neutral", symbol: str = "") -> Html:
    """`tone` is good, warn, bad or neutral."""
    return tag("span", icon(symbol) if symbol else None, text, class_=f"badge {tone}")


def page_url(page: str, **query: object) -> str:
    """The address of a page of the portal; what is None is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"/portal/{page}" + (f"?{urlencode(given)}" if given else "")


def link(text: Child, page: str, **query: object) -> Html:
    return tag("a", text, href=page_url(page, **query))


def _shown(child: Child) -> str:
    if child is None:
        return ""
    return str(child) if isinstance(child, Html) else escape(str(child))
