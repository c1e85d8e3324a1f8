"""Payloads of messages that will probably be locked next: read together with those that are needed now.

Each read is a call in the store's reader thread, and the event loop is woken for its answer. A receiver that
takes one session after the other, each with a message or two, would pay that for every session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bendybus.broker.payload_cache import PayloadCache
from bendybus.domain.messages import Message
from bendybus.domain.partition import Partition

__all__ = ["ReadAhead"]

# The limits of each read, in bytes and in messages.
AHEAD_BYTES: Final = 256 * 1024
AHEAD_MAX: Final = 128


class ReadAhead:
    """Reads ahead for one partition."""

    def __init__(self, cache: PayloadCache) -> None:
        self._cache = cache
        self._expected: set[Message] = set()
        """The messages whose payloads are being read."""

    def choose(self, partition: Partition, locked: Sequence[Message]) -> list[Message]:
        """What to read together with these messages, which were just locked."""
        room = min(AHEAD_BYTES, self._cache.room_ahead)
        chosen: list[Message] = []
        for message in partition.following(locked, AHEAD_MAX) if room > 0 else ():
            if message.payload is None and message not in self._expected:
                room -= message.size
                if room < 0:
                    break
                chosen.append(message)
        self._expected.update(chosen)
        return chosen

    def keep(self, chosen: Sequence[Message], payloads: Sequence[bytes | None]) -> None:
        """These payloads were read. Messages that have been removed meanwhile do not need them."""
        for message, payload in zip(chosen, payloads, strict=True):
            if message in self._expected and payload is not None:
                self._cache.add_ahead(message, payload)
        self._expected.difference_update(chosen)

    def forget(self, messages: Iterable[Message]) -> None:
        """These messages are removed, or were not read."""
        if self._expected:
            self._expected.difference_update(messages)

    def clear(self) -> None:
        self._expected.clear()
