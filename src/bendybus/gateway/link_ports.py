"""What senders and receivers use of their AMQP links, as protocols.

The links themselves: engine/receiving.py, engine/sending.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from bendybus.amqp.performatives import DeliveryState, Source
from bendybus.engine.deliveries import Delivery, Outgoing, SentDelivery

if TYPE_CHECKING:
    from bendybus.engine.session import Session

__all__ = ["InboundLink", "OutboundLink"]


class InboundLink(Protocol):
    """A link on which a client sends: `ReceivingLink`."""

    @property
    def session(self) -> Session: ...

    def top_up(self, limit: int) -> None: ...

    def settle(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None: ...


class OutboundLink(Protocol):
    """A link on which a client receives: `SendingLink`."""

    drain: bool

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> object: ...
    @property
    def properties(self) -> Mapping[str, object]: ...
    @property
    def snd_settle_mode(self) -> int | None: ...
    @property
    def credit(self) -> int: ...
    @property
    def crowded(self) -> bool: ...

    def accept(self, *, source: Source | None = ..., properties: dict[str, object] | None = ...) -> None: ...

    def send(
        self, outgoing: Sequence[Outgoing], *, settled: bool | None = ..., overrun: bool = ...
    ) -> int: ...

    def settle(self, sent: Sequence[SentDelivery], state: DeliveryState | None) -> None: ...

    def answer(self, sent: Sequence[SentDelivery], state: DeliveryState) -> None: ...

    def drained(self) -> None: ...
