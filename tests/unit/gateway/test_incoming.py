"""Which node gets which event of a slice, and when outcomes are passed on."""

from __future__ import annotations

from dataclasses import dataclass, field

from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import (
    ConnectionClosed,
    DeliveriesReceived,
    Event,
    LinkDetached,
    LinkFlow,
    OutcomesReceived,
)
from bendybus.gateway.attachments import Attachment
from bendybus.gateway.incoming import REQUESTS_PER_SLICE, Incoming


class FakeLinks:
    """The links of a connection, the collector of their outcomes, and what was called."""

    def __init__(self, *links: str, requests: bool = False) -> None:
        self.calls: list[object] = []
        self.attachments = {link: Attachment(FakeNode(link, self.calls), "q", None) for link in links}
        self._requests = requests

    def takes_batches(self, link: str) -> bool:
        return not self._requests

    def detached(self, link: str, *, closed: bool) -> None:
        self.calls.append(("detached", link))

    def submit(self) -> None:
        self.calls.append("submit")

    def incoming(self) -> Incoming:
        return Incoming(self, self.submit, self.calls.append)


@dataclass
class FakeNode:
    link: str
    calls: list[object] = field(default_factory=list)

    def outcomes(self, event: OutcomesReceived) -> None:
        self.calls.append(("outcomes", self.link))

    def flow(self) -> None:
        self.calls.append(("flow", self.link))

    def deliveries(self, deliveries: list[Delivery]) -> None:
        self.calls.append(("deliveries", self.link, len(deliveries)))


def outcomes(link: str) -> OutcomesReceived:
    return OutcomesReceived(link, [], None, True)


def deliveries(link: str, count: int) -> DeliveriesReceived:
    return DeliveriesReceived(link, [Delivery(number, b"", 0, False, None, b"") for number in range(count)])


def test_outcomes_are_submitted_together_before_the_next_event_of_another_kind():
    links = FakeLinks("a", "b")
    events: list[Event] = [outcomes("a"), outcomes("b"), outcomes("a"), LinkFlow("b"), outcomes("b")]
    assert links.incoming().handle(events) == 0
    three = [("outcomes", "a"), ("outcomes", "b"), ("outcomes", "a")]
    assert links.calls == [*three, "submit", ("flow", "b"), ("outcomes", "b"), "submit"]


def test_events_of_links_without_a_node_are_dropped():
    links = FakeLinks()
    links.incoming().handle([outcomes("a"), LinkFlow("a"), deliveries("a", 1), LinkDetached("a", None, True)])
    assert links.calls == ["submit", ("detached", "a")]


def test_events_of_the_connection_go_to_it():
    links = FakeLinks()
    ended = ConnectionClosed(None)
    links.incoming().handle([ended])
    assert links.calls == [ended]


def test_a_long_series_of_requests_is_left_for_the_next_slice_with_all_that_follows():
    links = FakeLinks("a", requests=True)
    incoming = links.incoming()
    flow = LinkFlow("a")
    assert incoming.handle([deliveries("a", REQUESTS_PER_SLICE + 3), flow]) == REQUESTS_PER_SLICE
    assert links.calls == [("deliveries", "a", REQUESTS_PER_SLICE)]
    rest = incoming.take_unhandled()
    assert incoming.take_unhandled() == []
    assert incoming.handle(rest) == 3
    assert links.calls[1:] == [("deliveries", "a", 3), ("flow", "a")]
