"""Which node gets which event of a slice, and when outcomes are passed on."""

from __future__ import annotations

from dataclasses import dataclass, field

from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import (
    ConnectionClosed,
    DeliveriesReceived,
    Event,
    LinkDetached,
    LinkFlow,
    OutcomesReceived,
)
from bendybus.engine.link import Link
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.engine.session import Session
from bendybus.gateway.attachments import Attachment
from bendybus.gateway.incoming import REQUEST_WORK, REQUESTS_PER_SLICE, Incoming
from bendybus.gateway.turns import TURN_WORK

SESSION = Session(Connection.server(ConnectionConfig(container_id="test")), 0)
OUT, OTHER = SendingLink(SESSION, "out", 0), SendingLink(SESSION, "other", 1)
IN = ReceivingLink(SESSION, "in", 2)


class FakeLinks:
    """The links of a connection, the collector of their outcomes, and what was called."""

    def __init__(self, *links: Link, requests: bool = False) -> None:
        self.calls: list[object] = []
        self.attachments = {link: Attachment(FakeNode(link, self.calls), "q", None) for link in links}
        self._requests = requests

    def takes_batches(self, link: Link) -> bool:
        return not self._requests

    def detached(self, link: Link, *, closed: bool) -> None:
        self.calls.append(("detached", link))

    def submit(self) -> None:
        self.calls.append("submit")

    def incoming(self) -> Incoming:
        return Incoming(self, self.submit, self.calls.append)


@dataclass
class FakeNode:
    link: Link
    calls: list[object] = field(default_factory=list)

    def outcomes(self, event: OutcomesReceived) -> None:
        self.calls.append(("outcomes", self.link))

    def flow(self) -> None:
        self.calls.append(("flow", self.link))

    def deliveries(self, deliveries: list[Delivery]) -> None:
        self.calls.append(("deliveries", self.link, len(deliveries)))


def outcomes(link: SendingLink) -> OutcomesReceived:
    return OutcomesReceived(link, [], None, True)


def deliveries(link: ReceivingLink, count: int) -> DeliveriesReceived:
    return DeliveriesReceived(link, [Delivery(number, b"", 0, False, None, b"") for number in range(count)])


def test_outcomes_are_submitted_together_before_the_next_event_of_another_kind():
    links = FakeLinks(OUT, OTHER)
    events: list[Event] = [outcomes(OUT), outcomes(OTHER), outcomes(OUT), LinkFlow(OTHER), outcomes(OTHER)]
    assert links.incoming().handle(events) == 0
    three = [("outcomes", OUT), ("outcomes", OTHER), ("outcomes", OUT)]
    assert links.calls == [*three, "submit", ("flow", OTHER), ("outcomes", OTHER), "submit"]


def test_events_of_links_without_a_node_are_dropped():
    links = FakeLinks()
    links.incoming().handle([outcomes(OUT), LinkFlow(OUT), deliveries(IN, 1), LinkDetached(OUT, None, True)])
    assert links.calls == ["submit", ("detached", OUT)]


def test_events_of_the_connection_go_to_it():
    links = FakeLinks()
    ended = ConnectionClosed(None)
    links.incoming().handle([ended])
    assert links.calls == [ended]


def test_a_long_series_of_requests_is_left_for_the_next_slice_with_all_that_follows():
    links = FakeLinks(IN, OUT, requests=True)
    incoming = links.incoming()
    flow = LinkFlow(OUT)
    assert (
        incoming.handle([deliveries(IN, REQUESTS_PER_SLICE + 3), flow]) == REQUESTS_PER_SLICE * REQUEST_WORK
    )
    assert links.calls == [("deliveries", IN, REQUESTS_PER_SLICE)]
    rest = incoming.take_unhandled()
    assert incoming.take_unhandled() == []
    assert incoming.handle(rest) == 3 * REQUEST_WORK
    assert links.calls[1:] == [("deliveries", IN, 3), ("flow", OUT)]


def test_requests_that_alternate_between_links_are_one_series() -> None:
    second = ReceivingLink(SESSION, "second", 3)
    links = FakeLinks(IN, second, OUT, requests=True)
    incoming = links.incoming()
    pairs = [deliveries(link, 1) for _ in range(REQUESTS_PER_SLICE) for link in (IN, second)]
    assert incoming.handle([*pairs, LinkFlow(OUT)]) == REQUESTS_PER_SLICE * REQUEST_WORK
    assert len(links.calls) == REQUESTS_PER_SLICE
    incoming.handle(incoming.take_unhandled())
    assert links.calls == [("deliveries", link, 1) for _ in range(8) for link in (IN, second)] + [
        ("flow", OUT)
    ]


def test_a_large_request_is_as_much_work_as_many_small_ones() -> None:
    links = FakeLinks(IN, requests=True)
    incoming = links.incoming()
    large = Delivery(0, b"", 0, False, None, bytes(1 << 20))
    work = incoming.handle([DeliveriesReceived(IN, [large, large])])
    assert links.calls == [("deliveries", IN, 1)]
    assert work > TURN_WORK
    assert incoming.handle(incoming.take_unhandled()) == work
