"""Moving messages from one entity to another, without losing any.

A message is locked at the source, sent to the target, and completed at the source only when the
target has acknowledged it. So if a move is interrupted at any moment, each message is in at
least one of the two. It is in both if the completion was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from bendybus.client import BusClient, ReceivedMessage, Receiver, Sender
from bendybus.errors import BrokerError, MessageLockLost, OperationTimeout
from bendybus.operations.copies import copy_of
from bendybus.operations.peeking import session_filter
from bendybus.session_ids import fold_case

__all__ = ["Move", "NewId", "by_key"]

# So many are under lock at a time: they are sent and completed long before the shortest lock ends.
BATCH: Final = 100
# An empty queue says so when it is drained, over all partitions; this is for a server that does not.
WAIT_S: Final = 0.5

NewId = Callable[[ReceivedMessage], str | None]
"""What to call a copy; None leaves its id as it is."""


class Move:
    """The progress of a move."""

    def __init__(
        self,
        source: str,
        target: str,
        limit: int | None,
        new_id: NewId,
        *,
        without: Container[str] = (),
    ) -> None:
        """`without` names application properties that copies do not have."""
        self._without = without
        self.source = source
        self.target = target
        self.moved = 0
        self.stopped = False
        """Set from outside: no further messages are received."""
        self.tell: Callable[[], object] = lambda: None
        """Called whenever some have been moved."""
        self._limit = limit
        self._new_id = new_id

    @property
    def wanted(self) -> int:
        """How many messages to receive next."""
        if self.stopped:
            return 0
        return BATCH if self._limit is None else min(BATCH, self._limit - self.moved)

    def run(self, receiver: Receiver, sender: Sender) -> int:
        """Move messages until there are no more, or enough. Returns how many came from this receiver."""
        before = self.moved
        while wanted := self.wanted:
            messages = receiver.receive(wanted, timeout_s=WAIT_S)
            if not messages:
                break
            self._transfer(receiver, sender, messages)
            self.tell()
        return self.moved - before

    def run_sessions(self, client: BusClient, sender: Sender) -> None:
        """Move one free session after the other. A session that another receiver holds stays. The server
        waits for a free session for as long as the client's timeout, which should be short.
        """
        came = 1
        while came and self.wanted:
            receiver = client.receiver(self.source, filters=session_filter(None))
            try:
                receiver.check()
            except OperationTimeout:
                return
            came = self.run(receiver, sender)
            receiver.close()

    def _transfer(self, receiver: Receiver, sender: Sender, messages: list[ReceivedMessage]) -> None:
        """Complete what the target has acknowledged, and release the rest, even after an error."""
        accepted: list[ReceivedMessage] = []
        try:
            for key, group in by_key(messages):

                def accept(first: int, count: int, group: list[ReceivedMessage] = group) -> None:
                    accepted.extend(group[first : first + count])

                copies = [
                    copy_of(message, message_id=self._new_id(message), without=self._without)
                    for message in group
                ]
                sender.post(copies, key, accept)
            sender.flush()
        except BrokerError:
            # What was posted before may still be accepted.
            with suppress(BrokerError):
                sender.flush()
            raise
        finally:
            self._complete(receiver, accepted)
            done = set(map(id, accepted))
            receiver.release([message for message in messages if id(message) not in done])

    def _complete(self, receiver: Receiver, accepted: list[ReceivedMessage]) -> None:
        try:
            receiver.complete(accepted)
        except MessageLockLost as error:
            raise MessageLockLost(
                f"Up to {len(accepted)} messages are at '{self.target}' and still at '{self.source}' too, "
                f"because their locks ended before they could be completed. {self.moved} were moved before."
            ) from error
        self.moved += len(accepted)


def by_key(messages: list[ReceivedMessage]) -> Iterator[tuple[str | None, list[ReceivedMessage]]]:
    """Messages of one key together and in their order; each of those without a key for itself.

    Keys that differ only in case are one key. But a batch has one spelling.
    """
    groups: dict[str, list[tuple[str, list[ReceivedMessage]]]] = {}
    for message in messages:
        key = message.session_id or message.partition_key
        if key is None:
            yield None, [message]
            continue
        runs = groups.setdefault(fold_case(key), [])
        if not runs or runs[-1][0] != key:
            runs.append((key, []))
        runs[-1][1].append(message)
    yield from chain.from_iterable(groups.values())
