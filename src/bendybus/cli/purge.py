"""`bendybus purge`: delete messages by their state, with a progress bar.

The server deletes active messages or, if it cannot, they are received and deleted. Deferred and
scheduled messages are found by peeking and removed by their sequence numbers; deferred messages of
a session while the session is locked. Messages that another client has locked stay. The command
then reports that and fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import click

from bendybus.amqp.types import Array, Int, Timestamp, UInt
from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import Choices, confirm, entity_argument, yes_option
from bendybus.cli.output import note, show_one
from bendybus.cli.receive import State, peeked, session_filter
from bendybus.cli.tables import progress
from bendybus.client import BusClient
from bendybus.errors import (
    ArgumentError,
    InvalidOperation,
    MessageNotFound,
    NotSupported,
    OperationTimeout,
    SessionCannotBeLocked,
)
from bendybus.names import PARTITION_SHIFT

__all__ = ["purge", "purge_messages"]

# Azure's limit for one call in the Standard tier.
BATCH: Final = 500
GRACE_S: Final = 60

# One answer to a request for deferred messages has to hold them all.
BATCH_BY_NUMBER: Final = 100

# An empty queue says so when it is drained, over all partitions; this is for a server that does not.
WAIT_S: Final = 0.3

# More remaining messages than this are not counted.
LEFT_MAX: Final = 1000


@click.command
@entity_argument
@click.option(
    "--state",
    type=Choices(State),
    multiple=True,
    help="Which messages; may be repeated.",
    show_default="all of them",
)
@yes_option
@server_command
def purge(command: Command, entity: str, state: tuple[State, ...], yes: bool) -> None:
    """Delete messages and keep the entity."""
    states = list(state or State)
    confirm(f"Delete the {', '.join(states)} messages of '{entity}'?", yes)
    purge_messages(command, entity, states)


def purge_messages(command: Command, entity: str, states: list[State]) -> None:
    purged: dict[str, int] = {str(state): 0 for state in states}
    began_ms = round(time.time() * 1000)
    with bus_client(command) as client, progress() as bar:
        for state in states:
            task = bar.add_task(f"Purging {state} messages", total=None)
            for count in _PURGES[state](client, entity):
                purged[state] += count
                bar.update(task, completed=purged[state])
            bar.update(task, total=purged[state])
        left = _left(client, entity, states, began_ms)
    if command.as_json:
        show_one({"entity": entity, "purged": sum(purged.values()), **purged, "left": left}, command.output)
    else:
        told = ", ".join(f"{count} {state}" for state, count in purged.items())
        note(f"Purged '{entity}': {told}.")
    if left:
        shown = f"At least {LEFT_MAX}" if left == LEFT_MAX else str(left)
        raise InvalidOperation(
            f"{shown} message{'' if left == 1 else 's'} of '{entity}' could not be deleted, because "
            "receivers have locked them. Purge again when they are settled or their locks have ended."
        )


def _left(client: BusClient, entity: str, states: list[State], began_ms: int) -> int:
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
    for share in _shares(numbers):
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


def _shares(numbers: list[int]) -> Iterator[list[int]]:
    """Batches of numbers, each of one partition: Azure accepts one partition per request."""
    share: list[int] = []
    for number in numbers:
        other = bool(share) and number >> PARTITION_SHIFT != share[0] >> PARTITION_SHIFT
        if other or len(share) == BATCH_BY_NUMBER:
            yield share
            share = []
        share.append(number)
    if share:
        yield share


_PURGES: Final[dict[State, Callable[[BusClient, str], Iterator[int]]]] = {
    State.ACTIVE: _active,
    State.DEFERRED: _deferred,
    State.SCHEDULED: _scheduled,
}
