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

A message that several subscriptions are to get is as many messages here, one *group*. A transaction
is a group, too, and what it completes belongs to it.

Violations are what no crash excuses: *lost*, *duplicated*, *unexpected*, *resurrected* (seen after its
completion was answered, or where it had left), *disordered*, *torn* (part of a group), *forgotten* (a
settlement or a session's state that was answered has left no trace), *early* (before its time), *refused*
(an error where there is no reason for one).
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
    EARLY = "early"
    REFUSED = "refused"


class Place(Enum):
    """Where a message was met."""

    MAIN = "main"
    DEFERRED = "deferred"
    DEAD_LETTER = "dead-letter"
    FORWARDED = "forwarded"
    """Where the dead letters of its queue are forwarded to."""


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
    at: float = 0.0
    """Seconds since the epoch."""


@dataclass(slots=True)
class _Message:
    message_id: str
    stream: str
    body: bytes
    group: str | None
    due: float
    position: int
    """In its stream."""
    acknowledged: bool = False
    deliveries: int = 0
    numbers: dict[bool, set[int]] = field(default_factory=lambda: {False: set(), True: set()})
    """Where it was sent to, and where its queue's dead letters are forwarded to."""
    forwarded_in: int | None = None
    """The first generation in which it was met there."""
    last_link: tuple[int, str] | None = None
    abandoned: int = 0
    rolled_back: bool = False
    cancelling: bool = False
    """Asked, and neither refused nor shown not to have happened."""
    last_asked: Settlement | None = None
    """What was asked last, whether answered or not; None when it was met again where it had been."""
    asked_in: int | None = None
    """The generation that was asked to complete it, unless it was seen again in a later one."""
    completed_in: int | None = None
    settled_last: Settlement | None = None
    """The last settlement, once it is answered; None while one is under way or unknown."""

    @property
    def arrived(self) -> bool:
        return self.deliveries > 0 or self.completed_in is not None

    @property
    def waits(self) -> bool:
        """Whether it must still be there, for all that is known."""
        gone = self.cancelling or self.asked_in is not None or self.completed_in is not None
        return self.acknowledged and not gone


@dataclass(frozen=True, slots=True)
class _Transaction:
    """What it was to complete, in which generation; its messages are the group of this name."""

    group: str
    completes: _Message
    generation: int


@dataclass(slots=True)
class _SessionState:
    answered: bytes | None = None
    asked: list[bytes] = field(default_factory=list)
    """Since the last that was answered: any of them may have happened."""


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
        self._groups: dict[str, list[_Message]] = {}
        self._transactions: list[_Transaction] = []
        self._states: dict[str, _SessionState] = {}
        self._seen_in: dict[str, int] = {}
        self._fronts: dict[tuple[int, str, int], int] = {}
        self._violations: list[tuple[Violation, str]] = []
        self.open = 0
        """Acknowledged and not completed, as far as the clients know."""
        self.completed = 0
        self._acknowledged = 0

    @property
    def progress(self) -> tuple[int, int]:
        """How often something was acknowledged, and how often something was completed."""
        return self._acknowledged, self.completed

    # -- sending -----------------------------------------------------------------------

    def attempt(
        self,
        ids: Sequence[str],
        streams: str | Sequence[str],
        bodies: Iterable[bytes],
        *,
        due: float = 0.0,
        group: str | None = None,
    ) -> None:
        """One send is about to go out; several ids are one group. A stream is what is kept in order."""
        if group is None and len(ids) > 1:
            group = ids[0]
        if isinstance(streams, str):
            streams = [streams] * len(ids)
        for message_id, name, body in zip(ids, streams, bodies, strict=True):
            assert message_id not in self._messages, "ids are used once"
            stream = self._streams.setdefault(name, [])
            message = _Message(message_id, name, body, group, due, len(stream))
            self._messages[message_id] = message
            stream.append(message)
            if group is not None:
                self._groups.setdefault(group, []).append(message)

    def acknowledge(self, ids: Sequence[str]) -> None:
        """Also a second time, of a message that was sent twice to be dropped once."""
        for message_id in ids:
            message = self._messages[message_id]
            self.open += not message.acknowledged and message.completed_in is None
            message.acknowledged = True
        self._acknowledged += len(ids)

    def roll_back(self, ids: Sequence[str]) -> None:
        """Not to be seen from now on, whether the rollback is answered or not."""
        for message_id in ids:
            self._messages[message_id].rolled_back = True

    @property
    def waiting(self) -> int:
        """How many are to come, for all that is known."""
        return sum(message.waits for message in self._messages.values())

    @property
    def last_due(self) -> float:
        return max((message.due for message in self._messages.values()), default=0.0)

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
        message.cancelling = False
        message.numbers[seen.place is Place.FORWARDED].add(seen.sequence_number)
        self._seen_in[seen.message_id] = max(self._seen_in.get(seen.message_id, 0), seen.generation)
        if message.rolled_back:
            self._violate(Violation.UNEXPECTED, f"{seen.message_id} was rolled back")
        if seen.at < message.due:
            self._violate(Violation.EARLY, f"{seen.message_id} came {message.due - seen.at:.3f} s early")
        if message.asked_in is not None and seen.generation > message.asked_in:
            message.asked_in = None  # it was asked and did not happen
        done = message.completed_in
        # What was read from a socket late may have been sent by a process that was killed long ago.
        if done is not None and seen.generation >= done:
            self._violate(
                Violation.RESURRECTED, f"{seen.message_id} was completed in {done}, seen in {seen.generation}"
            )
        self._check_traces(message, seen)
        self._check_forwarding(message, seen)
        if seen.place is Place.MAIN and seen.delivery_count == 0:
            self._check_front(message, seen)
        message.last_link = seen.generation, seen.link
        if seen.place is Place.MAIN:
            message.last_asked = None
        return True

    def deliver_in_session(self, seen: Seen) -> bool:
        """The same on the link that holds the session, which is a stream: whoever comes before has come."""
        link = seen.generation, seen.link
        known = self.deliver(seen)
        if known:
            message = self._messages[seen.message_id]
            # From the end: what came before the last that this link was given has been looked at.
            stream = self._streams[message.stream]
            for earlier in reversed(stream[: message.position]):
                if earlier.last_link == link:
                    break
                if earlier.waits and earlier.last_asked is None:
                    self._violate(
                        Violation.DISORDERED, f"{seen.message_id} came, and {earlier.message_id} waits"
                    )
        return known

    def settling(self, message_id: str, how: Settlement, generation: int) -> None:
        """About to be asked."""
        message = self._messages[message_id]
        message.settled_last, message.last_asked = None, how
        if how is Settlement.COMPLETE:
            message.asked_in = generation

    def settled(self, message_id: str, how: Settlement, generation: int) -> None:
        """Answered: from now on it counts."""
        message = self._messages[message_id]
        message.settled_last = how
        if how is Settlement.COMPLETE:
            message.completed_in = generation
            self.completed += 1
            self.open -= message.acknowledged
        elif how is Settlement.ABANDON:
            message.abandoned += 1

    def cancelling(self, message_id: str) -> None:
        """A scheduled message is about to be cancelled."""
        self._messages[message_id].cancelling = True

    def cancelled(self, message_id: str, generation: int, succeeded: bool) -> None:
        """Then it is done with, as one that was completed is; or it was due meanwhile."""
        message = self._messages[message_id]
        message.cancelling = False
        if succeeded:
            self.settled(message_id, Settlement.COMPLETE, generation)

    def committing(self, group: str, completes: str | None, generation: int) -> None:
        """A transaction that sends this group is about to be committed."""
        if completes is not None:
            self.settling(completes, Settlement.COMPLETE, generation)
            self._transactions.append(_Transaction(group, self._messages[completes], generation))

    def committed(self, group: str, completes: str | None, generation: int) -> None:
        self.acknowledge([message.message_id for message in self._groups[group]])
        if completes is not None:
            self.settled(completes, Settlement.COMPLETE, generation)

    # -- sessions ----------------------------------------------------------------------

    def setting_state(self, session_id: str, state: bytes) -> None:
        self._states.setdefault(session_id, _SessionState()).asked.append(state)

    def state_set(self, session_id: str, state: bytes) -> None:
        self._states[session_id] = _SessionState(answered=state)

    def state_found(self, session_id: str, state: bytes | None) -> None:
        """By whoever holds the session, so that nobody sets it meanwhile."""
        known = self._states.setdefault(session_id, _SessionState())
        if state != known.answered and state not in known.asked:
            self._violate(
                Violation.FORGOTTEN, f"the state of {session_id} is {state!r} and not {known.answered!r}"
            )
        self._states[session_id] = _SessionState(answered=state)

    def _check_traces(self, message: _Message, seen: Seen) -> None:
        """An answered settlement that was not a completion shows at the next delivery."""
        expected = {Settlement.DEFER: Place.DEFERRED, Settlement.DEAD_LETTER: Place.DEAD_LETTER}
        place = expected.get(message.settled_last) if message.settled_last is not None else None
        moved_on = place is Place.DEAD_LETTER and seen.place is Place.FORWARDED
        if place is not None and seen.place is not place and not moved_on:
            self._violate(Violation.FORGOTTEN, f"{seen.message_id} went to {place}, but is in {seen.place}")
        if seen.delivery_count < message.abandoned:
            self._violate(
                Violation.FORGOTTEN,
                f"{seen.message_id} was abandoned {message.abandoned} times and counts {seen.delivery_count}",
            )

    def _check_forwarding(self, message: _Message, seen: Seen) -> None:
        """A dead letter is forwarded once, and has then left where it was."""
        if seen.place is not Place.FORWARDED:
            if message.forwarded_in is not None and seen.generation >= message.forwarded_in:
                self._violate(Violation.RESURRECTED, f"{seen.message_id} was forwarded, and is still there")
        elif message.forwarded_in is None:
            message.forwarded_in = seen.generation

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
        self._find_torn_groups()
        self._find_torn_transactions()
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
            if message.waits:
                text = f"{message.message_id} of {message.stream}, seen {message.deliveries} times"
                self._violate(Violation.LOST, text)

    def _find_duplicates(self) -> None:
        for message in self._messages.values():
            for numbers in message.numbers.values():
                if len(numbers) > 1:
                    self._violate(
                        Violation.DUPLICATED, f"{message.message_id} has the numbers {sorted(numbers)}"
                    )

    def _find_disorder(self) -> None:
        """A stream is in one partition (P-12), and its numbers there are in the order of sending."""
        for stream, messages in self._streams.items():
            numbers = [min(message.numbers[False]) for message in messages if message.numbers[False]]
            if numbers != sorted(numbers):
                self._violate(Violation.DISORDERED, f"{stream}: {numbers}")
            if len({number >> PARTITION_SHIFT for number in numbers}) > 1:
                self._violate(Violation.DISORDERED, f"{stream} is spread over several partitions")

    def _find_torn_groups(self) -> None:
        """A batch, a transaction, a message for several subscriptions: whole or not at all (P-18, P-23)."""
        for group, messages in self._groups.items():
            arrived = sum(message.arrived for message in messages)
            if 0 < arrived < len(messages):
                self._violate(Violation.TORN, f"{arrived} of {len(messages)} messages of {group}")

    def _find_torn_transactions(self) -> None:
        """What it sent is there, and what it completed is not; or the other way round (P-23)."""
        for each in self._transactions:
            message_id = each.completes.message_id
            completed = self._seen_in.get(message_id, 0) <= each.generation
            arrived = any(message.arrived for message in self._groups[each.group])
            if completed is not arrived:
                self._violate(
                    Violation.TORN,
                    f"{each.group} {'came' if arrived else 'never came'}, {message_id} "
                    f"was {'' if completed else 'not '}completed with it",
                )

    def _violate(self, kind: Violation, what: str) -> None:
        self._violations.append((kind, what))
