"""Which stored payloads stay in memory: the oldest, as long as there is room.

A queue is read from its front, so the payloads already here are worth more than new ones: a
new payload that does not fit is dropped at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bendybus.domain.messages import Message

__all__ = ["PAYLOAD_CACHE_BYTES", "PayloadCache"]

# Enough for a few thousand messages in flight. A longer backlog stays on disk and is read back in
# pages, which costs little. This memory is taken whether it is useful or not.
PAYLOAD_CACHE_BYTES: Final = 16 * 1024 * 1024
# Additional room for payloads that are read ahead: behind a backlog, newer payloads have filled the cache.
READ_AHEAD_BYTES: Final = 4 * 1024 * 1024


class PayloadCache:
    def __init__(self, limit_bytes: int = PAYLOAD_CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._used = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def room_ahead(self) -> int:
        """How much may be read ahead."""
        return self.limit_bytes + READ_AHEAD_BYTES - self._used

    def add_ahead(self, message: Message, payload: bytes) -> None:
        """Keep the payload of a message that will be needed soon."""
        if message.payload is None and message.size <= self.room_ahead:
            message.payload = payload
            self._used += message.size

    def admit(self, messages: Sequence[Message]) -> None:
        """The store has these messages now. Keep their payloads if there is room; otherwise drop them."""
        used, limit = self._used, self.limit_bytes
        together = sum([message.size for message in messages])
        if used + together <= limit:
            self._used = used + together
            return
        for message in messages:
            if used + message.size <= limit:
                used += message.size
            else:
                message.payload = None
        self._used = used

    def drop(self, messages: Iterable[Message]) -> None:
        """The payloads of these messages will hardly be needed."""
        for message in messages:
            if message.payload is not None:
                self._used -= message.size
                message.payload = None

    def forget(self, messages: Iterable[Message]) -> None:
        """These messages no longer exist."""
        self._used -= sum([message.size for message in messages if message.payload is not None])
