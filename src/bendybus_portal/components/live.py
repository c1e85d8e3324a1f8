"""Views that keep themselves up to date, and the errors of a server as a person sees them.

A view is refreshed every few seconds while its page can be seen: a hidden tab costs nothing. If the server
cannot be reached, a banner says so and the view keeps what it showed; when the server is back, the banner
disappears. When the session has ended, the page goes to the sign-in page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from nicegui import events, ui

from bendybus.errors import BrokerError, ConnectionLost, Unavailable
from bendybus_portal.components.markup_element import markup
from bendybus_portal.markup import EMPTY, Html, icon, join, tag
from bendybus_portal.sessions import Session

__all__ = ["Live", "go_to", "tell", "told_errors"]

# NiceGUI gives a page three seconds to be built.
FIRST_WAIT_S: Final = 1.5

# A machine that has much to do takes longer for a refresh, and is asked less often: refreshing takes a
# twentieth of the time at most.
PAUSE_FACTOR: Final = 20
EVERY_MAX_S: Final = 10.0


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
    """Wraps an action of a person: a refusal is shown with the server's message."""
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
        self._hidden = False
        self._timer: ui.timer | None = None
        self._banner = markup(classes="lost-slot").props('role="status" aria-live="polite"')

    def add(self, refresh: Callable[[], Awaitable[None]]) -> None:
        self._views.append(refresh)

    async def start(self) -> None:
        """Fill the views now, unless the server is slow, and keep them up to date."""
        first = asyncio.create_task(self.refresh())
        await asyncio.wait((first,), timeout=FIRST_WAIT_S)
        self._timer = ui.timer(self._every_s, self._tick, immediate=False)
        ui.on("visibility", self._seen)

    async def _seen(self, event: events.GenericEventArguments) -> None:
        self._hidden = event.args == "hidden"
        if not self._hidden:
            await self.refresh()

    async def _tick(self) -> None:
        if not self._hidden:
            began = monotonic()
            await self.refresh()
            if self._timer is not None:
                pause_s = (monotonic() - began) * PAUSE_FACTOR
                self._timer.interval = min(EVERY_MAX_S, max(self._every_s, pause_s))

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
            self._banner.put(EMPTY)
        except (ConnectionLost, Unavailable) as error:
            self._banner.put(_lost(str(error)))
        except BrokerError as error:
            self._banner.put(_refused(str(error)))
        finally:
            self._running = False


def _lost(reason: str) -> Html:
    text = join(
        tag("strong", "The server does not answer."), " Trying again… ", tag("span", reason, class_="soft")
    )
    return tag("div", icon("cloud_off"), tag("span", text), class_="banner bad", id="lost")


def _refused(reason: str) -> Html:
    return tag("div", icon("block"), tag("span", reason), class_="banner warn", id="refused")
