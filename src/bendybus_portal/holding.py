"""Messages that a person has received and not settled yet: under lock, on one connection, until settled."""

from __future__ import annotations

import threading
from typing import Final

from bendybus.amqp import annotations as annotation_names
from bendybus.client import BusClient, ReceivedMessage, Receiver
from bendybus.errors import BrokerError, MessageLockLost
from bendybus.operations.peeking import session_filter
from bendybus_portal.access import Access

__all__ = ["Holding"]

RECEIVED_MAX: Final = 100


class Holding:
    """One entity's. Calls block, and one thread at a time uses the connection."""

    def __init__(self, access: Access, path: str) -> None:
        self._access = access
        self.path = path
        self.messages: dict[int, ReceivedMessage] = {}
        """By sequence number."""
        self._client: BusClient | None = None
        self._receiver: Receiver | None = None
        self._lock = threading.Lock()

    def receive(self, count: int, session_id: str = "") -> int:
        """Lock some more. Returns how many came."""
        with self._lock:
            if self._client is None:
                self._client = self._access.bus(timeout_s=15)
            if self._receiver is None:
                filters = session_filter(session_id) if session_id else None
                self._receiver = self._client.receiver(self.path, filters=filters)
            received = self._receiver.receive(min(count, RECEIVED_MAX), timeout_s=2)
            self.messages |= {message.sequence_number: message for message in received}
            return len(received)

    def settle(self, action: str, numbers: list[int], reason: str = "", description: str = "") -> int:
        """`complete`, `abandon`, `defer` or `dead-letter`. Returns how many."""
        with self._lock:
            chosen = [self.messages[number] for number in numbers if number in self.messages]
            if not chosen:
                return 0
            if self._receiver is None:
                raise MessageLockLost("The connection that held these messages has ended.")
            try:
                match action:
                    case "complete":
                        self._receiver.complete(chosen)
                    case "abandon":
                        self._receiver.abandon(chosen)
                    case "defer":
                        self._receiver.defer(chosen)
                    case _:
                        self._receiver.dead_letter(chosen, reason, description)
            finally:
                # Settled, or their locks are lost: in both cases they are no longer ours.
                for message in chosen:
                    self.messages.pop(message.sequence_number, None)
            return len(chosen)

    def release(self) -> None:
        """Give everything back, uncounted, and disconnect."""
        with self._lock:
            client, receiver = self._client, self._receiver
            held, self.messages = list(self.messages.values()), {}
            self._client = self._receiver = None
            if client is not None:
                try:
                    if receiver is not None and held:
                        receiver.release(held)
                except BrokerError:
                    # Their locks had ended, or the connection has gone: they are free already.
                    pass
                finally:
                    client.close()

    def locked_until_ms(self, message: ReceivedMessage) -> int:
        until = message.annotation(annotation_names.LOCKED_UNTIL)
        return until if isinstance(until, int) else 0
