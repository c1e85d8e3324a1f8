"""What `Connection.receive_data` and `tick` report, in the order it happened.

The engine has already answered wherever AMQP leaves no choice. The application decides
(`SaslInitReceived`, `LinkAttached`), works (`DeliveriesReceived`, `OutcomesReceived`,
`LinkFlow`) and cleans up. Every link that was announced is reported detached exactly once,
unless the whole connection ends: `ConnectionClosed` and `ConnectionFailed` cover everything
in it. They are not frozen, because a frozen dataclass takes five times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bendybus.amqp.performatives import DeliveryState, Error, Open
from bendybus.engine.deliveries import Delivery, SentDelivery
from bendybus.errors import BrokerError

if TYPE_CHECKING:
    from bendybus.engine.link import Link
    from bendybus.engine.receiving import ReceivingLink
    from bendybus.engine.sending import SendingLink
    from bendybus.engine.session import Session

__all__ = [
    "ConnectionClosed",
    "ConnectionFailed",
    "ConnectionOpened",
    "DeliveriesAnswered",
    "DeliveriesReceived",
    "DeliveriesSettled",
    "Event",
    "LinkAttached",
    "LinkDetached",
    "LinkDrained",
    "LinkFlow",
    "OutcomesReceived",
    "SaslInitReceived",
    "SessionBegun",
    "SessionEnded",
]


# -- connection -------------------------------------------------------------------


@dataclass(slots=True)
class SaslInitReceived:
    """Server: the client has chosen. Answer with `Connection.sasl_outcome`."""

    mechanism: str
    response: bytes
    hostname: str | None


@dataclass(slots=True)
class ConnectionOpened:
    """Both sides have sent open."""

    remote: Open


@dataclass(slots=True)
class ConnectionClosed:
    """Both sides have sent close; the error is the peer's."""

    error: Error | None


@dataclass(slots=True)
class ConnectionFailed:
    """We ended the connection because of an error. Write `data_to_send`, then close the socket."""

    error: BrokerError


# -- sessions and links -------------------------------------------------------------


@dataclass(slots=True)
class SessionBegun:
    session: Session


@dataclass(slots=True)
class SessionEnded:
    """Ended on both sides, or by us because of the peer's mistake. Its links are reported before."""

    session: Session
    error: Error | None


@dataclass(slots=True)
class LinkAttached:
    """The peer wants a link: answer with `accept` or `refuse`, now or later.

    When we attached first this is the peer's answer; a null source or target in
    it says that a detach with the reason follows.
    """

    link: Link


@dataclass(slots=True)
class LinkDetached:
    """Detached on both sides, or by us because of the peer's mistake."""

    link: Link
    error: Error | None
    closed: bool
    """Whether the peer has closed it, and so given up what the link kept."""


# -- messages -----------------------------------------------------------------------


@dataclass(slots=True)
class LinkFlow:
    """The peer has changed its credit: look at `link.credit` and `link.drain`."""

    link: SendingLink


@dataclass(slots=True)
class LinkDrained:
    """The peer has answered our drain."""

    link: ReceivingLink


@dataclass(slots=True)
class DeliveriesReceived:
    """A run of complete deliveries, in their order on the link."""

    link: ReceivingLink
    deliveries: list[Delivery]


@dataclass(slots=True)
class OutcomesReceived:
    """What the peer did with deliveries we sent. Unless `settled`, it waits for `SendingLink.settle`."""

    link: SendingLink
    deliveries: list[SentDelivery]
    state: DeliveryState | None
    settled: bool


@dataclass(slots=True)
class DeliveriesSettled:
    """The peer has settled deliveries for which we had asked with `ReceivingLink.propose`."""

    link: ReceivingLink
    deliveries: list[Delivery]
    state: DeliveryState | None


@dataclass(slots=True)
class DeliveriesAnswered:
    """The peer has named an outcome for such deliveries and left them unsettled, as in a transaction."""

    link: ReceivingLink
    deliveries: list[Delivery]
    state: DeliveryState | None


Event: TypeAlias = (
    SaslInitReceived
    | ConnectionOpened
    | ConnectionClosed
    | ConnectionFailed
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetached
    | LinkFlow
    | LinkDrained
    | DeliveriesReceived
    | OutcomesReceived
    | DeliveriesSettled
    | DeliveriesAnswered
)
