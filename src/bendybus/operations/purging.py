"""Deleting messages by their state, session or properties, a batch at a time.

Bendybus deletes them itself (`Purging`). Elsewhere the server deletes active messages or, if it cannot, they
are received and deleted; deferred and scheduled messages are found by peeking and removed by their sequence
numbers; deferred messages of a session while the session is locked. Messages that another client has locked
stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bendybus.amqp.types import Array, Int, Timestamp, UInt
from bendybus.client import BusClient
from bendybus.errors import (
    ArgumentError,
    InvalidOperation,
    MessageNotFound,
    NotSupported,
    OperationTimeout,
    SessionCannotBeLocked,
)
from bendybus.operations.deferred import shares
from bendybus.operations.peeking import State, peeked, session_filter

__all__ = ["LEFT_MAX", "Purging", "messages_left", "purged"]

# Azure's limit for one call in the Standard tier.
BATCH: Final = 500
GRACE_S: Final = 60

# One answer to a request for deferred messages has to hold them all.
BATCH_BY_NUMBER: Final = 100

# An empty queue says so when it is drained, over all partitions; this is for a server that does not.
WAIT_S: Final = 0.3

# More remaining messages than this are not counted.
LEFT_MAX: Final = 1000


@dataclass(slots=True)
class Purging:
    """A purge on the server: of some states, and perhaps of one session or by a selector."""

    client: BusClient
    entity: str
    states: Sequence[State]
    session_id: str | None = None
    selector: str | None = None
    dead_letter: tuple[str, str] | None = None
    """Reason and description, if the messages are not deleted but dead-lettered."""
    locked: int = 0
    """How many stay, because receivers have locked them."""

    def run(self) -> Iterator[int]:
        """Yields how many went, batch after batch. `NotSupported` where the server is not Bendybus."""
        # Messages that are enqueued later stay. The margin is for a clock that is behind the server's.
        asked: dict[str, object] = {
            "states": Array(int, [list(State).index(state) for state in self.states]),
            "enqueued-before": round((time.time() + GRACE_S) * 1000),
        }
        if State.SCHEDULED in self.states:
            # Those have the time at which they are due.
            del asked["enqueued-before"]
        asked |= {} if self.session_id is None else {"session-id": self.session_id}
        asked |= {} if self.selector is None else {"selector": self.selector}
        if self.dead_letter is not None:
            reason, description = self.dead_letter
            asked |= {"dead-letter": True, "deadletter-reason": reason, "deadletter-description": description}
        management = self.client.management(self.entity)
        first: int | None = 0
        while first is not None:
            answer = management.request("bendybus:purge", {**asked, "from-sequence-number": first}) or {}
            self.locked += int(answer.get("locked", 0))
            first = answer.get("next")
            yield int(answer.get("removed", 0))


def purged(client: BusClient, entity: str, state: State) -> Iterator[int]:
    """Delete all messages in this state. Yields how many, batch after batch."""
    try:
        yield from Purging(client, entity, [state]).run()
    except NotSupported:
        yield from _PURGES[state](client, entity)


def messages_left(client: BusClient, entity: str, states: list[State], began_ms: int) -> int:
    """How many of the messages that were there at the start remain."""
    wanted = {list(State).index(state) for state in states}
    stayed = (
        message
        for message in peeked(client.management(entity))
        if message.state in wanted and message.enqueued_time_ms < began_ms
    )
    return sum(1 for _ in islice(stayed, LEFT_MAX))


def _active(client: BusClient, entity: str) -> Iterator[int]:
    try:
        yield from _deleted(client, entity)
    except (ArgumentError, InvalidOperation, NotSupported):
        # Azure does not delete in batches from partitioned entities.
        yield from _received(client, entity)


def _deleted(client: BusClient, entity: str) -> Iterator[int]:
    # Messages that are enqueued later stay. The margin is for a clock that is behind the server's.
    before = Timestamp(round((time.time() + GRACE_S) * 1000))
    asked = {"message-count": Int(BATCH), "enqueued-time-utc": before}
    management = client.management(entity)
    while answer := management.request("com.microsoft:batch-delete-messages", asked):
        yield int(answer["message-count"])


def _received(client: BusClient, entity: str) -> Iterator[int]:
    receiver = client.receiver(entity, deletes=True)
    while taken := receiver.receive(BATCH, timeout_s=WAIT_S):
        yield len(taken)
    receiver.close()


def _deferred(client: BusClient, entity: str) -> Iterator[int]:
    deferred = list(peeked(client.management(entity), state=State.DEFERRED))
    numbers = [message.sequence_number for message in deferred]
    try:
        yield from _taken(client, entity, numbers)
    except (ArgumentError, InvalidOperation):
        # An entity with sessions gives a deferred message only to the one who holds its session.
        by_session: dict[str, list[int]] = {}
        for message in deferred:
            by_session.setdefault(message.session_id or "", []).append(message.sequence_number)
        for session_id, share in by_session.items():
            yield from _taken_in_session(client, entity, session_id, share)


def _taken(
    client: BusClient, entity: str, numbers: list[int], session_id: str | None = None
) -> Iterator[int]:
    # 0 is receive-and-delete.
    also: dict[str, object] = {"receiver-settle-mode": UInt(0)}
    if session_id is not None:
        also["session-id"] = session_id
    return _by_number(client, entity, numbers, "com.microsoft:receive-by-sequence-number", also)


def _taken_in_session(client: BusClient, entity: str, session_id: str, numbers: list[int]) -> Iterator[int]:
    receiver = client.receiver(entity, filters=session_filter(session_id))
    try:
        receiver.check()
    except (SessionCannotBeLocked, OperationTimeout):
        # Another receiver holds it: its messages stay, and are counted with those that do.
        return
    yield from _taken(client, entity, numbers, session_id)
    receiver.close()


def _scheduled(client: BusClient, entity: str) -> Iterator[int]:
    found = peeked(client.management(entity), state=State.SCHEDULED)
    numbers = [message.sequence_number for message in found]
    return _by_number(client, entity, numbers, "com.microsoft:cancel-scheduled-message", {})


def _by_number(
    client: BusClient, entity: str, numbers: list[int], operation: str, also: dict[str, object]
) -> Iterator[int]:
    management = client.management(entity)
    for share in shares(numbers, BATCH_BY_NUMBER):
        try:
            management.request(operation, {"sequence-numbers": Array(int, [*share]), **also})
            yield len(share)
        except MessageNotFound:
            # One of them came due or was taken meanwhile, and the request is all or none.
            yield sum(_one(management.request, operation, number, also) for number in share)


def _one(request: Callable[..., object], operation: str, number: int, also: dict[str, object]) -> int:
    try:
        request(operation, {"sequence-numbers": Array(int, [number]), **also})
    except MessageNotFound:
        return 0
    return 1


_PURGES: Final[dict[State, Callable[[BusClient, str], Iterator[int]]]] = {
    State.ACTIVE: _active,
    State.DEFERRED: _deferred,
    State.SCHEDULED: _scheduled,
}
