"""Looking at messages without taking them, by state or session; and the filter that accepts a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from bendybus.amqp.types import Described, Int, ULong
from bendybus.client import Management, ReceivedMessage

__all__ = ["SESSION_WAIT_MIN_S", "State", "peeked", "session_filter"]

PEEK_BATCH: Final = 250

# Connecting has to fit in as well.
SESSION_WAIT_MIN_S: Final = 2.0

# By which the SDKs describe the filter's value.
SESSION_FILTER_CODE: Final = 0x0000_0013_7000_000C


class State(StrEnum):
    """In the order of the numbers that the wire has for them."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"


def session_filter(session_id: str | None) -> Mapping[str, object]:
    """The source filter of a link to one session; None: the next free session."""
    return {"com.microsoft:session-filter": Described(ULong(SESSION_FILTER_CODE), session_id)}


def peeked(
    management: Management, first: int = 0, state: State | None = None, session_id: str | None = None
) -> Iterator[ReceivedMessage]:
    """All messages from a sequence number on (P-30)."""
    wanted = None if state is None else list(State).index(state)
    while True:
        asked: dict[str, object] = {"from-sequence-number": first, "message-count": Int(PEEK_BATCH)}
        if session_id is not None:
            asked["session-id"] = session_id
        answer = management.request("com.microsoft:peek-message", asked)
        if answer is None:
            return
        messages = [ReceivedMessage(found["message"]) for found in answer["messages"]]
        yield from (message for message in messages if wanted is None or message.state == wanted)
        first = max(message.sequence_number for message in messages) + 1
