"""Records of deliveries: incoming, outgoing and unsettled.

They have no protocol logic; that is in link.py and session.py. Hundreds of thousands of
them are made, so they are slotted and not frozen.
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
    bytes were not kept, and it can only be rejected.
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
    value_bytes: int = 0
    """The memory of a large tag and of large states."""

    def add(self, piece: bytes, size_max: int) -> None:
        """Adds a piece. Once the size exceeds `size_max`, nothing is kept."""
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
        return self.value_bytes + (0 if self.payload is None else len(self.payload))

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
    head: bytes
    body: memoryview
    settled: bool
    message_format: int
    state: DeliveryState | None = None
    sent_bytes: int = 0
    started: bool = False

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)

    def pieces(self, start: int, stop: int) -> list[bytes | memoryview]:
        """A part of the payload, not copied."""
        head_size = len(self.head)
        pieces: list[bytes | memoryview] = []
        if start < head_size:
            pieces.append(self.head[start:stop])
        if stop > head_size:
            pieces.append(self.body[max(0, start - head_size) : stop - head_size])
        return pieces

    @property
    def state_size(self) -> int:
        """The bytes that the state takes in the first frame."""
        return 0 if self.state is None or self.started else len(encode(self.state))


def id_ranges(delivery_ids: Iterable[int]) -> list[tuple[int, int]]:
    """The ids as the fewest (first, last) pairs. `last` may be past the wrap at 2^32."""
    ordered = sorted(delivery_ids)
    if not ordered:
        return []
    if len(ordered) == 1:
        return [(ordered[0], ordered[0])]
    ranges = []
    first = last = ordered[0]
    for delivery_id in ordered:
        if delivery_id > last + 1:
            ranges.append((first, last))
            first = delivery_id
        last = delivery_id
    ranges.append((first, last))
    # Sorting splits a run that crosses the wrap: its tail is now in front.
    if len(ranges) > 1 and ranges[0][0] == 0 and last == SERIAL_MAX:
        ranges[-1] = (first, ranges[0][1])
        del ranges[0]
    return ranges
