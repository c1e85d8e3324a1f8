"""From the engine's events to the nodes behind the links of a connection.

Consecutive outcomes are collected and submitted together (joined_outcomes.py). Events of the connection
itself go to `AmqpConnection`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import (
    DeliveriesReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    OutcomesReceived,
)
from bendybus.engine.work import BYTES_PER_WORK, PERFORMATIVE_WORK
from bendybus.gateway.attachments import InboundNode, OutboundNode
from bendybus.gateway.links import Links

__all__ = ["Incoming"]

# Small requests to `$cbs` or `$management` in one slice of a turn. Each is decoded and answered on its own.
REQUESTS_PER_SLICE: Final = 8
REQUEST_WORK: Final = 2 * PERFORMATIVE_WORK


class Incoming:
    __slots__ = ("_attachments", "_handle_other", "_links", "_submit_outcomes", "unhandled")

    def __init__(
        self, links: Links, submit_outcomes: Callable[[], None], handle_other: Callable[[Event], None]
    ) -> None:
        """`submit_outcomes`: called after outcomes. `handle_other`: for events that are not of a link."""
        self._links = links
        self._attachments = links.attachments
        self._submit_outcomes = submit_outcomes
        self._handle_other = handle_other
        self.unhandled: list[Event] = []
        """The events left for the next slice of a turn."""

    def take_unhandled(self) -> list[Event]:
        unhandled, self.unhandled = self.unhandled, []
        return unhandled

    def handle(self, events: list[Event]) -> int:
        """Handle events in order, but only some requests. Returns the units of work of the requests."""
        work = 0
        outcomes_came = False
        for position, event in enumerate(events):
            if isinstance(event, OutcomesReceived):
                outcomes_came = True
                attachment = self._attachments.get(event.link)
                if attachment is not None:
                    cast(OutboundNode, attachment.node).outcomes(event)
                continue
            if outcomes_came:
                self._submit_outcomes()
                outcomes_came = False
            if isinstance(event, DeliveriesReceived) and not self._links.takes_batches(event.link):
                link, requests = event.link, event.deliveries
                count, work = _within_slice(requests, work)
                if count < len(requests):
                    rest = DeliveriesReceived(link, requests[count:])
                    self.unhandled = [rest, *events[position + 1 :]]
                    if count:
                        self._handle(DeliveriesReceived(link, requests[:count]))
                    break
            self._handle(event)
        if outcomes_came:
            self._submit_outcomes()
        return work

    def handle_all(self, events: Iterable[Event]) -> None:
        """Handle events that are few: those of a login or a tick."""
        for event in events:
            self._handle(event)
        self._submit_outcomes()

    def _handle(self, event: Event) -> None:
        if isinstance(event, LinkFlow):
            attachment = self._attachments.get(event.link)
            if attachment is not None:
                cast(OutboundNode, attachment.node).flow()
        elif isinstance(event, DeliveriesReceived):
            attachment = self._attachments.get(event.link)
            if attachment is not None:
                cast(InboundNode, attachment.node).deliveries(event.deliveries)
        elif isinstance(event, OutcomesReceived):
            attachment = self._attachments.get(event.link)
            if attachment is not None:
                cast(OutboundNode, attachment.node).outcomes(event)
        elif isinstance(event, LinkAttached):
            self._links.attach(event.link)
        elif isinstance(event, LinkDetached):
            self._links.detached(event.link, closed=event.closed)
        else:
            self._handle_other(event)


def _within_slice(requests: Sequence[Delivery], work: int) -> tuple[int, int]:
    """How many of these requests a slice takes after this much work, and the work after them."""
    count = 0
    for request in requests:
        if work >= REQUESTS_PER_SLICE * REQUEST_WORK:
            break
        work += REQUEST_WORK + len(request.payload) // BYTES_PER_WORK
        count += 1
    return count, work
