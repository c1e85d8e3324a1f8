"""Peeking at messages with filters, and the filters of links that receive only some messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from bendybus.amqp.types import Array, Described, Int, ULong
from bendybus.client import Management, ReceivedMessage, Receiver
from bendybus.errors import NotSupported

__all__ = [
    "SESSION_WAIT_MIN_S",
    "State",
    "peeked",
    "refuse_ignored_filters",
    "selector_filter",
    "session_filter",
]

PEEK: Final = "bendybus:peek"
PEEK_BATCH: Final = 250

# Connecting has to fit in as well.
SESSION_WAIT_MIN_S: Final = 2.0

# By which the SDKs describe the filter's value.
SESSION_FILTER_CODE: Final = 0x0000_0013_7000_000C

SELECTOR: Final = "apache.org:selector-filter:string"
SELECTOR_CODE: Final = 0x0000_468C_0000_0004


class State(StrEnum):
    """In the order of the numbers that the wire has for them."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"


def session_filter(session_id: str | None) -> Mapping[str, object]:
    """The source filter of a link to one session; None: the next free session."""
    return {"com.microsoft:session-filter": Described(ULong(SESSION_FILTER_CODE), session_id)}


def peeked(
    management: Management,
    first: int = 0,
    state: State | None = None,
    session_id: str | None = None,
    selector: str | None = None,
    *,
    count: int = PEEK_BATCH,
    without_body: bool = False,
) -> Iterator[ReceivedMessage]:
    """All messages from a sequence number on (P-30). `selector` only where the server is Bendybus.

    `count` is how many the caller will look at, if that is known.
    """
    asked: dict[str, object] = {"from-sequence-number": first, "omit-message-body": without_body}
    # Without their bodies, as many as an answer may have.
    if not without_body:
        asked["message-count"] = min(count, PEEK_BATCH)
    if state is not None:
        asked["states"] = Array(int, [list(State).index(state)])
    if session_id is not None:
        asked["session-id"] = session_id
    if selector is not None:
        asked["selector"] = selector
    try:
        answer = management.request(PEEK, asked)
    except NotSupported:
        if selector is not None:
            raise NotSupported("This server does not offer selectors when messages are peeked.") from None
        yield from _peeked_anywhere(management, first, state, session_id, min(count, PEEK_BATCH))
        return
    while answer is not None:
        yield from map(ReceivedMessage, answer["messages"])
        following = answer["next"]
        answer = following and management.request(PEEK, {**asked, "from-sequence-number": following})


def _peeked_anywhere(
    management: Management, first: int, state: State | None, session_id: str | None, count: int
) -> Iterator[ReceivedMessage]:
    """With the operation that Azure has too: it knows no states."""
    wanted = None if state is None else list(State).index(state)
    while True:
        asked: dict[str, object] = {"from-sequence-number": first, "message-count": Int(count)}
        if session_id is not None:
            asked["session-id"] = session_id
        answer = management.request("com.microsoft:peek-message", asked)
        if answer is None:
            return
        messages = [ReceivedMessage(found["message"]) for found in answer["messages"]]
        yield from (message for message in messages if wanted is None or message.state == wanted)
        first = max(message.sequence_number for message in messages) + 1


def selector_filter(text: str) -> Mapping[str, object]:
    """The source filter of a link that gets only the messages that a JMS selector matches."""
    return {SELECTOR: Described(ULong(SELECTOR_CODE), text)}


def refuse_ignored_filters(receiver: Receiver, filters: Mapping[str, object]) -> None:
    """`NotSupported` where the server does not take a filter: then the link would give every message."""
    receiver.check()
    if not filters.keys() <= receiver.filters_in_place:
        raise NotSupported(
            f"The server does not offer {', '.join(filters)} at '{receiver.entity}'; nothing was received."
        )
