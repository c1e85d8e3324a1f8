"""A scan: the position of a receiver with a selector in one partition.

A receiver with a selector skips the messages that do not match: they
stay where they are, unlocked and uncounted. The scan remembers its position, so that
each message is examined once, and is notified of messages that come back below it. Matches
that are not locked yet are kept by number, at most a page. Memory is
bounded: payloads are read a page at a time and dropped.
A partition of another broker has its scan there (cluster/selecting.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from bendybus.domain.effects import MessagesAvailable
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import BrokerError
from bendybus.names import SequenceNumber

if TYPE_CHECKING:
    from bendybus.broker.partition_host import PartitionHost

__all__ = ["Matches", "PartitionScan", "Scan"]

# How much is examined in one turn of the loop: about two milliseconds.
PAGE_MAX: Final = 100
PAGE_BYTES_MAX: Final = 1024 * 1024

# Messages that came back and have to be examined again, by number. If there are more, the scan
# goes back to the first of them and examines everything from there on.
AGAIN_MAX: Final = 10_000

_START: Final = SequenceNumber(0)

Matches: TypeAlias = Callable[[Message, bytes], bool]
"""Whether a message with this payload matches."""


class PartitionScan(Protocol):
    """What a receiver knows about its scan of a partition, wherever that is."""

    @property
    def has_found(self) -> bool:
        """Whether there are matches that could be locked at once."""

    @property
    def is_behind(self) -> bool:
        """Whether the receiver is to call `examine`."""

    @property
    def is_unknown(self) -> bool:
        """Whether another broker is finding out what matches. The receiver is woken when it is known."""

    def lock(self, count: int) -> list[Message]: ...
    def examine(self, done: Callable[[BrokerError | None], None]) -> None: ...
    def rest(self, *, soon: bool) -> None:
        """The receiver wants no more for now. `soon`: it may have new credit in a moment."""

    def close(self) -> None: ...


class Scan:
    """A scan of a partition of this broker."""

    is_unknown: Final = False

    def __init__(self, host: PartitionHost, subqueue: SubQueue, matches: Matches) -> None:
        self._host = host
        self._subqueue = subqueue
        self._matches = matches
        self._place = _START
        """Everything below has been examined, or is in `_again`."""
        self._again: set[SequenceNumber] = set()
        self._found: list[SequenceNumber] = []
        """Messages that matched and were available when they were examined, oldest first."""
        self._restarts = 0
        host.scans[self] = None

    def close(self) -> None:
        self._host.scans.pop(self, None)

    def rest(self, *, soon: bool) -> None:
        """What was found stays available to others, so there is nothing to do."""

    @property
    def has_found(self) -> bool:
        return bool(self._found)

    @property
    def is_behind(self) -> bool:
        """Whether there are messages that have not been examined."""
        return bool(self._again or self._host.waiting(self._place, 1, 1, self._subqueue))

    def lock(self, count: int) -> list[Message]:
        """Lock up to `count` of the matches that are still available."""
        locked: list[Message] = []
        while self._found and len(locked) < count:
            wanted = count - len(locked)
            numbers, self._found = self._found[:wanted], self._found[wanted:]
            locked += self._host.lock_these(numbers, self._subqueue)
        return locked

    def examine(self, done: Callable[[BrokerError | None], None]) -> None:
        """Examine the next page. `done` is called afterwards, perhaps before this returns."""
        messages = self._next_page()
        restarts = self._restarts

        def examined(payloads: list[bytes | None] | BrokerError) -> None:
            if restarts != self._restarts:
                done(None)
            elif isinstance(payloads, BrokerError):
                self._look_again(messages)
                done(payloads)
            else:
                self._note(messages, payloads)
                done(None)

        if messages:
            self._host.read(messages, examined)
        else:
            done(None)

    def _next_page(self) -> Sequence[Message]:
        if self._again:
            # Below the position of the scan, and older than the next messages.
            numbers = sorted(self._again)[:PAGE_MAX]
            self._again.difference_update(numbers)
            found = self._host.find_waiting(numbers, self._subqueue)
            fitting = bisect_right(list(accumulate(message.size for message in found)), PAGE_BYTES_MAX)
            self._look_again(found[max(1, fitting) :])
            return found[: max(1, fitting)]
        messages = self._host.waiting(self._place, PAGE_MAX, PAGE_BYTES_MAX, self._subqueue)
        if messages:
            self._place = SequenceNumber(messages[-1].sequence_number + 1)
        return messages

    def _look_again(self, messages: Sequence[Message]) -> None:
        self._again.update(message.sequence_number for message in messages)

    def _note(self, messages: Sequence[Message], payloads: Sequence[bytes | None]) -> None:
        matches = self._matches
        found = [
            message.sequence_number
            for message, payload in zip(messages, payloads, strict=True)
            if payload is not None and matches(message, payload)
        ]
        if found:
            self._found = sorted({*self._found, *found})

    # -- called by the host -------------------------------------------------------

    def came_back(self, effect: MessagesAvailable) -> None:
        """Messages that were locked are available again, perhaps with other properties."""
        if effect.subqueue is not self._subqueue or not effect.returned:
            return
        numbers = {message.sequence_number for message in effect.returned}
        self._found = [number for number in self._found if number not in numbers]
        self._again.update(number for number in numbers if number < self._place)
        if len(self._again) > AGAIN_MAX:
            self._place = min(self._again)
            self._again.clear()
            self._found.clear()

    def restart(self) -> None:
        """The partition's memory was discarded, and with it every lock."""
        self._restarts += 1
        self._place = _START
        self._again.clear()
        self._found.clear()
