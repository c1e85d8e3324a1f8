"""The sending half of a session: the peer's window, delivery-ids, unsettled deliveries.

Delivery-ids belong to the session, not to the link [AMQP 2.6.12], and so does the window
that every transfer frame uses. When the window is closed, deliveries wait here in the order
in which they were sent. They get their id only when they leave. So the ids on the wire have
no gaps if a link is detached while some of its deliveries wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import DeliveryState, Flow, Transfer
from bendybus.amqp.serial import SERIAL_MAX, distance
from bendybus.engine.deliveries import Outgoing, SentDelivery, WaitingDelivery
from bendybus.engine.packing import FRAME_OVERHEAD_MAX
from bendybus.engine.work import DELIVERIES_PER_WORK

if TYPE_CHECKING:
    from bendybus.engine.sending import SendingLink
    from bendybus.engine.session import Session

__all__ = ["OutgoingTransfers"]

# Bytes that may wait for a closed window. Beyond this, links have no credit until it opens.
WAITING_BYTES_MAX: Final = 1_048_576


class OutgoingTransfers:
    __slots__ = (
        "_first_transfer_id",
        "_session",
        "_waiting",
        "_waiting_bytes",
        "next_delivery_id",
        "next_transfer_id",
        "unsettled",
        "window",
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first_transfer_id = session.connection.config.first_outgoing_id
        self.next_transfer_id = self._first_transfer_id
        self.next_delivery_id = self._first_transfer_id
        # How many transfer frames the peer still accepts, by its begin and its flows.
        self.window = 0
        self.unsettled: dict[int, SentDelivery] = {}
        self._waiting: deque[WaitingDelivery] = deque()
        self._waiting_bytes = 0

    @property
    def room(self) -> int:
        """How many more deliveries are accepted, by the limits of unsettled and of waiting ones."""
        if self._waiting_bytes >= WAITING_BYTES_MAX:
            return 0
        return self._session.connection.config.unsettled_max - len(self.unsettled) - len(self._waiting)

    # -- out ---------------------------------------------------------------------------

    def send(
        self,
        link: SendingLink,
        outgoing: Sequence[Outgoing],
        settled: bool,
        message_format: int,
        state: DeliveryState | None = None,
    ) -> None:
        # If some wait, the window is closed, so nothing can overtake them. A state needs the general path.
        sent_count = 0 if state is not None else self._send_whole(link, outgoing, settled, message_format)
        if sent_count < len(outgoing):
            for tag, head, body in outgoing[sent_count:]:
                waiting = WaitingDelivery(link, tag, head, memoryview(body), settled, message_format, state)
                self._count_waiting(waiting.size)
                self._waiting.append(waiting)
                link.waiting_count += 1
            self._send_waiting()

    def _send_whole(
        self, link: SendingLink, outgoing: Sequence[Outgoing], settled: bool, message_format: int
    ) -> int:
        """Sends, from the front, deliveries that fit one frame each and the window. Returns how many."""
        connection = self._session.connection
        frame_size_max = connection.outgoing_frame_size
        write = connection.output.extend
        unsettled = self.unsettled
        delivery_id = self.next_delivery_id
        window = min(self.window, len(outgoing))
        tag_size = -1
        sent_count = 0
        for tag, head, body in outgoing:
            if len(tag) != tag_size:
                tag_size = len(tag)
                layout = link.head(tag_size, settled, message_format)
                pack, prefix, mark, suffix = layout.pack, layout.prefix, layout.mark, layout.suffix
                head_size = layout.size
            frame_size = head_size + len(head) + len(body)
            if frame_size > frame_size_max or sent_count == window:
                break
            write((pack(frame_size, prefix, delivery_id, mark, tag, suffix), head, body))
            if not settled:
                unsettled[delivery_id] = SentDelivery(delivery_id, tag, link)
            delivery_id = (delivery_id + 1) & SERIAL_MAX
            sent_count += 1
        self.next_delivery_id = delivery_id
        self.next_transfer_id = (self.next_transfer_id + sent_count) & SERIAL_MAX
        self.window -= sent_count
        return sent_count

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self.window:
            delivery = waiting[0]
            if self._send_frame(delivery):
                waiting.popleft()
                self._count_waiting(-delivery.size)
                delivery.link.waiting_count -= 1
                delivery.link.sent_waiting()

    def _send_frame(self, delivery: WaitingDelivery) -> bool:
        """Sends the delivery's next frame. Returns whether that was the last."""
        connection = self._session.connection
        start = delivery.sent_bytes
        stop = start + connection.outgoing_frame_size - FRAME_OVERHEAD_MAX - delivery.state_size
        more = stop < delivery.size
        transfer = Transfer(handle=delivery.link.handle, more=more)
        if not delivery.started:
            delivery.started = True
            transfer.delivery_id = self.next_delivery_id
            transfer.delivery_tag = delivery.tag
            transfer.message_format = delivery.message_format
            transfer.settled = delivery.settled
            transfer.state = delivery.state
            if not delivery.settled:
                self.unsettled[self.next_delivery_id] = SentDelivery(
                    self.next_delivery_id, delivery.tag, delivery.link
                )
            self.next_delivery_id = (self.next_delivery_id + 1) & SERIAL_MAX
        self._session.write(transfer, delivery.pieces(start, stop))
        delivery.sent_bytes = stop
        self.next_transfer_id = (self.next_transfer_id + 1) & SERIAL_MAX
        self.window -= 1
        return not more

    # -- the peer's answers ------------------------------------------------------------

    def open_window(self, flow: Flow) -> None:
        """Takes the window of a flow, and sends deliveries that waited for it.

        "remote-incoming-window = next-incoming-id(flow) + incoming-window(flow) -
        next-outgoing-id(endpoint)" [AMQP 2.5.6]; a peer that has not seen our begin
        does not know an id yet.
        """
        seen = self._first_transfer_id if flow.next_incoming_id is None else flow.next_incoming_id
        self.window = max(0, flow.incoming_window + distance(self.next_transfer_id, seen))
        if self._waiting:
            crowded = self._waiting_bytes >= WAITING_BYTES_MAX
            self._send_waiting()
            if crowded and self._waiting_bytes < WAITING_BYTES_MAX:
                # The flow was for the session. Its links have credit again.
                for link in self._session.handles.sending_links:
                    self._session.connection.events.add_flow(link)

    def select(self, first: int, last: int) -> list[SentDelivery]:
        """The unsettled deliveries in the range."""
        unsettled = self.unsettled
        if first == last:
            delivery = unsettled.get(first)
            return [] if delivery is None else [delivery]
        span = (last - first) & SERIAL_MAX
        self._session.connection.work += min(span, 2 * len(unsettled)) // DELIVERIES_PER_WORK
        if span < 2 * len(unsettled):
            delivery_ids: Sequence[int] = range(first, first + span + 1)
            if first > last:
                delivery_ids = [delivery_id & SERIAL_MAX for delivery_id in delivery_ids]
            return [delivery for delivery in map(unsettled.get, delivery_ids) if delivery is not None]
        # However large the range is, the cost is bounded by the number of unsettled deliveries.
        return [
            delivery
            for delivery_id, delivery in unsettled.items()
            if (delivery_id - first) & SERIAL_MAX <= span
        ]

    def forget(self, deliveries: Sequence[SentDelivery]) -> None:
        pop = self.unsettled.pop
        for delivery in deliveries:
            pop(delivery.delivery_id, None)

    # -- a link goes -------------------------------------------------------------------

    def unsettled_of(self, link: SendingLink) -> list[SentDelivery]:
        return [delivery for delivery in self.unsettled.values() if delivery.link is link]

    def drop(self, link: SendingLink) -> list[SentDelivery]:
        """Forgets the link's deliveries, unsettled and waiting. Returns those that were unsettled."""
        self._session.connection.work += (len(self.unsettled) + len(self._waiting)) // DELIVERIES_PER_WORK
        unsettled = self.unsettled_of(link)
        self.forget(unsettled)
        if self._waiting:
            self._waiting = deque(waiting for waiting in self._waiting if waiting.link is not link)
            left = sum(waiting.size for waiting in self._waiting)
            self._count_waiting(left - self._waiting_bytes)
            link.waiting_count = 0
        return unsettled

    def drop_all(self) -> dict[SendingLink, list[SentDelivery]]:
        """`drop` for all links at once, because each of them alone would go through all deliveries."""
        by_link: dict[SendingLink, list[SentDelivery]] = {}
        for delivery in self.unsettled.values():
            by_link.setdefault(delivery.link, []).append(delivery)
        for waiting in self._waiting:
            waiting.link.waiting_count = 0
        self.unsettled.clear()
        self._waiting.clear()
        self._count_waiting(-self._waiting_bytes)
        return by_link

    def _count_waiting(self, size: int) -> None:
        """Adds to the bytes that wait for the window."""
        self._waiting_bytes += size
        self._session.connection.waiting_bytes += size
