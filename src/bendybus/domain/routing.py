"""Which partition a message goes to.

The key is the session id, else the partition key, else (only with duplicate
detection) the message id, else the via partition key. Case is ignored in keys, because it is
ignored in session ids (session_ids.py), and a session id is also the
partition key of its messages. Equal keys always go to the same partition: the hash
below is part of the stored format, and so is an entity's `exact_keys`. Messages without a
key are distributed in turn.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from typing import Final, cast
from zlib import crc32

from bendybus.errors import ArgumentError, InvalidOperation
from bendybus.names import PartitionNumber, RoutingKey
from bendybus.session_ids import fold_case

__all__ = ["KEY_LENGTH_MAX", "RoundRobin", "batch_key", "key_of", "partition_of", "routing_key"]

KEY_LENGTH_MAX: Final = 128

# 2^32 divided by the golden ratio, made odd (Knuth, TAOCP 6.4): the multiplication spreads each bit of the
# checksum into the topmost bits, which `partition_of` uses. A CRC alone is linear: keys that
# differ in one character would fall into few partitions.
_SPREAD: Final = 0x9E3779B1
_MASK: Final = 0xFFFFFFFF


def key_of(text: str, *, exact: bool = False) -> RoutingKey:
    """The form of a key that is compared and hashed. `exact`: for older entities with case-sensitive keys."""
    return cast(RoutingKey, text if exact else fold_case(text))


def routing_key(
    session_id: str | None,
    partition_key: str | None,
    message_id: str | None,
    via_key: str | None = None,
    duplicate_detection: bool = False,
    exact: bool = False,
) -> RoutingKey | None:
    """The key of a message, or None if it may go to any partition (P-13, P-14, P-15).

    `via_key`: the partition key for the entity that a transaction goes through. Outside a transaction it
    is the key of a message that has no other key (P-37).
    """
    if message_id is not None and len(message_id) > KEY_LENGTH_MAX:
        raise _too_long("MessageId", message_id)
    if via_key is not None and len(via_key) > KEY_LENGTH_MAX:
        raise _too_long("ViaPartitionKey", via_key)
    if session_id is not None:
        key = key_of(session_id, exact=exact)
        # An empty session id is that of a session, but it does not contradict a partition key.
        if session_id and partition_key is not None and key_of(partition_key, exact=exact) != key:
            # Refused for unpartitioned entities too, as Service Bus has done since 2020.
            raise InvalidOperation(
                f"SessionId is '{session_id[:KEY_LENGTH_MAX]}' but PartitionKey is "
                f"'{partition_key[:KEY_LENGTH_MAX]}'; when both are set they must be equal."
            )
        if len(session_id) > KEY_LENGTH_MAX:
            raise _too_long("SessionId", session_id)
        return key
    if partition_key is not None:
        if len(partition_key) > KEY_LENGTH_MAX:
            raise _too_long("PartitionKey", partition_key)
        return key_of(partition_key, exact=exact)
    if duplicate_detection and message_id is not None:
        return key_of(message_id, exact=exact)
    return None if via_key is None else key_of(via_key, exact=exact)


def _too_long(name: str, value: str) -> ArgumentError:
    return ArgumentError(
        f"{name} '{value[:32]}...' has {len(value)} characters; at most {KEY_LENGTH_MAX} are allowed."
    )


# Applications use the same few keys again and again.
@lru_cache(maxsize=4096)
def partition_of(key: str, count: int) -> PartitionNumber:
    """The partition of a key among `count` partitions (P-12).

    CRC-32 of the key's UTF-8, times `_SPREAD` modulo 2^32, taken as a fraction
    of 2^32, times `count`, rounded down.
    """
    spread = crc32(key.encode("utf-8", "surrogatepass")) * _SPREAD & _MASK
    return PartitionNumber(spread * count >> 32)


def batch_key(keys: Iterable[RoutingKey | None], *, duplicate_detection: bool) -> RoutingKey | None:
    """The common key of all messages in a batch to a partitioned entity (P-18)."""
    distinct = set(keys)
    if len(distinct) > 1:
        raise InvalidOperation(
            "Batching brokered messages with distinct SessionId, PartitionKey, or MessageId is not supported "
            "for an entity with partitioning and duplicate detection enabled."
            if duplicate_detection
            else "Batching brokered messages with distinct SessionId or PartitionKey is not supported "
            "for an entity with partitioning enabled."
        )
    return distinct.pop() if distinct else None


class RoundRobin:
    """Chooses the partition for a message without a key (P-16)."""

    __slots__ = ("_next", "_order")

    def __init__(self, order: Sequence[PartitionNumber]) -> None:
        self._order = order
        self._next = 0

    def next(self, available: Container[PartitionNumber]) -> PartitionNumber | None:
        """The next available partition; None if there is none."""
        count = len(self._order)
        for turn in range(self._next, self._next + count):
            number = self._order[turn % count]
            if number in available:
                self._next = (turn + 1) % count
                return number
        return None
