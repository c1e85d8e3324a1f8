"""The words that travel between packages, as types.

A `NewType` stops a sequence number from being passed where a partition number is
meant. At run time it is a call that does nothing; what is made by the hundred is
declared with one `cast` instead. Nothing else lives here.
"""

from __future__ import annotations

from typing import Final, NewType

__all__ = [
    "COUNTER_MAX",
    "PARTITION_SHIFT",
    "EntityPath",
    "Epoch",
    "Instant",
    "LockToken",
    "PartitionNumber",
    "RoutingKey",
    "SequenceNumber",
    "SessionId",
    "SessionKey",
]

EntityPath = NewType("EntityPath", str)
"""Path of a queue, topic or subscription inside its namespace, in the spelling it was created with."""

Epoch = NewType("Epoch", int)
"""How often a partition has changed hands: who claims it gets the next number, and the last one counts."""

PartitionNumber = NewType("PartitionNumber", int)
"""Which partition of an entity, from 0."""

SequenceNumber = NewType("SequenceNumber", int)
"""64 bits: the partition's number in the topmost 16, that partition's own counter in the other 48."""

LockToken = NewType("LockToken", bytes)
"""16 bytes, just as they stand in an AMQP delivery-tag (a GUID in .NET's byte order).

The first two hold the partition's number, big-endian, so that a token alone finds its partition."""

RoutingKey = NewType("RoutingKey", str)
"""What chooses a message's partition: its session id, partition key or message id, whatever the case."""

SessionId = NewType("SessionId", str)
"""As somebody wrote it. What is compared and hashed is the key (session_ids.py)."""

SessionKey = NewType("SessionKey", RoutingKey)
"""What a session is found by: the same for all ids that differ only in case (P-13)."""

Instant = NewType("Instant", int)
"""Milliseconds since the Unix epoch, UTC: what AMQP calls a timestamp."""

# Service Bus: "the topmost 16 bits reflect the partition id".
PARTITION_SHIFT: Final = 48
COUNTER_MAX: Final = (1 << PARTITION_SHIFT) - 1
