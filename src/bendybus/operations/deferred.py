"""Deferred messages by their sequence numbers: received under lock, and settled by their lock tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bendybus.amqp.types import Array, UInt
from bendybus.client import BusClient, ReceivedMessage
from bendybus.names import PARTITION_SHIFT

__all__ = ["DeferredMessages", "shares"]

# They must all fit into one answer.
BATCH: Final = 100

# Settlement -> its name on the wire, in the wire's spelling.
STATUSES: Final = {
    "complete": "completed",
    "abandon": "abandoned",
    "defer": "defered",
    "dead_letter": "suspended",
}


class DeferredMessages:
    """The deferred messages of one entity; with `session_id`, of a session that the client holds."""

    def __init__(self, client: BusClient, entity: str, session_id: str | None = None) -> None:
        self._management = client.management(entity)
        self._session = {} if session_id is None else {"session-id": session_id}
        self._tokens: dict[int, uuid.UUID] = {}

    def receive(self, numbers: Sequence[int], *, deletes: bool = False) -> list[ReceivedMessage]:
        """All of them, or `MessageNotFound` where one is not there or not deferred."""
        received: list[ReceivedMessage] = []
        for share in shares(numbers, BATCH):
            asked = {
                "sequence-numbers": Array(int, [*share]),
                "receiver-settle-mode": UInt(0 if deletes else 1),
                **self._session,
            }
            answer = self._management.request("com.microsoft:receive-by-sequence-number", asked) or {}
            for found in answer.get("messages", ()):
                received.append(ReceivedMessage(found["message"]))
                if not deletes:
                    self._tokens[received[-1].sequence_number] = found["lock-token"]
        return received

    def settle(
        self,
        messages: Sequence[ReceivedMessage],
        settlement: str,
        reason: str = "",
        description: str = "",
        *,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """`complete`, `abandon`, `defer` or `dead_letter`. `properties` are set on the messages."""
        why: dict[str, object] = {} if properties is None else {"properties-to-modify": dict(properties)}
        if settlement == "dead_letter":
            why |= {"deadletter-reason": reason, "deadletter-description": description}
        for share in shares([message.sequence_number for message in messages], BATCH):
            asked = {
                "disposition-status": STATUSES[settlement],
                "lock-tokens": Array(uuid.UUID, [self._tokens.pop(number) for number in share]),
                **why,
                **self._session,
            }
            self._management.request("com.microsoft:update-disposition", asked)


def shares(numbers: Sequence[int], size: int) -> Iterator[list[int]]:
    """Batches of numbers, each of one partition: Azure accepts one partition per request."""
    share: list[int] = []
    for number in numbers:
        other = bool(share) and number >> PARTITION_SHIFT != share[0] >> PARTITION_SHIFT
        if other or len(share) == size:
            yield share
            share = []
        share.append(number)
    if share:
        yield share
