"""Deliveries that are settled as accepted, collected until something else is written.

The messages of one client are often spread over partitions, whose answers come one after the other.
Sent alone, each answer would name ids with gaps, in one frame for each gap. Together they are one range.
"""

from __future__ import annotations

from collections.abc import Iterable

from bendybus.amqp.performatives import ACCEPTED
from bendybus.engine.deliveries import id_ranges
from bendybus.engine.packing import pack_dispositions

__all__ = ["AcceptedDeliveries"]


class AcceptedDeliveries:
    __slots__ = ("_collected",)

    def __init__(self) -> None:
        self._collected: dict[tuple[int, bool], list[int]] = {}
        """Ids by channel and role."""

    def __bool__(self) -> bool:
        return bool(self._collected)

    def add(self, channel: int, role: bool, delivery_ids: Iterable[int]) -> None:
        self._collected.setdefault((channel, role), []).extend(delivery_ids)

    def take(self) -> list[bytes]:
        """The dispositions for everything collected, as frames."""
        collected, self._collected = self._collected, {}
        return [
            frame
            for (channel, role), delivery_ids in collected.items()
            for frame in pack_dispositions(channel, role, id_ranges(delivery_ids), True, ACCEPTED)
        ]
