"""Pages of messages that match a filter, over all partitions in the order of enqueueing.

The server peeks in the order of sequence numbers, and so partition after partition. Here each partition is
read from its own position, and the messages are merged by time. The next page begins at all these positions
together, which are part of its address. Everything blocks.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bendybus.amqp.types import Int
from bendybus.client import Management, ReceivedMessage
from bendybus.errors import ArgumentError, MessageNotFound
from bendybus.names import PARTITION_SHIFT
from bendybus_portal.access import Access

__all__ = ["Filters", "PeekedPage", "batches", "find_message", "peek_page", "reason_of"]

# On a page.
PAGE: Final = 50
# Messages to examine for one page, however few match: a second or two.
SCANNED_MAX: Final = 5000
# Asked for at a time: few of each partition at first, because most pages end soon.
BATCH_FIRST: Final = 8
BATCH_MAX: Final = 250

_COUNTER: Final = (1 << PARTITION_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Filters:
    """Which messages to show; empty fields are ignored."""

    state: str = ""
    partition: int | None = None
    session_id: str = ""
    text: str = ""
    """In the body, the id, the subject or a property."""
    reason: str = ""
    """Of dead letters."""
    since_ms: int = 0

    def matches(self, message: ReceivedMessage) -> bool:
        if self.state and self.state != ("active", "deferred", "scheduled")[message.state]:
            return False
        if self.reason and self.reason != reason_of(message):
            return False
        if self.since_ms and message.enqueued_time_ms < self.since_ms:
            return False
        return not self.text or self.text.lower() in _searched(message)


def _searched(message: ReceivedMessage) -> str:
    properties = [f"{name}={value}" for name, value in message.application_properties.items()]
    texts = (message.message_id, message.subject, message.correlation_id, *properties)
    return "\n".join(
        [message.body.decode("utf-8", "replace"), *(str(text) for text in texts if text)]
    ).lower()


def reason_of(message: ReceivedMessage) -> str:
    return str(message.application_properties.get("DeadLetterReason") or "no reason")


@dataclass(frozen=True, slots=True)
class PeekedPage:
    messages: list[ReceivedMessage]
    following: str | None
    """Where the next page begins; None at the end."""
    scanned: int


# -- requests -----------------------------------------------------------------------


def _peek(
    management: Management, first: int, count: int, session_id: str = "", *, without_body: bool = False
) -> list[ReceivedMessage]:
    asked: dict[str, object] = {"from-sequence-number": first, "message-count": Int(count)}
    if session_id:
        asked["session-id"] = session_id
    if without_body:
        asked["omit-message-body"] = True
    answer = management.request("com.microsoft:peek-message", asked)
    return [] if answer is None else [ReceivedMessage(found["message"]) for found in answer["messages"]]


def batches(management: Management, *, without_body: bool = False) -> Iterator[list[ReceivedMessage]]:
    """All messages in the order of their numbers."""
    first = 0
    while messages := _peek(management, first, BATCH_MAX, without_body=without_body):
        yield messages
        first = max(message.sequence_number for message in messages) + 1


def find_message(access: Access, path: str, number: int) -> ReceivedMessage:
    """`MessageNotFound` if it no longer exists."""
    with access.bus() as client:
        found = _peek(client.management(path), number, 1)
    if not found or found[0].sequence_number != number:
        raise MessageNotFound(f"The message {number} is no longer in '{path}'.")
    return found[0]


# -- pages --------------------------------------------------------------------------


class _Lane:
    """One partition, read from a position on."""

    def __init__(self, management: Management, first: int, session_id: str) -> None:
        self._management = management
        self._session_id = session_id
        self._first = first
        self._count = BATCH_FIRST
        self._ended = False
        self._waiting: deque[ReceivedMessage] = deque()

    @property
    def partition(self) -> int:
        return self._first >> PARTITION_SHIFT

    def take_over(self, messages: list[ReceivedMessage], asked: int) -> None:
        """What a request for `asked` messages from here on has brought."""
        own = [each for each in messages if each.sequence_number >> PARTITION_SHIFT == self.partition]
        self._waiting.extend(own)
        # A later partition has its turn only when this one has no more; and so has the end.
        self._ended = len(own) < len(messages) or not messages
        if own:
            self._first = own[-1].sequence_number + 1
        self._count = min(BATCH_MAX, asked * 2)

    def head(self) -> ReceivedMessage | None:
        if not self._waiting and not self._ended:
            self.take_over(_peek(self._management, self._first, self._count, self._session_id), self._count)
        return self._waiting[0] if self._waiting else None

    def advance(self) -> None:
        self._waiting.popleft()

    @property
    def position(self) -> int | None:
        """The number of the next message; None at the end."""
        if self._waiting:
            return self._waiting[0].sequence_number
        return None if self._ended else self._first


def _found_lanes(management: Management, filters: Filters) -> Iterator[_Lane]:
    """A lane for each partition that has messages."""
    first = 0 if filters.partition is None else filters.partition << PARTITION_SHIFT
    while messages := _peek(management, first, BATCH_FIRST, filters.session_id):
        partition = messages[0].sequence_number >> PARTITION_SHIFT
        if filters.partition is not None and partition != filters.partition:
            return
        # What else has come belongs to partitions that are asked next.
        lane = _Lane(management, messages[0].sequence_number, filters.session_id)
        lane.take_over(messages, BATCH_FIRST)
        yield lane
        if filters.partition is not None:
            return
        first = (partition + 1) << PARTITION_SHIFT


def peek_page(access: Access, path: str, filters: Filters, first: str = "") -> PeekedPage:
    """A page of messages, the oldest first; `first` is the `following` of the page before."""
    with access.bus() as client:
        management = client.management(path)
        if first:
            lanes = [_Lane(management, number, filters.session_id) for number in _read_place(first)]
        else:
            lanes = list(_found_lanes(management, filters))
        return _merged(lanes, filters)


def _merged(lanes: list[_Lane], filters: Filters) -> PeekedPage:
    found: list[ReceivedMessage] = []
    scanned = 0
    heads = [_key(head) for lane in lanes if (head := lane.head()) is not None]
    heapq.heapify(heads)
    by_partition: Mapping[int, _Lane] = {lane.partition: lane for lane in lanes}
    while heads and len(found) < PAGE and scanned < SCANNED_MAX:
        lane = by_partition[heads[0][1] >> PARTITION_SHIFT]
        message = lane.head()
        assert message is not None, "it is at the head"
        lane.advance()
        scanned += 1
        if filters.matches(message):
            found.append(message)
        following = lane.head()
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, _key(following))
    return PeekedPage(found, _written_place(lanes) if heads else None, scanned)


def _key(message: ReceivedMessage) -> tuple[int, int]:
    return message.enqueued_time_ms, message.sequence_number


def _written_place(lanes: list[_Lane]) -> str:
    """Numbers in hex: partition and counter of each lane that has more."""
    places = [place for lane in lanes if (place := lane.position) is not None]
    return ".".join(f"{place >> PARTITION_SHIFT:x}-{place & _COUNTER:x}" for place in places)


def _read_place(text: str) -> list[int]:
    try:
        pairs = [part.split("-") for part in text.split(".")]
        numbers = [(int(partition, 16) << PARTITION_SHIFT) + int(counter, 16) for partition, counter in pairs]
    except ValueError:
        numbers = [-1]
    partitions = {number >> PARTITION_SHIFT for number in numbers}
    if len(partitions) < len(numbers) or any(not 0 <= number < 1 << 63 for number in numbers):
        raise ArgumentError("The address of this page is not complete. Begin with the first page.")
    return numbers
