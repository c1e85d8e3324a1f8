"""Views that keep themselves up to date, and the errors of a server as a person sees them.

A view is refreshed every few seconds while its page is open. If the server cannot be reached, a banner says
so and the view keeps what it showed; when the server is back, the banner goes by itself. When the session has
ended, the page goes to the sign-in page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from nicegui import ui

from bendybus.errors import BrokerError, ConnectionLost, Unavailable
from bendybus_portal.markup import Html, icon, join, tag
from bendybus_portal.sessions import Session

__all__ = ["Live", "go_to", "markup", "put", "tell", "told_errors"]

# NiceGUI gives a page three seconds to be built.
FIRST_WAIT_S: Final = 1.5


def markup(content: Html | str = "", *, classes: str = "") -> ui.html:
    """An element with markup of ours, which is escaped where it has to be (markup.py)."""
    return ui.html(content, sanitize=False).classes(classes)


def put(element: ui.html, content: Html) -> None:
    """Replace the content, unless it is the same."""
    if element.content != content:
        element.set_content(content)


def go_to(url: str) -> None:
    """Go to another page of the portal. NiceGUI puts the path that it is mounted at before the address."""
    ui.navigate.to(url.removeprefix("/portal"))


def tell(text: str, *, good: bool = True) -> None:
    ui.notify(
        text,
        position="bottom",
        classes="toast good" if good else "toast bad",
        timeout=4000 if good else 10_000,
        close_button=False if good else "Dismiss",
    )


@contextmanager
def told_errors() -> Iterator[None]:
    """Around what a person asked for: a refusal is shown in the server's words."""
    try:
        yield
    except BrokerError as error:
        tell(str(error), good=False)


class Live:
    """One for each page. `add` what is to be refreshed, then `await start()`."""

    def __init__(self, session: Session, every_s: float = 2.0) -> None:
        self._session = session
        self._every_s = every_s
        self._views: list[Callable[[], Awaitable[None]]] = []
        self._running = False
        self._banner = markup(classes="lost-slot").props('role="status" aria-live="polite"')

    def add(self, refresh: Callable[[], Awaitable[None]]) -> None:
        self._views.append(refresh)

    async def start(self) -> None:
        """Fill the views now, unless the server is slow, and keep them up to date."""
        first = asyncio.create_task(self.refresh())
        await asyncio.wait((first,), timeout=FIRST_WAIT_S)
        ui.timer(self._every_s, self.refresh, immediate=False)

    async def refresh(self) -> None:
        if not self._session.alive:
            go_to("/portal/sign-in")
            return
        if self._running:
            return
        self._running = True
        try:
            for view in self._views:
                await view()
            put(self._banner, Html(""))
        except (ConnectionLost, Unavailable) as error:
            put(self._banner, _lost(str(error)))
        except BrokerError as error:
            put(self._banner, _refused(str(error)))
        finally:
            self._running = False


def _lost(reason: str) -> Html:
    text = join(
        tag("strong", "The server does not answer."), " Trying again… ", tag("span", reason, class_="soft")
    )
    return tag("div", icon("cloud_off"), tag("span", text), class_="banner bad", id="lost")


def _refused(reason: str) -> Html:
    return tag("div", icon("block"), tag("span", reason), class_="banner warn", id="refused")
