"""Messages that a person has received and not settled yet: under lock, on one connection, until settled."""

from __future__ import annotations

import threading
import uuid
from typing import Final

from bendybus.amqp.types import Array, UInt
from bendybus.client import BusClient, ReceivedMessage, Receiver
from bendybus.errors import BrokerError, MessageLockLost
from bendybus.operations.peeking import session_filter
from bendybus_portal.access import Access

__all__ = ["Holding"]

RECEIVED_MAX: Final = 100

FETCH: Final = "com.microsoft:receive-by-sequence-number"
# As the wire spells them.
STATUSES: Final = {
    "complete": "completed",
    "abandon": "abandoned",
    "defer": "defered",
    "dead-letter": "suspended",
}


class Holding:
    """One entity's. Calls block, and one thread at a time uses the connection."""

    def __init__(self, access: Access, path: str) -> None:
        self._access = access
        self.path = path
        self.messages: dict[int, ReceivedMessage] = {}
        """By sequence number."""
        self._tokens: dict[int, uuid.UUID] = {}
        """Of those that were deferred."""
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

    def fetch_deferred(self, numbers: list[int]) -> int:
        """Lock deferred messages by their numbers."""
        with self._lock:
            if self._client is None:
                self._client = self._access.bus(timeout_s=15)
            asked = {"sequence-numbers": Array(int, [*numbers]), "receiver-settle-mode": UInt(1)}
            answer = self._client.management(self.path).request(FETCH, asked)
            for found in (answer or {}).get("messages", ()):
                message = ReceivedMessage(found["message"])
                self.messages[message.sequence_number] = message
                self._tokens[message.sequence_number] = found["lock-token"]
            return len((answer or {}).get("messages", ()))

    def settle(self, action: str, numbers: list[int], reason: str = "", description: str = "") -> int:
        """`complete`, `abandon`, `defer` or `dead-letter`. Returns how many."""
        with self._lock:
            chosen = [self.messages[number] for number in numbers if number in self.messages]
            if not chosen:
                return 0
            deferred = [message for message in chosen if message.sequence_number in self._tokens]
            received = [message for message in chosen if message.sequence_number not in self._tokens]
            try:
                if deferred:
                    self._settle_deferred(action, deferred, reason, description)
                if received:
                    self._settle_received(action, received, reason, description)
            finally:
                # Settled, or their locks are lost: in both cases they are no longer ours.
                for message in chosen:
                    self.messages.pop(message.sequence_number, None)
                    self._tokens.pop(message.sequence_number, None)
            return len(chosen)

    def _settle_received(
        self, action: str, chosen: list[ReceivedMessage], reason: str, description: str
    ) -> None:
        if self._receiver is None:
            raise MessageLockLost("The connection that held these messages has ended.")
        match action:
            case "complete":
                self._receiver.complete(chosen)
            case "abandon":
                self._receiver.abandon(chosen)
            case "defer":
                self._receiver.defer(chosen)
            case _:
                self._receiver.dead_letter(chosen, reason, description)

    def _settle_deferred(
        self, action: str, chosen: list[ReceivedMessage], reason: str, description: str
    ) -> None:
        """A deferred message has no delivery: it is settled by its lock token."""
        if self._client is None:
            raise MessageLockLost("The connection that held these messages has ended.")
        tokens = [self._tokens[message.sequence_number] for message in chosen]
        asked: dict[str, object] = {
            "disposition-status": STATUSES[action],
            "lock-tokens": Array(uuid.UUID, [*tokens]),
        }
        if action == "dead-letter":
            asked |= {"deadletter-reason": reason, "deadletter-description": description}
        self._client.management(self.path).request("com.microsoft:update-disposition", asked)

    def release(self) -> None:
        """Give everything back, uncounted, and disconnect."""
        with self._lock:
            client, receiver = self._client, self._receiver
            held, self.messages = list(self.messages.values()), {}
            self._client = self._receiver = None
            held = [message for message in held if message.sequence_number not in self._tokens]
            self._tokens.clear()
            if client is not None:
                try:
                    if receiver is not None and held:
                        receiver.release(held)
                except BrokerError:
                    # Their locks had ended, or the connection has gone: they are free already.
                    pass
                finally:
                    client.close()
