"""Putting back completed messages that the server has kept. Only Bendybus keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bendybus.amqp.types import Array
from bendybus.client import BusClient
from bendybus.operations.deferred import shares

__all__ = ["Replaying"]

# A request for as many numbers is small, and its answer comes soon.
BATCH_BY_NUMBER = 1000


@dataclass(slots=True)
class Replaying:
    """A replay on the server. `count` first: it fixes which messages are meant."""

    client: BusClient
    entity: str
    session_id: str | None = None
    key: str | None = None
    selector: str | None = None
    numbers: Sequence[int] = ()
    completed_from_ms: int | None = None
    completed_before_ms: int | None = None
    enqueued_from_ms: int | None = None
    enqueued_before_ms: int | None = None
    unavailable: int = 0
    """How many partitions could not be asked in the last pass."""

    def count(self) -> int:
        """How many messages would be put back. What is completed from now on is not among them."""
        return sum(self._requests(dry_run=True))

    def run(self) -> Iterator[int]:
        """Put them back. Yields how many, batch after batch."""
        return self._requests(dry_run=False)

    def _requests(self, *, dry_run: bool) -> Iterator[int]:
        self.unavailable = 0
        if self.numbers:
            for share in shares(list(self.numbers), BATCH_BY_NUMBER):
                yield from self._pages({"sequence-numbers": Array(int, [*share]), "dry-run": dry_run})
        else:
            yield from self._pages({"dry-run": dry_run})

    def _pages(self, which: dict[str, object]) -> Iterator[int]:
        management = self.client.management(self.entity)
        first: int | None = 0
        while first is not None:
            fields: dict[str, object] = {
                "session-id": self.session_id,
                "key": self.key,
                "selector": self.selector,
                "completed-from": self.completed_from_ms,
                "completed-before": self.completed_before_ms,
                "enqueued-from": self.enqueued_from_ms,
                "enqueued-before": self.enqueued_before_ms,
            }
            given = {name: value for name, value in fields.items() if value is not None}
            asked = {**given, **which, "from-sequence-number": first}
            answer = management.request("bendybus:replay", asked) or {}
            # By the server's clock, so that the next requests are about the same messages.
            self.completed_before_ms = int(answer["completed-before"])
            self.unavailable += int(answer["unavailable"])
            first = answer["next"]
            yield int(answer["count"])
