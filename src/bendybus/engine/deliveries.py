"""Deliveries on their way in, on their way out, and still open.

Plain records without behaviour of the protocol: who may send what and when is
link.py's and session.py's to say. Made by the hundred thousand, so they are
slotted and not frozen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bendybus.amqp.codec import encode
from bendybus.amqp.performatives import DeliveryState
from bendybus.amqp.serial import SERIAL_MAX

if TYPE_CHECKING:
    from bendybus.engine.sending import SendingLink

__all__ = ["Delivery", "Outgoing", "PartialDelivery", "SentDelivery", "WaitingDelivery", "id_ranges"]

Outgoing = tuple[bytes, bytes, bytes | memoryview]
"""A message to send: its tag, and its payload in two pieces that need not be joined first."""


class Delivery(NamedTuple):
    """A complete delivery from the peer. A tuple, because a run of transfers already comes as tuples.

    `oversize` means that it was larger than the link's `max_message_size`; its
    bytes are gone, and what is left is to reject it.
    """

    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    state: DeliveryState | None
    payload: bytes
    oversize: bool = False


@dataclass(slots=True, eq=False)
class SentDelivery:
    """A delivery of ours that is not settled yet."""

    delivery_id: int
    tag: bytes
    link: SendingLink


@dataclass(slots=True, eq=False)
class PartialDelivery:
    """A delivery whose last frame is still to come."""

    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool = False
    state: DeliveryState | None = None
    payload: bytearray | None = None
    oversize: bool = False

    def add(self, piece: bytes, size_max: int) -> None:
        """Keeps the piece, or from the first byte beyond `size_max` on nothing at all."""
        if self.oversize:
            return
        if self.payload is None:
            self.payload = bytearray()
        if len(self.payload) + len(piece) > size_max:
            self.oversize = True
            self.payload = None
        else:
            self.payload += piece

    @property
    def size(self) -> int:
        """The bytes kept so far."""
        return 0 if self.payload is None else len(self.payload)

    def complete(self) -> Delivery:
        payload = bytes(self.payload) if self.payload is not None else b""
        return Delivery(
            self.delivery_id, self.tag, self.message_format, self.settled, self.state, payload, self.oversize
        )


@dataclass(slots=True, eq=False)
class WaitingDelivery:
    """A delivery that waits for the session window, or goes out in several frames."""

    link: SendingLink
    tag: bytes
    payload: memoryview
    settled: bool
    message_format: int
    state: DeliveryState | None = None
    sent_bytes: int = 0
    started: bool = False

    @property
    def state_size(self) -> int:
        """What the state takes of the first frame."""
        return 0 if self.state is None or self.started else len(encode(self.state))


def id_ranges(delivery_ids: Iterable[int]) -> list[tuple[int, int]]:
    """The same ids as (first, last) pairs, as few as can be; last may lie past the wrap at 2^32."""
    ordered = sorted(delivery_ids)
    if not ordered:
        return []
    ranges = []
    first = last = ordered[0]
    for delivery_id in ordered:
        if delivery_id > last + 1:
            ranges.append((first, last))
            first = delivery_id
        last = delivery_id
    ranges.append((first, last))
    # Sorting tore a run apart that went over the wrap: its tail now stands in front.
    if len(ranges) > 1 and ranges[0][0] == 0 and last == SERIAL_MAX:
        ranges[-1] = (first, ranges[0][1])
        del ranges[0]
    return ranges
