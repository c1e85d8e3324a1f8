"""Sessions as tools see them: their ids, their states, and what is done to a whole session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bendybus.amqp.types import Int, Timestamp
from bendybus.client import BusClient, Receiver
from bendybus.errors import NotSupported
from bendybus.operations.deferred import DeferredMessages
from bendybus.operations.peeking import State, peeked, session_filter
from bendybus.operations.purging import Purging

__all__ = ["dead_lettered", "held_session", "session_ids", "session_state", "set_session_state"]

# The year 10000: all sessions that have messages or a state, and not those whose state was set since a time.
ALL_SESSIONS: Final = 253_402_300_800_000

PAGE: Final = 100
BATCH: Final = 100
# An empty session says so when its link is drained; this is for a server that does not.
WAIT_S: Final = 0.5


def session_ids(client: BusClient, entity: str) -> Iterator[str]:
    """Sessions with messages or a state, partition after partition."""
    skip = 0
    while True:
        asked = {"last-updated-time": Timestamp(ALL_SESSIONS), "skip": Int(skip), "top": Int(PAGE)}
        answer = client.management(entity).request("com.microsoft:get-message-sessions", asked)
        found = [] if answer is None else [str(each) for each in answer["sessions-ids"].values]
        yield from found
        skip += len(found)
        if len(found) < PAGE:
            return


def held_session(client: BusClient, entity: str, session_id: str) -> Receiver:
    """A receiver that holds the session; `SessionCannotBeLocked` while another one does."""
    receiver = client.receiver(entity, filters=session_filter(session_id))
    receiver.check()
    return receiver


def session_state(client: BusClient, entity: str, session_id: str) -> bytes | None:
    """The session is held while its state is read: others have to wait so long."""
    receiver = held_session(client, entity, session_id)
    answer = client.management(entity).request("com.microsoft:get-session-state", {"session-id": session_id})
    receiver.close()
    state = (answer or {}).get("session-state")
    return state if isinstance(state, bytes) else None


def set_session_state(client: BusClient, entity: str, session_id: str, state: bytes | None) -> None:
    receiver = held_session(client, entity, session_id)
    asked = {"session-id": session_id, "session-state": state}
    client.management(entity).request("com.microsoft:set-session-state", asked)
    receiver.close()


def dead_lettered(
    client: BusClient, entity: str, session_id: str, reason: str, description: str
) -> Iterator[int]:
    """Dead-letter the messages of a session, deferred ones too. Yields how many, batch after batch.

    Bendybus does it itself, and what a receiver has locked stays. Elsewhere the session is held meanwhile.
    """
    states, why = (State.ACTIVE, State.DEFERRED), (reason, description)
    try:
        yield from Purging(client, entity, states, session_id, dead_letter=why).run()
    except NotSupported:
        yield from _dead_lettered_by_holding(client, entity, session_id, reason, description)


def _dead_lettered_by_holding(
    client: BusClient, entity: str, session_id: str, reason: str, description: str
) -> Iterator[int]:
    receiver = held_session(client, entity, session_id)
    while messages := receiver.receive(BATCH, timeout_s=WAIT_S):
        receiver.dead_letter(messages, reason, description)
        yield len(messages)
    found = peeked(client.management(entity), state=State.DEFERRED, session_id=session_id)
    numbers = [message.sequence_number for message in found]
    deferred = DeferredMessages(client, entity, session_id)
    for start in range(0, len(numbers), BATCH):
        messages = deferred.receive(numbers[start : start + BATCH])
        deferred.settle(messages, "dead_letter", reason, description)
        yield len(messages)
    receiver.close()
