"""The events of one call, with runs of similar events joined.

The unit of work is the batch: hundreds of transfers read from the socket at
once become one `DeliveriesReceived`, and the dispositions that follow one
`OutcomesReceived`. What the events mean: events.py.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import DeliveryState
from bendybus.engine.deliveries import Delivery, SentDelivery
from bendybus.engine.events import DeliveriesReceived, Event, LinkFlow, OutcomesReceived

if TYPE_CHECKING:
    from bendybus.engine.receiving import ReceivingLink
    from bendybus.engine.sending import SendingLink

__all__ = ["EventLog"]

_link: Final = attrgetter("link")


class EventLog:
    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[Event] = []

    def start(self) -> list[Event]:
        """A new list. Everything until the next `start` is added to it."""
        self._events = []
        return self._events

    def add(self, event: Event) -> None:
        self._events.append(event)

    def add_flow(self, link: SendingLink) -> None:
        """Adds a flow event, unless the last event is one for the same link."""
        last = self._events[-1] if self._events else None
        if type(last) is not LinkFlow or last.link is not link:
            self._events.append(LinkFlow(link))

    def add_deliveries(self, link: ReceivingLink, deliveries: list[Delivery]) -> None:
        """Adds the deliveries to the last event if that is for the same link."""
        last = self._events[-1] if self._events else None
        if type(last) is DeliveriesReceived and last.link is link:
            last.deliveries.extend(deliveries)
        else:
            self._events.append(DeliveriesReceived(link, deliveries))

    def add_outcomes(
        self, deliveries: list[SentDelivery], state: DeliveryState | None, settled: bool
    ) -> None:
        """Adds outcomes, joined to the last event if they match it. There is one event for each link."""
        events = self._events
        last = events[-1] if events else None
        if (
            type(last) is not OutcomesReceived
            or last.settled is not settled
            or (last.state is not state and last.state != state)
        ):
            last = None
        for link, together in groupby(deliveries, key=_link):
            if last is None or last.link is not link:
                last = OutcomesReceived(link, [], state, settled)
                events.append(last)
            last.deliveries.extend(together)
