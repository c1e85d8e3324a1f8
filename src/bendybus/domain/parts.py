"""The parts of a partition, as the handlers of its commands see them (handlers/)."""

from __future__ import annotations

from bendybus.domain.completed import CompletedMessages
from bendybus.domain.entities import QueueDescription
from bendybus.domain.expiry import ExpiryWatch
from bendybus.domain.intake import Intake
from bendybus.domain.messages import SubQueue
from bendybus.domain.outbox import TransferOutbox
from bendybus.domain.stock import Stock
from bendybus.domain.tally import Tally
from bendybus.domain.vacant import VacantNumbers
from bendybus.names import PartitionNumber, SequenceNumber

__all__ = ["Parts"]


class Parts:
    __slots__ = ("aside_arriving", "completed", "expiry", "intake", "outbox", "stock", "vacant")

    def __init__(
        self,
        number: PartitionNumber,
        description: QueueDescription,
        next_number: SequenceNumber | None,
        partition_count: int,
        tally: Tally,
    ) -> None:
        self.expiry = ExpiryWatch()
        self.stock = Stock(number, description, self.expiry, tally)
        self.vacant = VacantNumbers()
        self.intake = Intake(
            number,
            description,
            next_number,
            self.stock.shelves[SubQueue.MAIN],
            self.expiry,
            partition_count,
            self.vacant,
        )
        self.outbox = TransferOutbox(self.intake, self.stock)
        self.completed = CompletedMessages(self.stock, self.intake)
        self.aside_arriving = 0
        """How many unconfirmed messages are dead letters or deferred already."""
