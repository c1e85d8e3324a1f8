"""The frame of every page: navigation, title, jobs, and who is signed in. `portal_page` makes a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from nicegui import ui

from bendybus.errors import BrokerError
from bendybus_portal.components.jobs_panel import jobs_panel
from bendybus_portal.components.markup_element import markup
from bendybus_portal.markup import EMPTY, Child, Html, icon, join, tag
from bendybus_portal.sessions import Session
from bendybus_portal.theme import ACCENT, LOGO, PORTAL_CSS

__all__ = ["Visit", "button", "card", "portal_page", "stores_label", "title_bar"]

THEME_COOKIE: Final = "bendybus-portal-theme"

# "/" goes to the search field, as on many sites; it is typed as usual in a field.
_KEYS: Final = """<script>
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = document.activeElement;
  if (at && (at.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(at.tagName))) return;
  const search = document.querySelector('.search input');
  if (search) { event.preventDefault(); search.focus(); }
});
document.addEventListener('visibilitychange', () => emitEvent('visibility', document.visibilityState));
function toggleTheme() {
  const dark = !document.body.classList.contains('body--dark');
  document.cookie = 'THEME=' + (dark ? 'dark' : 'light') + '; path=/portal; max-age=31536000; SameSite=Lax';
  Quasar.Dark.set(dark);
}
</script>""".replace("THEME", THEME_COOKIE)


@dataclass(frozen=True, slots=True)
class Visit:
    """One person at one page."""

    session: Session
    query: dict[str, str]
    dark: bool | None

    def number(self, name: str) -> int:
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


@dataclass(frozen=True, slots=True)
class _Place:
    page: str
    label: str | Callable[[Session], str]
    symbol: str
    offered: Callable[[Session], bool]


def _managed(session: Session) -> bool:
    return session.rights.manage and session.rights.extensions


def _listened(session: Session) -> bool:
    return session.rights.listen and session.rights.extensions and session.entity is None


def stores_label(session: Session) -> str:
    return "Stores and brokers" if session.rights.several_brokers else "Stores"


_PLACES: Final = (
    _Place("", "Namespace", "hub", lambda session: True),
    _Place("connections", "Connections", "cable", _managed),
    _Place("stores", stores_label, "storage", _managed),
    _Place("policies", "Access policies", "vpn_key", _managed),
    _Place("pipelines", "Pipelines", "timeline", _listened),
)


def portal_page(
    path: str, title: Callable[[Visit], str]
) -> Callable[[Callable[[Visit], Awaitable[None]]], None]:
    """Make a page of a function that builds its content."""

    def decorate(build: Callable[[Visit], Awaitable[None]]) -> None:
        async def page(request: Request) -> None:
            session: Session = request.state.session
            chosen = request.cookies.get(THEME_COOKIE)
            dark = None if chosen not in ("dark", "light") else chosen == "dark"
            visit = Visit(session, dict(request.query_params), dark)
            ui.page_title(f"{title(visit)} · Bendybus")
            with _frame(visit, path.strip("/")):
                try:
                    await build(visit)
                except BrokerError as error:
                    _show_failure(error)

        ui.page(path, title="Bendybus", response_timeout=30.0)(page)

    return decorate


@contextmanager
def _frame(visit: Visit, current: str) -> Iterator[None]:
    ui.add_css(PORTAL_CSS, shared=False)
    ui.add_head_html(_KEYS)
    ui.colors(primary=ACCENT)
    ui.dark_mode(visit.dark)
    markup(tag("a", "Skip to the content", href="#content", class_="skip"))
    with ui.element("div").classes("shell"):
        markup(_navigation(visit.session, current), classes="side")
        # NiceGUI's own element around it is the page's `main`.
        with ui.element("div").classes("main").props('id="content" tabindex="-1"'):
            yield
            jobs_panel(visit.session)


def _navigation(session: Session, current: str) -> Html:
    links = EMPTY
    at = "" if current in ("entity", "messages", "dead-letters", "sessions", "rules", "settings") else current
    for place in _PLACES:
        if place.offered(session):
            here = place.page == at
            item = tag(
                "a",
                icon(place.symbol),
                tag("span", place.label if isinstance(place.label, str) else place.label(session)),
                href=f"/portal/{place.page}",
                class_="here" if here else None,
                aria_current="page" if here else None,
            )
            links = Html(links + item)
    theme = tag(
        "button", icon("contrast"), tag("span", "Light or dark"), type="button", onclick="toggleTheme()"
    )
    leave = tag(
        "form",
        tag("button", icon("logout"), tag("span", "Sign out"), type="submit"),
        method="post",
        action="/portal/sign-out",
    )
    who = tag(
        "p",
        tag("span", session.key_name, class_="who-name", title=session.key_name),
        tag("span", session.rights.label, class_="soft"),
        class_="who",
    )
    brand = tag("a", Html(LOGO), tag("span", "Bendybus"), href="/portal/", class_="brand")
    return tag(
        "div",
        brand,
        tag("nav", links, aria_label="Main", class_="places"),
        tag("div", who, theme, leave, class_="side-end"),
        class_="side-inner",
    )


def title_bar(title: str, *, crumbs: Sequence[tuple[str, str]] = (), beside: Child = None) -> None:
    """The page's heading; `crumbs` are label and address of the pages above it."""
    trail = [join(tag("a", label, href=url), icon("chevron_right")) for label, url in crumbs]
    above = tag("nav", *trail, class_="crumbs", aria_label="Breadcrumb") if trail else EMPTY
    markup(join(above, tag("div", tag("h1", title), beside, class_="title-line")), classes="title-bar")


def card(title: str = "", classes: str = "") -> Any:
    """A section with a heading: `with card("Partitions"): ...`"""
    section = ui.element("section").classes(f"card {classes}".strip())
    if title:
        with section:
            markup(tag("h2", title))
    return section


def button(label: str, on_click: Callable[..., Any], symbol: str = "", kind: str = "plain") -> ui.button:
    """`kind` is primary, plain or danger."""
    made = ui.button(label, on_click=on_click, icon=symbol or None, color=None)
    return made.props("no-caps unelevated").classes(f"button {kind}")


def _show_failure(error: BrokerError) -> None:
    title_bar("This page cannot be shown")
    markup(tag("div", icon("error_outline"), tag("span", str(error)), class_="banner bad", role="alert"))
    markup(tag("p", tag("a", "Back to the namespace", href="/portal/")))
