"""Reads payloads from another broker, in pages that fit into frames. Used by remote.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from bendybus.broker.partition_port import OnPayloads
from bendybus.domain.messages import Message
from bendybus.errors import BrokerError

__all__ = ["PagedRead"]

# A larger payload is a page of its own.
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024

ReadRows: TypeAlias = Callable[[list[int], OnPayloads], None]


class PagedRead:
    """Payloads of messages, of which some may be in memory. `read_rows` reads one page."""

    def __init__(self, messages: Sequence[Message], read_rows: ReadRows, done: OnPayloads) -> None:
        self._messages = messages
        self._read_rows = read_rows
        self._done = done
        self._unread = [message for message in messages if message.payload is None]
        self._found: dict[int, bytes | None] = {}
        """By the identity of the message."""

    def read_next(self) -> None:
        """Read the next page, and continue until everything is read or a page fails."""
        if not self._unread:
            found = self._found
            messages = self._messages
            self._done([found.get(id(each)) if each.payload is None else each.payload for each in messages])
            return
        page, size = 0, 0
        for message in self._unread:
            if page and size + message.size > PAGE_BYTES_MAX:
                break
            size += message.size
            page += 1
        self._read_rows([message.body_row_id for message in self._unread[:page]], self._page_read)

    def _page_read(self, payloads: list[bytes | None] | BrokerError) -> None:
        if isinstance(payloads, BrokerError):
            self._done(payloads)
            return
        read, self._unread = self._unread[: len(payloads)], self._unread[len(payloads) :]
        self._found.update(zip(map(id, read), payloads, strict=True))
        self.read_next()
