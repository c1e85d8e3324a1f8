"""A link on which we send: the peer's credit, drain, and what it does with our deliveries.

Windows, ids and frames: outgoing.py. Attaching and detaching: link.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bendybus.amqp.performatives import SENDER, SND_SETTLED, Attach, DeliveryState, Flow
from bendybus.amqp.serial import add, distance
from bendybus.engine.deliveries import Outgoing, SentDelivery
from bendybus.engine.link import Link
from bendybus.engine.packing import TransferHead
from bendybus.engine.states import LinkState

if TYPE_CHECKING:
    from bendybus.engine.session import Session

__all__ = ["SendingLink"]


class SendingLink(Link):
    role = SENDER

    __slots__ = (
        "_credit",
        "_drained_owed",
        "_head",
        "_left_unsettled",
        "delivery_count",
        "drain",
        "waiting_count",
    )

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.delivery_count = 0
        self.drain = False
        # Deliveries that wait for the session's window.
        self.waiting_count = 0
        self._credit = 0
        self._drained_owed = False
        self._left_unsettled: list[SentDelivery] | None = None
        self._head: TransferHead | None = None

    # -- what the application calls ----------------------------------------------------

    @property
    def credit(self) -> int:
        """How many more deliveries `send` takes now."""
        if self.state is not LinkState.ATTACHED:
            return 0
        return max(0, min(self._credit, self.session.outgoing.room))

    @property
    def crowded(self) -> bool:
        """Whether the peer has credit, but too many deliveries are unsettled or waiting."""
        return self._credit > 0 and self.session.outgoing.room <= 0

    @property
    def unsettled(self) -> list[SentDelivery]:
        """Unsettled deliveries, oldest first. After a detach: those that were unsettled then."""
        if self._left_unsettled is not None:
            return self._left_unsettled
        return self.session.outgoing.unsettled_of(self)

    def send(
        self,
        outgoing: Sequence[Outgoing],
        *,
        settled: bool | None = None,
        message_format: int = 0,
        overrun: bool = False,
        state: DeliveryState | None = None,
    ) -> int:
        """Sends as many from the front as there is credit for. Returns how many.

        By default they are settled if the link's snd-settle-mode says so. The peer may take
        credit back while messages are being fetched for it; the caller must release those
        that are not sent. `overrun` sends them anyway, for messages that are already
        removed; to the peer they look like messages that were on their way. `state` names
        the transaction that they are part of.
        """
        if self.state is not LinkState.ATTACHED:
            return 0
        if not overrun and len(outgoing) > self.credit:
            outgoing = outgoing[: self.credit]
        if not outgoing:
            return 0
        if settled is None:
            settled = self.snd_settle_mode == SND_SETTLED
        self._credit = max(0, self._credit - len(outgoing))
        self.delivery_count = add(self.delivery_count, len(outgoing))
        self.session.outgoing.send(self, outgoing, settled, message_format, state)
        return len(outgoing)

    def settle(self, sent: Sequence[SentDelivery], state: DeliveryState | None) -> None:
        """Answers outcomes that arrived unsettled: "disposition(role=sender, settled=true)" [AMQP 2.6.12]."""
        if self.state is not LinkState.ATTACHED:
            return
        unsettled = self.session.outgoing.unsettled
        open_ids = [
            delivery.delivery_id for delivery in sent if unsettled.pop(delivery.delivery_id, None) is not None
        ]
        self.session.write_dispositions(SENDER, open_ids, settled=True, state=state)

    def answer(self, sent: Sequence[SentDelivery], state: DeliveryState) -> None:
        """Names the outcome of these deliveries, which stay unsettled: they are part of a transaction."""
        if self.state is not LinkState.ATTACHED:
            return
        unsettled = self.session.outgoing.unsettled
        open_ids = [delivery.delivery_id for delivery in sent if delivery.delivery_id in unsettled]
        self.session.write_dispositions(SENDER, open_ids, settled=False, state=state)

    def drained(self) -> None:
        """Answers a drain when nothing more is available: gives the rest of the credit back.

        "the sender MUST (after sending all available messages) advance the
        delivery-count as much as possible, consuming all link-credit, and send the
        flow state to the receiver" [AMQP 2.6.7]. Clients wait for this answer, so it is
        sent even if no credit was left.
        """
        if self.state is not LinkState.ATTACHED or not self.drain:
            return
        if self.waiting_count:
            self._drained_owed = True
            return
        self.delivery_count = add(self.delivery_count, self._credit)
        self._credit = 0
        self._drained_owed = False
        self.write_flow()
        self.drain = False

    # -- what the session calls --------------------------------------------------------

    def leave(self, unsettled: list[SentDelivery]) -> None:
        """The session has ended, and these deliveries of the link were unsettled."""
        self._left_unsettled = unsettled

    def receive_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            # "link-credit(snd) := delivery-count(rcv) + link-credit(rcv) - delivery-count(snd)" [AMQP 2.6.7];
            # a receiver that has not seen our attach does not know our first count, which is 0.
            seen = flow.delivery_count or 0
            self._credit = max(0, distance(self.delivery_count, seen) + flow.link_credit)
        self.drain = bool(flow.drain)
        self._drained_owed = self._drained_owed and self.drain
        self.session.connection.events.add_flow(self)
        if flow.echo and self.state is LinkState.ATTACHED:
            self.write_flow()

    def head(self, tag_size: int, settled: bool, message_format: int) -> TransferHead:
        """The bytes before the payload of a transfer. A link that sends one at a time uses them again."""
        head = self._head
        if head is None or not head.fits(tag_size, settled, message_format):
            channel = self.session.channel
            head = self._head = TransferHead(channel, self.handle, tag_size, settled, message_format)
        return head

    def sent_waiting(self) -> None:
        """One of the deliveries that waited has been sent."""
        if self._drained_owed:
            self.drained()

    def write_flow(self) -> None:
        self.session.write_flow(
            handle=self.handle,
            delivery_count=self.delivery_count,
            link_credit=self._credit,
            drain=self.drain,
        )

    def _adopt(self, attach: Attach) -> None:
        self.max_message_size = attach.max_message_size or 0

    def _release(self) -> None:
        self._left_unsettled = self.session.outgoing.drop(self)
