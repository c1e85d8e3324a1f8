"""`bendybus purge`: messages taken away by their state, with a bar that shows how far it has come.

Active messages are deleted by the server or, where it cannot, received for good; deferred and
scheduled ones are found by peeking and taken by their sequence numbers. What another client
holds under lock stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import click

from bendybus.amqp.types import Array, Int, Timestamp, UInt
from bendybus.cli.bus import bus_client
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import Choices, confirm, entity_argument, yes_option
from bendybus.cli.output import note, show_one
from bendybus.cli.receive import State, peeked
from bendybus.cli.tables import progress
from bendybus.client import BusClient
from bendybus.errors import ArgumentError, InvalidOperation, MessageNotFound, NotSupported

__all__ = ["purge", "purge_messages"]

# Azure's limit for one call in the Standard tier.
BATCH: Final = 500
GRACE_S: Final = 60

# One answer to a request for deferred messages has to hold them all.
BATCH_BY_NUMBER: Final = 100

# An empty queue says so when it is drained, over all partitions; this is for a server that does not.
WAIT_S: Final = 0.3

PARTITION_SHIFT: Final = 48


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
    with bus_client(command) as client, progress() as bar:
        for state in states:
            task = bar.add_task(f"Purging {state} messages", total=None)
            for count in _PURGES[state](client, entity):
                purged[state] += count
                bar.update(task, completed=purged[state])
            bar.update(task, total=purged[state])
    if command.as_json:
        show_one({"entity": entity, "purged": sum(purged.values()), **purged}, command.output)
    else:
        told = ", ".join(f"{count} {state}" for state, count in purged.items())
        note(f"Purged '{entity}': {told}.")


def _active(client: BusClient, entity: str) -> Iterator[int]:
    try:
        yield from _deleted(client, entity)
    except (ArgumentError, InvalidOperation, NotSupported):
        # Azure does not delete in batches from partitioned entities.
        yield from _received(client, entity)


def _deleted(client: BusClient, entity: str) -> Iterator[int]:
    # What is enqueued later is not chased after; the grace is for a clock that is behind the server's.
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
    # 0 is receive-and-delete.
    also: dict[str, object] = {"receiver-settle-mode": UInt(0)}
    return _by_number(client, entity, State.DEFERRED, "com.microsoft:receive-by-sequence-number", also)


def _scheduled(client: BusClient, entity: str) -> Iterator[int]:
    return _by_number(client, entity, State.SCHEDULED, "com.microsoft:cancel-scheduled-message", {})


def _by_number(
    client: BusClient, entity: str, state: State, operation: str, also: dict[str, object]
) -> Iterator[int]:
    management = client.management(entity)
    numbers = [message.sequence_number for message in peeked(management, state=state)]
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
    """So many at a time, and never of two partitions: Azure takes one partition's per request."""
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
