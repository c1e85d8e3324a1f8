"""What clients did and saw while a server was being killed, and what must hold of it.

In the manner of Jepsen's queue workload: clients write down what they attempt
before they ask, and what was answered after; the verdict needs nothing else. A
*generation* is the life of one server process. Locks live in its memory, so
that in each new generation every message may come again which was not completed.

An unanswered request may or may not have happened, and both are right:

    attempted       every message handed to a sender
    acknowledged    those whose acceptance was answered
    recovered       never answered, but delivered: it had happened
    completed       those whose completion was answered
    in doubt        asked to be completed, never answered, never seen again

Violations are what no crash excuses: *lost*, *duplicated*, *unexpected*, *resurrected* (seen after its
completion was answered), *disordered*, *torn* (part of a batch), *forgotten* (a settlement that was
answered has left no trace), *refused* (an error where there is no reason for one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["History", "Place", "Seen", "Settlement", "Verdict", "Violation"]

PARTITION_SHIFT = 48


class Settlement(Enum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


class Violation(Enum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    RESURRECTED = "resurrected"
    DISORDERED = "disordered"
    TORN = "torn"
    FORGOTTEN = "forgotten"
    REFUSED = "refused"


class Place(Enum):
    """Where a message was met."""

    MAIN = "main"
    DEFERRED = "deferred"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Seen:
    """One delivery, as its receiver took it from its socket."""

    message_id: str
    body: bytes
    sequence_number: int
    delivery_count: int
    generation: int
    link: str
    place: Place = Place.MAIN


@dataclass(slots=True)
class _Message:
    message_id: str
    stream: str
    body: bytes
    batch: str | None
    acknowledged: bool = False
    deliveries: int = 0
    numbers: set[int] = field(default_factory=set)
    abandoned: int = 0
    asked_in: int | None = None
    """The generation that was asked to complete it, unless it was seen again in a later one."""
    completed_in: int | None = None
    settled_last: Settlement | None = None
    """The last settlement, once it is answered; None while one is under way or unknown."""


@dataclass(slots=True)
class Verdict:
    attempted: int
    acknowledged: int
    recovered: int
    completed: int
    in_doubt: int
    redelivered: int
    violations: list[tuple[Violation, str]]

    def count(self, violation: Violation) -> int:
        return sum(kind is violation for kind, _ in self.violations)

    @property
    def holds(self) -> bool:
        return not self.violations


class History:
    """Everything that happened, told by the clients; `verdict` when all is over."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        self._streams: dict[str, list[_Message]] = {}
        self._batches: dict[str, list[_Message]] = {}
        self._fronts: dict[tuple[int, str, int], int] = {}
        self._violations: list[tuple[Violation, str]] = []
        self.open = 0
        """Acknowledged and not completed, as far as the clients know."""

    # -- sending -----------------------------------------------------------------------

    def attempt(self, ids: Sequence[str], stream: str, bodies: Iterable[bytes]) -> None:
        """One send is about to go out; several ids are one batch. A stream is what is kept in order."""
        batch = ids[0] if len(ids) > 1 else None
        for message_id, body in zip(ids, bodies, strict=True):
            assert message_id not in self._messages, "ids are used once"
            message = _Message(message_id, stream, body, batch)
            self._messages[message_id] = message
            self._streams.setdefault(stream, []).append(message)
            if batch is not None:
                self._batches.setdefault(batch, []).append(message)

    def acknowledge(self, ids: Sequence[str]) -> None:
        for message_id in ids:
            self._messages[message_id].acknowledged = True
        self.open += len(ids)

    def refuse(self, what: str) -> None:
        self._violate(Violation.REFUSED, what)

    # -- receiving ---------------------------------------------------------------------

    def deliver(self, seen: Seen) -> bool:
        """Whether this is a message that was sent, and so one to be settled."""
        message = self._messages.get(seen.message_id)
        if message is None or message.body != seen.body:
            self._violate(
                Violation.UNEXPECTED, f"{seen.message_id} at {seen.sequence_number} was never sent so"
            )
            return False
        message.deliveries += 1
        message.numbers.add(seen.sequence_number)
        if message.asked_in is not None and seen.generation > message.asked_in:
            message.asked_in = None  # it was asked and did not happen
        done = message.completed_in
        # What was read from a socket late may have been sent by a process that was killed long ago.
        if done is not None and seen.generation >= done:
            self._violate(
                Violation.RESURRECTED, f"{seen.message_id} was completed in {done}, seen in {seen.generation}"
            )
        self._check_traces(message, seen)
        if seen.place is Place.MAIN and seen.delivery_count == 0:
            self._check_front(message, seen)
        return True

    def settling(self, message_id: str, how: Settlement, generation: int) -> None:
        """About to be asked."""
        message = self._messages[message_id]
        message.settled_last = None
        if how is Settlement.COMPLETE:
            message.asked_in = generation

    def settled(self, message_id: str, how: Settlement, generation: int) -> None:
        """Answered: from now on it counts."""
        message = self._messages[message_id]
        message.settled_last = how
        if how is Settlement.COMPLETE:
            message.completed_in = generation
            self.open -= message.acknowledged
        elif how is Settlement.ABANDON:
            message.abandoned += 1

    def _check_traces(self, message: _Message, seen: Seen) -> None:
        """An answered settlement that was not a completion shows at the next delivery."""
        expected = {Settlement.DEFER: Place.DEFERRED, Settlement.DEAD_LETTER: Place.DEAD_LETTER}
        place = expected.get(message.settled_last) if message.settled_last is not None else None
        if place is not None and seen.place is not place:
            self._violate(Violation.FORGOTTEN, f"{seen.message_id} went to {place}, but is in {seen.place}")
        if seen.delivery_count < message.abandoned:
            self._violate(
                Violation.FORGOTTEN,
                f"{seen.message_id} was abandoned {message.abandoned} times and counts {seen.delivery_count}",
            )

    def _check_front(self, message: _Message, seen: Seen) -> None:
        """One link gets what it gets for the first time in the order of each partition (P-26)."""
        front = (seen.generation, seen.link, seen.sequence_number >> PARTITION_SHIFT)
        before = self._fronts.get(front, -1)
        if seen.sequence_number <= before:
            self._violate(
                Violation.DISORDERED,
                f"{message.message_id} at {seen.sequence_number} came after {before} on {seen.link}",
            )
        self._fronts[front] = seen.sequence_number

    # -- the verdict -------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """To be asked when every queue has been emptied."""
        self._find_lost()
        self._find_duplicates()
        self._find_disorder()
        self._find_torn_batches()
        messages = self._messages.values()
        return Verdict(
            attempted=len(messages),
            acknowledged=sum(message.acknowledged for message in messages),
            recovered=sum(bool(message.deliveries) and not message.acknowledged for message in messages),
            completed=sum(message.completed_in is not None for message in messages),
            in_doubt=sum(
                message.asked_in is not None and message.completed_in is None for message in messages
            ),
            redelivered=sum(max(0, message.deliveries - 1) for message in messages),
            violations=self._violations,
        )

    def _find_lost(self) -> None:
        """Acknowledged, and neither completed nor perhaps completed, though every queue is empty."""
        for message in self._messages.values():
            if message.acknowledged and message.asked_in is None and message.completed_in is None:
                text = f"{message.message_id} of {message.stream}, seen {message.deliveries} times"
                self._violate(Violation.LOST, text)

    def _find_duplicates(self) -> None:
        for message in self._messages.values():
            if len(message.numbers) > 1:
                self._violate(
                    Violation.DUPLICATED, f"{message.message_id} has the numbers {sorted(message.numbers)}"
                )

    def _find_disorder(self) -> None:
        """A stream is in one partition (P-12), and its numbers there are in the order of sending."""
        for stream, messages in self._streams.items():
            numbers = [min(message.numbers) for message in messages if message.numbers]
            if numbers != sorted(numbers):
                self._violate(Violation.DISORDERED, f"{stream}: {numbers}")
            if len({number >> PARTITION_SHIFT for number in numbers}) > 1:
                self._violate(Violation.DISORDERED, f"{stream} is spread over several partitions")

    def _find_torn_batches(self) -> None:
        """A batch is there as a whole or not at all (P-18)."""
        for batch, messages in self._batches.items():
            arrived = sum(bool(message.deliveries) for message in messages)
            if 0 < arrived < len(messages):
                self._violate(Violation.TORN, f"{arrived} of {len(messages)} messages of batch {batch}")

    def _violate(self, kind: Violation, what: str) -> None:
        self._violations.append((kind, what))
