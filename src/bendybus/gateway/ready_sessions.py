"""The session links of one connection that may be sent something, served together.

A client may hold a thousand sessions with a message or two in each. So a link that has credit or messages is
only noted. When the connection is about to write, each partition is asked once for all links that are noted,
and their messages are rendered together. A link that reads from a store, that keeps messages or that deletes
what it receives is served alone (receiver.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bendybus.broker.partition_port import ReceivingPort
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SessionLock
from bendybus.envelope import render_locked
from bendybus.gateway.receiver import PAGE_BYTES_MAX, payloads_in_memory, tokens_of
from bendybus.names import LockToken

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection
    from bendybus.gateway.session_receiver import SessionReceiver

__all__ = ["ReadySessions"]


class ReadySessions:
    __slots__ = ("_connection", "_delivering", "_links", "_page_bytes")

    def __init__(self, connection: AmqpConnection, page_bytes: int = PAGE_BYTES_MAX) -> None:
        """`page_bytes`: what is locked for all of them before it is written."""
        self._connection = connection
        self._page_bytes = page_bytes
        self._links: dict[SessionReceiver, None] = {}
        self._delivering = False

    def add(self, link: SessionReceiver) -> None:
        """The link may have messages or credit. It is served before the connection writes next."""
        self._links[link] = None

    def deliver(self) -> None:
        """Serve the links that were added."""
        if not self._links or self._delivering:
            return
        self._delivering = True
        try:
            while self._links:
                links, self._links = self._links, {}
                self._serve(links)
                for link in links:
                    if link not in self._links:
                        link.served()
        finally:
            self._delivering = False

    def _serve(self, links: dict[SessionReceiver, None]) -> None:
        wanted: dict[ReceivingPort, list[tuple[SessionLock, int]]] = {}
        by_token: dict[LockToken, SessionReceiver] = {}
        for link in links:
            asks = link.asks()
            if asks is not None:
                host, lock, count = asks
                wanted.setdefault(host, []).append((lock, count))
                by_token[lock.token] = link
        size_left = self._page_bytes
        for host, shares in wanted.items():
            asked = 0
            if size_left > 0:
                given, asked = host.lock_in_sessions(shares, size_left)
                size_left -= self._send(host, given, by_token)
            for lock, _ in shares[asked:]:
                self.add(by_token[lock.token])

    def _send(
        self,
        host: ReceivingPort,
        given: list[tuple[SessionLock, list[Message], bool]],
        by_token: dict[LockToken, SessionReceiver],
    ) -> int:
        """Send what a partition has given. Returns its size."""
        ready: list[tuple[SessionReceiver, int]] = []
        together: list[Message] = []
        payloads: list[bytes] = []
        for lock, messages, more in given:
            link = by_token[lock.token]
            if more and messages:
                self.add(link)
            known = payloads_in_memory(host, messages)
            if len(known) < len(messages):
                link.fetch(host, messages, known)
            elif messages:
                ready.append((link, len(messages)))
                together += messages
                payloads += known
        if (observer := self._connection.observer) is not None and together:
            observer.delivering(host.path, together, payloads)
        rendered = render_locked(together, payloads)
        start = 0
        for link, count in ready:
            sent = link.send_rendered(rendered[start : start + count])
            if sent < count:
                # The links of an AMQP session share its limits, and those before this one used them up.
                host.release(tokens_of(together[start + sent : start + count]))
            start += count
        size = sum(map(len, payloads))
        self._connection.sent(size)
        return size
