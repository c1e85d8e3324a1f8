"""Receiving messages, with a lock or with immediate deletion, and settling them.

A call grants credit for the messages that it asks for, and takes it back at its end, so that no message is
locked or deleted while the caller does not wait for one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from bendybus.amqp.conditions import DEAD_LETTER
from bendybus.amqp.performatives import (
    RCV_FIRST,
    RCV_SECOND,
    RECEIVER,
    SND_SETTLED,
    SND_UNSETTLED,
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
)
from bendybus.amqp.types import Symbol
from bendybus.client.channel import Channel, ended
from bendybus.client.messages import ReceivedMessage
from bendybus.client.refusals import refusal_in
from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import DeliveriesReceived, DeliveriesSettled, Event, LinkDetached, LinkDrained
from bendybus.engine.receiving import ReceivingLink
from bendybus.errors import BrokerError, MessageLockLost

if TYPE_CHECKING:
    from bendybus.client.client import BusClient

__all__ = ["Receiver"]

# After the first message, how long to wait for the next before a call returns with fewer than asked.
LULL_S: Final = 0.05


class Receiver:
    """Made by `BusClient.receiver`. Its link is attached by the first call."""

    def __init__(
        self, client: BusClient, entity: str, *, deletes: bool, filters: Mapping[str, object] | None
    ) -> None:
        self.entity = entity
        self._client = client
        self._deletes = deletes
        self._filters: dict[str, object] | None = None
        if filters is not None:
            self._filters = {Symbol(name): value for name, value in filters.items()}
        self._channel: Channel | None = None
        self._link: ReceivingLink | None = None
        self._arrived: deque[Delivery] = deque()
        self._outcomes: dict[int, DeliveryState | None] = {}
        self._drained = False
        self._gone: BrokerError | None = None

    def receive(self, count: int = 1, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """Up to `count` messages: as soon as there are some, or none after `timeout_s`."""
        channel, link = self._client.retry(self._attached)
        deadline = time.monotonic() + timeout_s
        if link.credit < count - len(self._arrived):
            link.grant(count - len(self._arrived))
        try:
            seen = -1
            while len(self._arrived) < count and seen != len(self._arrived):
                seen = len(self._arrived)
                left_s = deadline - time.monotonic()
                channel.serve(max(0.0, min(left_s, LULL_S) if seen else left_s))
                if self._gone is not None:
                    raise self._gone
                if not self._arrived and time.monotonic() < deadline:
                    seen = -1
            self._take_credit_back(channel, link)
        except BrokerError:
            if not self._arrived:
                raise
        taken = [self._arrived.popleft() for _ in range(min(count, len(self._arrived)))]
        return [ReceivedMessage(delivery.payload, delivery) for delivery in taken]

    def check(self) -> None:
        """Attach now, to find out whether receiving is allowed. A session is held from then on."""
        self._client.retry(self._attached)

    @property
    def filters_in_place(self) -> frozenset[str]:
        """The filters that the server has confirmed. It ignores filters that it does not know."""
        source = None if self._link is None else self._link.source
        return frozenset(map(str, getattr(source, "filter", None) or ()))

    def _take_credit_back(self, channel: Channel, link: ReceivingLink) -> None:
        if link.credit <= 0:
            return
        self._drained = False
        link.grant(link.credit, drain=True)
        channel.wait(lambda: self._drained or self._gone is not None, f"draining '{self.entity}'")

    # -- settling ------------------------------------------------------------------------

    def complete(self, messages: Sequence[ReceivedMessage]) -> None:
        self._settle(messages, Accepted())

    def release(self, messages: Sequence[ReceivedMessage]) -> None:
        """Return the messages as if they had not been delivered."""
        self._settle(messages, Released())

    def abandon(
        self, messages: Sequence[ReceivedMessage], properties: Mapping[str, object] | None = None
    ) -> None:
        self._settle(messages, Modified(delivery_failed=True, message_annotations=_map(properties)))

    def defer(
        self, messages: Sequence[ReceivedMessage], properties: Mapping[str, object] | None = None
    ) -> None:
        self._settle(messages, Modified(undeliverable_here=True, message_annotations=_map(properties)))

    def dead_letter(
        self, messages: Sequence[ReceivedMessage], reason: str = "", description: str = ""
    ) -> None:
        info: dict[str, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self._settle(messages, Rejected(error=Error(DEAD_LETTER, description, info)))

    def _settle(self, messages: Sequence[ReceivedMessage], state: DeliveryState) -> None:
        """Send an outcome and wait until it is durable. `MessageLockLost` if the server refuses it."""
        deliveries = [cast(Delivery, message.delivery) for message in messages]
        open_ones = [delivery for delivery in deliveries if not delivery.settled]
        if not open_ones:
            return
        channel, link = self._channel, self._link
        if channel is None or link is None or channel.failure is not None or self._gone is not None:
            raise MessageLockLost(f"The connection on which '{self.entity}' was received has gone.")
        link.propose(open_ones, state)
        waited = {delivery.delivery_id for delivery in open_ones}
        channel.wait(lambda: waited <= self._outcomes.keys() or self._gone is not None, "settling")
        if self._gone is not None:
            raise self._gone
        answers = [self._outcomes.pop(number) for number in waited]
        for answer in answers:
            # A dead-lettering is confirmed by a rejected that has no error.
            if isinstance(answer, Rejected) and answer.error is not None:
                error = refusal_in(answer, f"settling a message of '{self.entity}'")
                assert error is not None
                raise error

    # -- the link ------------------------------------------------------------------------

    def _attached(self) -> tuple[Channel, ReceivingLink]:
        channel = self._client.channel(self.entity)
        if self._link is None or channel is not self._channel or self._gone is not None:
            self._gone = None
            self._arrived.clear()
            self._outcomes.clear()
            self._channel = channel
            link = channel.begin().attach(
                channel.new_name(f"from-{self.entity}"),
                RECEIVER,
                source=Source(address=self.entity, filter=self._filters),
                target=Target(address="bendybus-client"),
                snd_settle_mode=SND_SETTLED if self._deletes else SND_UNSETTLED,
                rcv_settle_mode=RCV_FIRST if self._deletes else RCV_SECOND,
            )
            self._link = cast(ReceivingLink, link)
            channel.attached(link, self, f"attaching to '{self.entity}'")
            if self._gone is not None:
                raise self._gone
        return channel, self._link

    def heard(self, event: Event) -> None:
        match event:
            case DeliveriesReceived(deliveries=deliveries):
                self._arrived += deliveries
            case DeliveriesSettled(deliveries=deliveries, state=state):
                for delivery in deliveries:
                    self._outcomes[delivery.delivery_id] = state
            case LinkDrained():
                self._drained = True
            case LinkDetached(link=link, error=error) if link is self._link:
                self._gone = ended(link, error, f"the link to '{self.entity}'")

    def close(self) -> None:
        if self._link is not None and self._gone is None:
            self._link.detach()
        self._link = None


def _map(properties: Mapping[str, object] | None) -> dict[str, object] | None:
    return None if properties is None else dict(properties)
