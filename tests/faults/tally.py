"""What became of every message that was sent through an SDK while stores and servers failed.

Counted in the manner of Jepsen's queue workload. Clients write down what they attempt before they ask, and
what was answered after. An SDK tells less than the wire (history.py has that), so there is one rule for each
count:

    attempted       handed to a sender
    acknowledged    the sender returned
    recovered       received, though its sender was never told that it arrived
    in doubt        its completion was asked for, and no answer came
    repeated        received again after such a completion: nobody could know

and what no fault excuses:

    lost            acknowledged, never received
    duplicated      completed twice, handed out again after its completion was answered, or stored twice
    unexpected      received and never sent, or not as it was sent
    disordered      acknowledged messages of one key or session, not in the order in which they were sent

A message that nobody tried to complete may come any number of times: its lock ended, or went with a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

__all__ = ["Counts", "Received", "Tally"]

PARTITION_SHIFT: Final = 48


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery, as the SDK gave it to us."""

    message_id: str
    body: bytes
    sequence_number: int
    locked_at: float
    """When the broker handed it out, in seconds since the epoch. What an SDK had in its buffer is older."""


@dataclass(slots=True)
class _Message:
    body: bytes
    acknowledged: bool = False
    numbers: set[int] = field(default_factory=set)
    deliveries: int = 0
    doubtful: bool = False
    """A completion was asked for and not answered."""
    repeated: int = 0
    completions: list[float] = field(default_factory=list)
    """When each answered one was answered."""


@dataclass(slots=True)
class Counts:
    attempted: int
    acknowledged: int
    recovered: int
    completed: int
    in_doubt: int
    repeated: int
    violations: dict[str, list[str]]

    @property
    def holds(self) -> bool:
        return not any(self.violations.values())


class Tally:
    """Of one entity."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        self._streams: dict[str, list[str]] = {}
        self._violations: dict[str, list[str]] = {
            "lost": [],
            "duplicated": [],
            "unexpected": [],
            "disordered": [],
        }
        self.open = 0
        """Acknowledged and not completed, for all that is known."""

    # -- what the clients say ----------------------------------------------------------

    def attempt(self, message_id: str, body: bytes, stream: str | None = None) -> None:
        """About to be sent; a stream is what keeps its order."""
        assert message_id not in self._messages, "ids are used once"
        self._messages[message_id] = _Message(body)
        if stream is not None:
            self._streams.setdefault(stream, []).append(message_id)

    def acknowledge(self, message_id: str) -> None:
        message = self._messages[message_id]
        message.acknowledged = True
        self.open += not message.completions

    def receive(self, received: Received) -> bool:
        """Whether it is one of ours, and so to be completed."""
        message = self._messages.get(received.message_id)
        if message is None or message.body != received.body:
            self._violate("unexpected", f"{received.message_id} at {received.sequence_number}")
            return False
        message.deliveries += 1
        message.numbers.add(received.sequence_number)
        if message.doubtful and not message.completions:
            message.repeated += 1
        if any(received.locked_at > completed_at for completed_at in message.completions):
            self._violate("duplicated", f"{received.message_id} came again after its completion")
        return True

    def complete(self, message_id: str, at: float) -> None:
        """Its completion was answered, at this time."""
        message = self._messages[message_id]
        if message.completions:
            self._violate("duplicated", f"{message_id} was completed twice")
        elif message.acknowledged:
            self.open -= 1
        message.completions.append(at)

    def doubt(self, message_id: str) -> None:
        """Its completion was asked for and refused, or nobody answered."""
        self._messages[message_id].doubtful = True

    # -- what became of it -------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many must still come."""
        return sum(message.acknowledged and not message.deliveries for message in self._messages.values())

    def counts(self) -> Counts:
        """When everything has been received that there is."""
        self._find_lost()
        self._find_stored_twice()
        self._find_disorder()
        messages = self._messages.values()
        return Counts(
            attempted=len(messages),
            acknowledged=sum(message.acknowledged for message in messages),
            recovered=sum(bool(message.deliveries) and not message.acknowledged for message in messages),
            completed=sum(bool(message.completions) for message in messages),
            in_doubt=sum(message.doubtful and not message.completions for message in messages),
            repeated=sum(message.repeated for message in messages),
            violations=self._violations,
        )

    def _find_lost(self) -> None:
        for message_id, message in self._messages.items():
            if message.acknowledged and not message.deliveries:
                self._violate("lost", message_id)
            elif message.deliveries and not message.completions and not message.doubtful:
                self._violate("lost", f"{message_id}, which nobody asked to complete")

    def _find_stored_twice(self) -> None:
        for message_id, message in self._messages.items():
            if len(message.numbers) > 1:
                self._violate("duplicated", f"{message_id} has the numbers {sorted(message.numbers)}")

    def _find_disorder(self) -> None:
        for stream, ids in self._streams.items():
            # One that was never acknowledged may have been stored at any later time: it was in a socket, say.
            told = [message for each in ids if (message := self._messages[each]).acknowledged]
            numbers = [min(message.numbers) for message in told if message.numbers]
            if numbers != sorted(numbers) or len({number >> PARTITION_SHIFT for number in numbers}) > 1:
                self._violate("disordered", f"{stream}: {_first_fault(numbers)}")

    def _violate(self, kind: str, what: str) -> None:
        self._violations[kind].append(what)


def _first_fault(numbers: Sequence[int]) -> str:
    for before, after in pairwise(numbers):
        if after < before or after >> PARTITION_SHIFT != before >> PARTITION_SHIFT:
            return f"{after} was sent after {before}"
    return ""
