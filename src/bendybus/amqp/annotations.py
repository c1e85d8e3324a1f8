"""The annotations of Service Bus: their names, each spelled once.

A message carries them in its annotations, except for the lock token, which is a delivery
annotation. Code that works on encoded bytes uses `.encode()` or `entry_start`.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BROKER_SET",
    "DEAD_LETTER_SOURCE",
    "DELIVERY_DELAY",
    "DELIVERY_TIME",
    "ENQUEUED_TIME",
    "ENQUEUE_SEQUENCE_NUMBER",
    "LOCKED_UNTIL",
    "LOCK_TOKEN",
    "MESSAGE_STATE",
    "PARTITION_ID",
    "PARTITION_KEY",
    "PREFIX",
    "SCHEDULED_ENQUEUE_TIME",
    "SEQUENCE_NUMBER",
    "VIA_PARTITION_KEY",
    "entry_start",
]

# The prefix of all names. "annotations with keys that begin with x-opt- are optional" [AMQP 3.2.10]
PREFIX: Final = "x-opt-"

# Set by a sender.
PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
SCHEDULED_ENQUEUE_TIME: Final = "x-opt-scheduled-enqueue-time"
# The same, as JMS clients write it: milliseconds since 1970, or from now on.
DELIVERY_TIME: Final = "x-opt-delivery-time"
DELIVERY_DELAY: Final = "x-opt-delivery-delay"

# Set by a receiver that abandons a message; of ours.
RETRY_DELAY: Final = "x-opt-retry-delay"

# Set by the broker.
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL: Final = "x-opt-locked-until"
LOCK_TOKEN: Final = "x-opt-lock-token"
MESSAGE_STATE: Final = "x-opt-message-state"
PARTITION_ID: Final = "x-opt-partition-id"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"

# As bytes. They are left out when a message is stored or sent again.
BROKER_SET: Final = frozenset(
    name.encode()
    for name in (
        ENQUEUED_TIME,
        SEQUENCE_NUMBER,
        ENQUEUE_SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        LOCK_TOKEN,
        MESSAGE_STATE,
        PARTITION_ID,
        DEAD_LETTER_SOURCE,
    )
)


def entry_start(name: str, type_code: int) -> bytes:
    """An encoded map entry up to its value: the key as sym8, then the constructor of the value."""
    return bytes((0xA3, len(name))) + name.encode() + bytes((type_code,))
