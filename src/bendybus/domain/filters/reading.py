"""A message as rules read it: system properties by name, user properties in any spelling.

All rules of all subscriptions of a topic share one `Reading`, so that they share
what it has computed (the lower-case names). A reading never changes;
an action works on a draft of it: actions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from bendybus.domain.filters.values import Value
from bendybus.errors import FilterError

__all__ = ["MISSING", "MessageView", "Reading", "SystemProperty", "system_property"]


class SystemProperty(StrEnum):
    """The message properties under the scope `sys`."""

    MESSAGE_ID = "MessageId"
    CORRELATION_ID = "CorrelationId"
    LABEL = "Label"
    TO = "To"
    REPLY_TO = "ReplyTo"
    REPLY_TO_SESSION_ID = "ReplyToSessionId"
    SESSION_ID = "SessionId"
    CONTENT_TYPE = "ContentType"
    PARTITION_KEY = "PartitionKey"
    VIA_PARTITION_KEY = "ViaPartitionKey"
    TIME_TO_LIVE = "TimeToLive"
    SCHEDULED_ENQUEUE_TIME = "ScheduledEnqueueTimeUtc"
    ENQUEUED_TIME = "EnqueuedTimeUtc"
    EXPIRES_AT = "ExpiresAtUtc"
    SEQUENCE_NUMBER = "SequenceNumber"
    ENQUEUED_SEQUENCE_NUMBER = "EnqueuedSequenceNumber"
    DELIVERY_COUNT = "DeliveryCount"
    SIZE = "Size"


# The names of BrokeredMessage, and the names that later SDKs gave to the same properties.
_SYSTEM: Final[dict[str, SystemProperty]] = {
    **{name.value.lower(): name for name in SystemProperty},
    "subject": SystemProperty.LABEL,
    "transactionpartitionkey": SystemProperty.VIA_PARTITION_KEY,
    "enqueuedtime": SystemProperty.ENQUEUED_TIME,
    "expiresat": SystemProperty.EXPIRES_AT,
    "scheduledenqueuetime": SystemProperty.SCHEDULED_ENQUEUE_TIME,
}


def system_property(name: str) -> SystemProperty | None:
    """The property of this name in any spelling, or None."""
    return _SYSTEM.get(name.lower())


class MessageView(Protocol):
    """What rules can see of a message.

    Instants are aware `datetime` and spans `timedelta`; numbers and texts are Python's own
    types. A property that was not set is None.
    """

    @property
    def user(self) -> Mapping[str, Value]:
        """The application properties, in the sender's spelling and order."""

    def system(self, name: SystemProperty) -> Value: ...

    def field(self, name: str) -> Value:
        """What selectors see: the value of a JMS header or an AMQP field; None for a name that is neither."""


# The budget of all rules of a topic for searching the texts of one message, in characters read by
# `str.find`: 2,000 filters can search 1,000 characters each. At worst this takes about 60 ms.
MESSAGE_COST_MAX: Final = 2_000_000


class _Missing:
    """A property that does not exist, as opposed to null."""


MISSING: Final = _Missing()


class Reading:
    """One message as rules read it. `new_id` is called for every `newid()`."""

    __slots__ = ("_folded", "_left", "message", "new_id", "selected", "system", "user")

    def __init__(self, message: MessageView, new_id: Callable[[], UUID]) -> None:
        self.message = message
        self.user: Mapping[str, Value] = message.user
        self.system: Callable[[SystemProperty], Value] = message.system
        self.new_id = new_id
        self._folded: dict[str, str] | None = None
        self._left = MESSAGE_COST_MAX
        self.selected: Reading | None = None
        """The same message as selectors read it, once one has (selectors.py)."""

    def spend(self, cost: int) -> None:
        """Count the cost of a search; refuse it if all rules together exceed the budget for one message."""
        self._left -= cost
        if self._left < 0:
            raise FilterError(
                f"the rules of the topic search more text of this message than {MESSAGE_COST_MAX:,} allow"
            )

    def spelling(self, name: str) -> str | None:
        """How the message spells this property: exactly so, or the first that differs only in case."""
        if name in self.user:
            return name
        folded = self._folded
        if folded is None:
            folded = self._folded = {}
            for spelled in self.user:
                folded.setdefault(spelled.lower(), spelled)
        return folded.get(name.lower())

    def has(self, name: str) -> bool:
        return self.spelling(name) is not None

    def get(self, name: str) -> Value:
        """The value of a user property; None if it is null or missing."""
        value = self.user.get(name, MISSING)
        if value is not MISSING:
            return value  # type: ignore[return-value]  # mypy does not narrow by a sentinel
        spelled = self.spelling(name)
        return None if spelled is None else self.user[spelled]
