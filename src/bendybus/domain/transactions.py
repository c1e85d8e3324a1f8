"""The scope of a transaction: one top-level entity, and one partition of it (P-19 to P-22, P-37).

    on a partitioned entity      every message has a key, and all keys are the same
    with sessions                the session id is the key
    on an unpartitioned one      keys and sessions may differ
    across entities              one partition of the first entity: that of the via key, else that of the
                                 message which is settled; the other entities' keys do not matter

The partition of a transaction across entities may be known only when it is
discharged. Every other violation is refused when the operation is requested, before the
commit. How the commit is done: broker/transactions.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bendybus.domain.routing import partition_of
from bendybus.errors import InvalidOperation, QuotaExceeded
from bendybus.names import PartitionNumber, RoutingKey

__all__ = ["LIFETIME_S", "MESSAGES_MAX", "MessageKeys", "Scope"]

MESSAGES_MAX: Final = 100
# Counted from the first operation.
LIFETIME_S: Final = 120


class MessageKeys(NamedTuple):
    """The keys that may choose the partition of a message that is sent in a transaction."""

    own: RoutingKey | None
    """Its routing key (routing.py)."""
    message_id: RoutingKey | None
    """Used as a key too if there is no other, in a transaction of one entity (P-19)."""
    via: RoutingKey | None
    """The key for the entity that the transaction goes through (P-37)."""


class Scope:
    __slots__ = ("_decided", "_entity", "_key", "_messages", "_without_partition", "first_key", "partition")

    def __init__(self) -> None:
        self.partition: PartitionNumber | None = None
        """None until it is known."""
        self._decided = False
        """Whether a via key or a settled message has chosen the partition."""
        self.first_key: RoutingKey | None = None
        """The routing key of the first message to another entity that has one."""
        self._entity: str | None = None
        self._key: RoutingKey | None = None
        self._messages = 0
        self._without_partition: list[RoutingKey | None] = []
        """The ids of messages that go to the transaction's partition, whichever it turns out to be."""

    def enter(self, entity: str, partition: PartitionNumber | None = None) -> None:
        """Work on a top-level entity (a queue, or a topic with its subscriptions). None: in any partition."""
        if self._entity is not None and entity != self._entity:
            raise InvalidOperation(
                "Local transactions cannot span multiple top-level entities such as queue or topic: this one "
                f"began with '{self._entity}', so '{entity}' cannot be part of it."
            )
        self._entity = entity
        if partition is None:
            return
        if self.partition is not None and partition != self.partition:
            raise InvalidOperation(
                "Local transactions cannot span multiple entities or partitions: this one is in partition "
                f"{self.partition} of '{entity}', not in {partition}."
            )
        self.partition = partition

    def decide(self, entity: str, partition: PartitionNumber) -> None:
        """A via key or a settled message decides the partition."""
        self.enter(entity, partition)
        self._decided = True

    def send(self, entity: str, partitions: int, keys: MessageKeys, *, crosses: bool) -> None:
        """A message to the transaction's own entity.

        `crosses`: other entities may be part of the transaction. Then a message without a session id or keys
        goes to the partition of the transaction, which may be decided later.
        """
        self._count()
        self.enter(entity)
        if partitions == 1:
            self.enter(entity, PartitionNumber(0))
            return
        own = keys.own
        if own is None and keys.via is None:
            if crosses:
                self._without_partition.append(keys.message_id)
                return
            own = keys.message_id
        if own is not None or keys.via is None:
            self._enter_by(own, entity, partitions)
        if keys.via is not None:
            self.decide(entity, partition_of(keys.via, partitions))

    def send_through(self, entity: str, partitions: int, keys: MessageKeys) -> None:
        """A message to another entity, which is sent through the transaction's own entity (P-37)."""
        self._count()
        if partitions == 1:
            self.enter(entity, PartitionNumber(0))
        elif keys.via is not None:
            self.decide(entity, partition_of(keys.via, partitions))
        else:
            self.enter(entity)
        self.first_key = self.first_key or keys.own

    def settle_partition(self, partitions: int) -> PartitionNumber | None:
        """The partition of the transaction, once it is complete; None if any partition will do.

        If neither a via key nor a settled message decides it, the messages that wait for a partition need
        keys of their own.
        """
        if not self._decided and self._entity is not None:
            for message_id in self._without_partition:
                self._enter_by(message_id, self._entity, partitions)
        return self.partition

    def _enter_by(self, key: RoutingKey | None, entity: str, partitions: int) -> None:
        """Require a key for a message to a partitioned entity, the same key for all (P-19, P-20)."""
        if key is None:
            raise InvalidOperation(
                f"A message sent to the partitioned entity '{entity}' in a transaction needs a SessionId, a "
                "PartitionKey or a MessageId."
            )
        if self._key is not None and key != self._key:
            raise InvalidOperation(
                f"All messages of a transaction to the partitioned entity '{entity}' must have the same "
                f"SessionId, PartitionKey or MessageId; the first was '{self._key}', this one is '{key}'."
            )
        self._key = key
        self.enter(entity, partition_of(key, partitions))

    def _count(self) -> None:
        if self._messages >= MESSAGES_MAX:
            raise QuotaExceeded(f"Can't send more than {MESSAGES_MAX} messages in a single transaction.")
        self._messages += 1
