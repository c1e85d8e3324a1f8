"""The scope of a transaction: one top-level entity, of it one partition, and one key (P-19 to P-22).

    on a partitioned entity      every message has a key, and all of them the same
    with sessions                the session id is the key
    on an unpartitioned one      keys and sessions may differ

What is refused here is refused when it is asked for, long before the commit.
How a commit becomes one: broker/transactions.py.
"""

from __future__ import annotations

from typing import Final

from bendybus.errors import InvalidOperation, QuotaExceeded
from bendybus.names import PartitionNumber, RoutingKey

__all__ = ["LIFETIME_S", "MESSAGES_MAX", "Scope"]

MESSAGES_MAX: Final = 100
# Counted from the first operation.
LIFETIME_S: Final = 120


class Scope:
    __slots__ = ("_entity", "_key", "_messages", "_partition")

    def __init__(self) -> None:
        self._entity: str | None = None
        self._partition: PartitionNumber | None = None
        self._key: RoutingKey | None = None
        self._messages = 0

    def enter(self, entity: str, partition: PartitionNumber) -> None:
        """Work on this partition of a top-level entity (a queue, or a topic with its subscriptions)."""
        if self._entity is not None and entity != self._entity:
            raise InvalidOperation(
                "Local transactions cannot span multiple top-level entities such as queue or topic: this one "
                f"began with '{self._entity}', so '{entity}' cannot be part of it."
            )
        if self._partition is not None and partition != self._partition:
            raise InvalidOperation(
                "Local transactions cannot span multiple entities or partitions: this one is in partition "
                f"{self._partition} of '{entity}', not in {partition}."
            )
        self._entity, self._partition = entity, partition

    def check_key(self, key: RoutingKey | None, path: str) -> RoutingKey:
        """The key of a message to a partitioned entity; nothing has been sent yet."""
        if key is None:
            raise InvalidOperation(
                f"A message sent to the partitioned entity '{path}' in a transaction needs a SessionId, a "
                "PartitionKey or a MessageId."
            )
        if self._key is not None and key != self._key:
            raise InvalidOperation(
                f"All messages of a transaction to the partitioned entity '{path}' must have the same "
                f"SessionId, PartitionKey or MessageId; the first was '{self._key}', this one is '{key}'."
            )
        return key

    def send(self, count: int, key: RoutingKey | None) -> None:
        """So many messages more; `key` where keys matter."""
        if self._messages + count > MESSAGES_MAX:
            raise QuotaExceeded(f"Can't send more than {MESSAGES_MAX} messages in a single transaction.")
        self._messages += count
        if key is not None:
            self._key = key
