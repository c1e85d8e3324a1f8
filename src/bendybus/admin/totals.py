"""Counts and sizes of an entity over all its partitions, as the management API shows them (P-33)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from bendybus.atom import element
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.domain.messages import SubQueue

__all__ = ["Totals"]

COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"


@dataclass(slots=True)
class Totals:
    """Counts and sizes over all partitions that answer (P-33)."""

    active: int = 0
    scheduled: int = 0
    dead_letters: int = 0
    transfer_dead_letters: int = 0
    in_transfer: int = 0
    completed: int = 0
    """Kept after their completion: neither among `messages` nor in `size_bytes`."""
    completed_bytes: int = 0
    messages: int = 0
    size_bytes: int = 0
    arrived: int = 0
    """Sequence numbers that were assigned; only in what entity_parts.py adds up."""
    limited: bool = False

    @classmethod
    def of(cls, queue: Queue, *, own: bool = False) -> Totals:
        """`own`: only of the partitions that this broker owns."""
        totals = cls(limited=queue.limited)
        for host in queue.own.values() if own else queue.hosts:
            partition = host.figures
            if partition is None:
                continue
            totals.size_bytes += partition.size_bytes
            for subqueue in SubQueue:
                counts = partition.counts(subqueue)
                held = counts.active + counts.deferred + counts.scheduled
                if subqueue is SubQueue.COMPLETED:
                    totals.completed += held
                    totals.completed_bytes += counts.size_bytes
                    continue
                totals.messages += held
                if subqueue is SubQueue.MAIN:
                    totals.active += counts.active
                    totals.scheduled += counts.scheduled
                elif subqueue is SubQueue.DEAD_LETTER:
                    totals.dead_letters += held
                elif subqueue is SubQueue.OUTBOX:
                    totals.in_transfer += held
                else:
                    totals.transfer_dead_letters += held
        return totals

    @classmethod
    def of_topic(cls, topic: Topic, *, own: bool = False) -> Totals:
        """A topic's own: it keeps scheduled messages, and its size is that of all subscriptions."""
        totals = cls(limited=topic.limited)
        for host in topic.own.values() if own else topic.hosts:
            partition = host.figures
            if partition is not None:
                totals.scheduled += partition.scheduled_count
                totals.size_bytes += partition.size_bytes
        for subscription in topic.subscriptions:
            totals.size_bytes += cls.of(subscription, own=own).size_bytes
        return totals

    def add(self, other: Totals) -> None:
        for field in fields(self):
            mine, others = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, mine or others if field.name == "limited" else mine + others)

    @property
    def availability(self) -> tuple[str, object]:
        return "EntityAvailabilityStatus", "Limited" if self.limited else "Available"

    def count_details(self) -> str:
        # The JavaScript client looks for the prefix on this very element, and nowhere else.
        return (
            f'<CountDetails xmlns:d2p1="{COUNTS}">'
            f"{element('d2p1:ActiveMessageCount', self.active)}"
            f"{element('d2p1:DeadLetterMessageCount', self.dead_letters)}"
            f"{element('d2p1:ScheduledMessageCount', self.scheduled)}"
            f"{element('d2p1:TransferMessageCount', self.in_transfer)}"
            f"{element('d2p1:TransferDeadLetterMessageCount', self.transfer_dead_letters)}"
            "</CountDetails>"
        )
