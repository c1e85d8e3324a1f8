"""A link on which we receive: granting credit, joining frames to deliveries, settling.

A peer may exceed its credit by a limited amount. A delivery that is larger than the link
allows is reported as oversize and is not kept. Attaching and detaching: link.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bendybus.amqp.conditions import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED, TRANSFER_LIMIT_EXCEEDED
from bendybus.amqp.frames import TransferFields
from bendybus.amqp.performatives import RCV_FIRST, RECEIVER, Attach, DeliveryState, Flow, Terminus
from bendybus.amqp.serial import SERIAL_MAX, distance
from bendybus.amqp.transfer_run import PlainTransfer
from bendybus.engine.deliveries import Delivery, PartialDelivery
from bendybus.engine.events import LinkDrained
from bendybus.engine.link import Link
from bendybus.engine.states import LinkState
from bendybus.engine.work import value_memory
from bendybus.errors import ProtocolError

if TYPE_CHECKING:
    from bendybus.engine.session import Session

__all__ = ["CREDIT_OVERRUN_MAX", "ReceivingLink"]

# py sends as if it always had a credit of 10000. A peer that exceeds twice that is at fault.
CREDIT_OVERRUN_MAX: Final = 20_000

# Looked at for every transfer, and a member of an enum is slow to look up.
_ATTACHED: Final = LinkState.ATTACHED


# Makes a `NamedTuple` from an existing tuple without calling its constructor.
_new_delivery: Final = tuple.__new__


def _too_large(transfer: PlainTransfer) -> Delivery:
    return Delivery(*transfer[:5], b"", oversize=True)


class ReceivingLink(Link):
    role = RECEIVER

    __slots__ = ("_partial", "credit", "delivery_count", "drain")

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        # What the peer may still send; below zero when it has sent more than that.
        self.credit = 0
        self.delivery_count = 0
        self.drain = False
        self.max_message_size = session.connection.config.max_message_size
        self._partial: PartialDelivery | None = None

    # -- what the application calls ----------------------------------------------------

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Sets the peer's credit. With `drain` the peer must use it up now (`LinkDrained`)."""
        if self.state is not LinkState.ATTACHED:
            return
        self.credit = credit
        self.drain = drain
        self.write_flow()

    def top_up(self, limit: int) -> None:
        """Grants `limit` again when half of it is used."""
        if 2 * self.credit < limit:
            self.grant(limit)

    def settle(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None:
        """Settles with this outcome. Deliveries that arrived settled need no answer."""
        if self.state is LinkState.ATTACHED:
            open_ids = [delivery.delivery_id for delivery in deliveries if not delivery.settled]
            self.session.write_dispositions(RECEIVER, open_ids, settled=True, state=state)

    def propose(self, deliveries: Sequence[Delivery], state: DeliveryState) -> None:
        """Names the outcome and lets the sender settle (rcv-settle-mode second): `DeliveriesSettled`."""
        if self.state is LinkState.ATTACHED:
            open_ids = [delivery.delivery_id for delivery in deliveries if not delivery.settled]
            self.session.proposed.update(
                (delivery.delivery_id, (self, delivery)) for delivery in deliveries if not delivery.settled
            )
            self.session.write_dispositions(RECEIVER, open_ids, settled=False, state=state)

    # -- what the session calls --------------------------------------------------------

    def receive_run(self, transfers: list[PlainTransfer]) -> bool:
        """Takes a series of complete deliveries. False: the link cannot, and nothing was changed."""
        count = len(transfers)
        if (
            self.state is not _ATTACHED
            or self._partial is not None
            or self.credit - count < -CREDIT_OVERRUN_MAX
        ):
            return False
        self.delivery_count = (self.delivery_count + count) & SERIAL_MAX
        self.credit -= count
        size_max = self.max_message_size
        deliveries = [
            _new_delivery(Delivery, transfer) if len(transfer[5]) <= size_max else _too_large(transfer)
            for transfer in transfers
        ]
        self.session.connection.events.add_deliveries(self, deliveries)
        return True

    def receive_transfer(self, fields: TransferFields, payload: bytes) -> None:
        _, delivery_id, tag, message_format, settled, more, _, state, aborted, _ = fields
        if more or aborted or self._partial is not None or self.state is not _ATTACHED:
            self._receive_part(fields, payload)
            return
        if delivery_id is None:
            raise self._nameless()
        self._count()
        oversize = len(payload) > self.max_message_size
        payload = b"" if oversize else payload
        delivery = Delivery(delivery_id, tag or b"", message_format or 0, settled, state, payload, oversize)
        self.session.connection.events.add_deliveries(self, [delivery])

    def receive_flow(self, flow: Flow) -> None:
        """The sender's flow state. A delivery-count ahead of ours is the answer to a drain."""
        if flow.delivery_count is not None:
            skipped = distance(self.delivery_count, flow.delivery_count)
            if skipped > 0:
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - skipped)
        if self.drain and flow.drain and self.credit <= 0:
            self.drain = False
            self.session.connection.events.add(LinkDrained(self))
        if flow.echo and self.state is LinkState.ATTACHED:
            self.write_flow()

    def write_flow(self) -> None:
        self.session.write_flow(
            handle=self.handle,
            delivery_count=self.delivery_count,
            link_credit=max(0, self.credit),
            drain=self.drain,
        )

    # -- inside ------------------------------------------------------------------------

    def _receive_part(self, fields: TransferFields, payload: bytes) -> None:
        """One frame of a delivery that takes several, or a frame that is ignored or refused."""
        _, delivery_id, tag, message_format, settled, more, _, state, aborted, _ = fields
        if self.state is LinkState.ATTACH_RECEIVED:
            raise ProtocolError(
                TRANSFER_LIMIT_EXCEEDED, f"transfer on link '{self.name}', not yet accepted", scope="link"
            )
        if self.state is not LinkState.ATTACHED:
            return
        partial = self._partial
        if partial is None:
            if delivery_id is None:
                raise self._nameless()
            self._count()
            partial = self._partial = PartialDelivery(delivery_id, tag or b"", message_format or 0)
        elif delivery_id is not None and delivery_id != partial.delivery_id:
            raise ProtocolError(
                INVALID_FIELD,
                f"delivery {delivery_id} on link '{self.name}' inside delivery {partial.delivery_id}",
                scope="link",
            )
        if aborted:
            self._forget_partial()
            return
        # Settled on any of its frames means settled [AMQP 2.7.5].
        partial.settled = partial.settled or settled
        partial.state = partial.state if state is None else state
        self._add(partial, payload)
        if not more:
            self._forget_partial()
            self.session.connection.events.add_deliveries(self, [partial.complete()])

    def _add(self, partial: PartialDelivery, piece: bytes) -> None:
        connection = self.session.connection
        before = partial.size
        partial.value_bytes += value_memory(connection.frame_bytes)
        partial.add(piece, self.max_message_size)
        connection.incomplete_bytes += partial.size - before
        limit = max(connection.config.incomplete_bytes_max, self.max_message_size)
        if connection.incomplete_bytes > limit:
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED,
                f"The incomplete deliveries of this connection have more than {limit} bytes.",
            )

    def _forget_partial(self) -> None:
        if self._partial is not None:
            self.session.connection.incomplete_bytes -= self._partial.size
            self._partial = None

    def _count(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MAX
        self.credit -= 1
        if self.credit < -CREDIT_OVERRUN_MAX:
            raise ProtocolError(
                TRANSFER_LIMIT_EXCEEDED,
                f"link '{self.name}' got {-self.credit} deliveries beyond its credit",
                scope="link",
            )

    def _nameless(self) -> ProtocolError:
        return ProtocolError(INVALID_FIELD, f"delivery on link '{self.name}' without an id", scope="link")

    def _adopt(self, attach: Attach) -> None:
        self.delivery_count = attach.initial_delivery_count or 0

    def _answered_rcv_settle_mode(self, asked: Attach) -> int | None:
        """We settle with the outcome, also if the peer would like to settle first.

        "When set at the receiver this indicates the actual settlement mode in use" [AMQP 2.7.3]. The senders
        of py ask for the mode second and wait for a disposition that settles, so it cannot be granted.
        """
        self.rcv_settle_mode = RCV_FIRST
        return None if asked.rcv_settle_mode is None else RCV_FIRST

    def _send_attach(
        self,
        *,
        source: Terminus | None = None,
        target: Terminus | None = None,
        properties: dict[str, object] | None = None,
        max_message_size: int | None = None,
        offered_capabilities: Sequence[str] = (),
    ) -> None:
        self.max_message_size = max_message_size or self.max_message_size
        super()._send_attach(
            source=source,
            target=target,
            properties=properties,
            max_message_size=self.max_message_size,
            offered_capabilities=offered_capabilities,
        )

    def _release(self) -> None:
        self._forget_partial()
        proposed = self.session.proposed
        for delivery_id in [number for number, (link, _) in proposed.items() if link is self]:
            del proposed[delivery_id]
