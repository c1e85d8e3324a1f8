"""Every error the product raises on purpose, in one tree.

    BrokerError                 .condition  .status  .sub_code  .retryable
    ├ WireError                 bytes that are not AMQP             -> close the connection
    │   ├ FrameTooLarge         a frame beyond the agreed size
    │   └ NestingTooDeep        types inside types inside types
    ├ ProtocolError             legal bytes at the wrong moment     -> .scope says what to close
    ├ RequestError              the caller can mend it              -> this operation only
    │   ├ ArgumentError         400   ├ InvalidOperation     400   ├ EntityDisabled  400
    │   ├ Unauthorized          401   ├ QuotaExceeded        403   ├ MessageSizeExceeded 403
    │   ├ EntityNotFound        404   ├ MessageNotFound      404   ├ EntityExists    409
    │   ├ PreconditionFailed    412   ├ RuleNotFound         404   ├ MethodNotAllowed 405
    │   ├ StoreNotFound         404   ├ StoreNotAllowed      403   ├ TlsRequired     403
    │   ├ RulesTooCostly        403, a QuotaExceeded
    │   ├ MessageLockLost       410   ├ SessionLockLost      410   ├ SessionCannotBeLocked 410
    │   ├ ConsumerLeaseHeld     409   ├ NotSupported         501   ├ InvalidField    400
    │   ├ SubscriptionInUse     409   ├ NamespaceNotFound    404
    │   ├ TransactionUnknown    404   ├ TransactionRolledBack 409  ├ TransactionTimedOut 408
    │   └ FilterError           a rule and a message that do not fit    -> dead-letter, .reason
    ├ Unavailable               503, try again
    │   ├ ServerBusy            too much at once       -> .NET holds back all that it sends for ten seconds
    │   ├ StoreUnavailable      ├ PartitionMoved       -> one partition: SDKs retry this operation alone
    │   │                       └ DatabaseSuperseded   an old primary is not used
    │   ├ DetachForced          a fault control asked for it -> the link is closed
    │   ├ OperationTimeout      408
    │   ├ MessagesInTransit     an entity with messages for others is not deleted until they have left
    │   ├ MemoryLimitReached    of those who hold most -> the connection is closed; SDKs make a new one
    │   └ ConnectionLost        our clients': the connection or link went
    └ SetupError                something that only the operator can change
        ├ ConfigError           ├ DataFolderInUse       -> the server does not start
        └ StoreError            ├ StoreCorrupted       └ SchemaTooNew
                                a store cannot be used -> its partitions are unavailable; if it is the
                                catalog, or at the start a newer schema, the server does not start

Each class carries the AMQP condition and the HTTP status that a client is to
see, so no other module maps errors. The text names the entity, the state and
the input; a fault inside the broker (a failed `assert`, a bug) is never shown.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

__all__ = ["BrokerError", "WireError", "FrameTooLarge", "NestingTooDeep", "ProtocolError", "Scope"]
__all__ += ["RequestError", "ArgumentError", "InvalidField", "InvalidOperation", "EntityDisabled"]
__all__ += ["Unauthorized", "QuotaExceeded", "RulesTooCostly", "MessageSizeExceeded", "EntityNotFound"]
__all__ += ["MessageNotFound", "RuleNotFound", "NamespaceNotFound", "StoreNotFound", "StoreNotAllowed"]
__all__ += ["TlsRequired", "MethodNotAllowed", "EntityExists", "PreconditionFailed", "MessageLockLost"]
__all__ += ["SessionLockLost", "SessionCannotBeLocked", "ConsumerLeaseHeld", "SubscriptionInUse"]
__all__ += ["NotSupported", "TransactionUnknown", "TransactionRolledBack", "TransactionTimedOut"]
__all__ += ["FilterError"]
__all__ += ["Unavailable", "ServerBusy", "DetachForced", "MemoryLimitReached", "StoreUnavailable"]
__all__ += ["PartitionMoved", "DatabaseSuperseded", "OperationTimeout", "MessagesInTransit", "ConnectionLost"]
__all__ += ["SetupError", "ConfigError", "DataFolderInUse", "StoreError", "StoreCorrupted", "SchemaTooNew"]
__all__ += ["FILTER_EXCEPTION", "HELP_LINK", "RULE_ACTION_EXCEPTION"]

# Errors quote what they refuse, and a name may be as long as a frame; our longest own text is half of this.
DESCRIPTION_LENGTH_MAX = 600

Scope = Literal["connection", "session", "link"]

# Ends most of the sentences that Azure refuses a request with.
HELP_LINK: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."

# What Service Bus calls the two ways in which a rule can fail, as the reason of a dead letter.
FILTER_EXCEPTION: Final = "FilterException"
RULE_ACTION_EXCEPTION: Final = "RuleActionException"


class BrokerError(Exception):
    """What all of ours share: the condition AMQP clients see, the status HTTP clients see."""

    condition: str = "amqp:internal-error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    @property
    def sub_code(self) -> int:
        """What the management API writes beside the status: its hundredfold, or a number that says more."""
        return self.status * 100

    @property
    def description(self) -> str:
        """The text for a client, cut off where its own input has made it long."""
        text = str(self)
        return text if len(text) <= DESCRIPTION_LENGTH_MAX else text[: DESCRIPTION_LENGTH_MAX - 3] + "..."


# -- the peer's bytes ---------------------------------------------------------


class WireError(BrokerError):
    """The bytes are not AMQP 1.0; nothing after them can be trusted."""

    condition = "amqp:decode-error"
    status = 400


class FrameTooLarge(WireError):
    """A frame announces more bytes than this side agreed to take."""

    condition = "amqp:connection:framing-error"


class NestingTooDeep(WireError):
    """A value holds values deeper than any honest peer needs."""


class ProtocolError(BrokerError):
    """A legal frame that this connection, session or link cannot accept now."""

    status = 400

    def __init__(self, condition: str, description: str, *, scope: Scope = "connection") -> None:
        super().__init__(description)
        self.condition = condition
        self.scope: Scope = scope


# -- the caller's request -----------------------------------------------------


class RequestError(BrokerError):
    """One operation is refused; the connection and everything else go on."""

    condition = "com.microsoft:argument-error"
    status = 400

    def __init__(self, text: str, *, azure: str = "") -> None:
        super().__init__(text)
        self.azure = azure
        """Azure's own sentence, where clients of the management API match on it: it comes before ours."""


class ArgumentError(RequestError):
    """A value is missing, malformed or out of range."""


class InvalidField(ArgumentError):
    """What a client asks of a link's source cannot be read or done."""

    condition = "amqp:invalid-field"


class InvalidOperation(RequestError):
    """What the .NET client raises as InvalidOperationException."""

    condition = "amqp:not-allowed"


class EntityDisabled(RequestError):
    condition = "com.microsoft:entity-disabled"


class Unauthorized(RequestError):
    condition = "amqp:unauthorized-access"
    status = 401

    def __init__(self, text: str, *, sub_code: int = 40100) -> None:
        super().__init__(text)
        self._sub_code = sub_code

    @property
    def sub_code(self) -> int:
        """40102 no token, 40103 signature, 40104 audience, 40105 malformed, 40106 expired, 40107 no keys."""
        return self._sub_code


class QuotaExceeded(RequestError):
    condition = "amqp:resource-limit-exceeded"
    status = 403


class RulesTooCostly(QuotaExceeded):
    """The filters of a topic would take too long for every message."""


class MessageSizeExceeded(RequestError):
    condition = "amqp:link:message-size-exceeded"
    status = 403


class EntityNotFound(RequestError):
    """Java and JavaScript clients recognise a missing entity by this very sentence."""

    condition = "amqp:not-found"
    status = 404

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' could not be found.")
        self.path = path


class MessageNotFound(RequestError):
    condition = "com.microsoft:message-not-found"
    status = 404


class RuleNotFound(RequestError):
    """No authorization rule of that name."""

    condition = "amqp:not-found"
    status = 404


class NamespaceNotFound(RequestError):
    """No namespace of that name is served."""

    condition = "amqp:not-found"
    status = 404


class StoreNotFound(RequestError):
    """No messaging store of that name is attached."""

    condition = "amqp:not-found"
    status = 404


class StoreNotAllowed(RequestError):
    """A request asks for a messaging store that the operator has not allowed."""

    condition = "amqp:not-allowed"
    status = 403


class TlsRequired(RequestError):
    """A connection without TLS to a server that was started with `--require-tls`."""

    condition = "amqp:not-allowed"
    status = 403

    def __init__(self) -> None:
        super().__init__(
            "This server requires TLS. Use amqps or https, and leave UseDevelopmentEmulator out of the "
            "connection string."
        )


class MethodNotAllowed(RequestError):
    """HTTP only: this verb means nothing at that path."""

    condition = "amqp:not-allowed"
    status = 405


class EntityExists(RequestError):
    condition = "com.microsoft:entity-already-exists"
    status = 409


class PreconditionFailed(RequestError):
    condition = "amqp:precondition-failed"
    status = 412


class MessageLockLost(RequestError):
    condition = "com.microsoft:message-lock-lost"
    status = 410


class SessionLockLost(RequestError):
    condition = "com.microsoft:session-lock-lost"
    status = 410


class SessionCannotBeLocked(RequestError):
    condition = "com.microsoft:session-cannot-be-locked"
    status = 410


class ConsumerLeaseHeld(RequestError):
    """Somebody else consumes this entity by ranges; one reader at a time may."""

    condition = "amqp:resource-locked"
    status = 409


class SubscriptionInUse(RequestError):
    """A JMS subscription has consumers, or is shared differently than a new consumer asks for."""

    condition = "amqp:resource-locked"
    status = 409


class NotSupported(RequestError):
    condition = "amqp:not-implemented"
    status = 501


class TransactionUnknown(RequestError):
    """Never declared on this connection, or over."""

    condition = "amqp:transaction:unknown-id"
    status = 404


class TransactionRolledBack(RequestError):
    """It could not be committed: nothing of it has happened."""

    condition = "amqp:transaction:rollback"
    status = 409


class TransactionTimedOut(RequestError):
    """It stayed open for too long: nothing of it has happened."""

    condition = "amqp:transaction:timeout"
    status = 408


class FilterError(RequestError):
    """A rule cannot be applied to a message. Senders never see it: the subscription's dead letter does."""

    def __init__(self, description: str, *, reason: str = FILTER_EXCEPTION) -> None:
        super().__init__(description)
        self.reason = reason


# -- try again ----------------------------------------------------------------


class Unavailable(BrokerError):
    """Nothing is wrong with the request; the SDKs retry it by themselves."""

    condition = "com.microsoft:server-busy"
    status = 503
    retryable = True


class ServerBusy(Unavailable):
    pass


class DetachForced(Unavailable):
    """The link has ended and nothing else: SDKs attach again."""

    condition = "amqp:link:detach-forced"


class MemoryLimitReached(Unavailable):
    """The server's memory for connections is used up, and this connection holds more of it than others.

    Not `server-busy`: Go's SDK would go on trying on the closed connection. Not `resource-limit-exceeded`:
    SDKs would give up. This condition makes them connect again.
    """

    condition = "amqp:connection:forced"


class StoreUnavailable(Unavailable):
    """The messaging store behind this partition is away.

    Not `server-busy`: .NET's sender would then hold back its sends to all other partitions too (P-17).
    """

    condition = "com.microsoft:timeout"


class DatabaseSuperseded(StoreUnavailable):
    """The PostgreSQL server is an old primary: its standby was promoted and has been used since."""


class PartitionMoved(Unavailable):
    """Another broker has taken the partition over."""

    condition = "com.microsoft:timeout"


class OperationTimeout(Unavailable):
    condition = "com.microsoft:timeout"
    status = 408


class MessagesInTransit(Unavailable):
    """An entity is not deleted: messages that were sent through it cannot leave for their destination yet."""


class ConnectionLost(Unavailable):
    """A client's connection or link has gone; the next try makes a new one."""

    condition = "amqp:connection:forced"


# -- the operator's set-up ----------------------------------------------------


class SetupError(BrokerError):
    """The server cannot start, or cannot use a store; the text tells the operator what to change."""


class ConfigError(SetupError):
    """A setting or a Config.json that cannot be meant."""


class DataFolderInUse(SetupError):
    """Another process holds the data folder."""


class StoreError(SetupError):
    """A messaging store that cannot be used as it is; the text names it."""


class StoreCorrupted(StoreError):
    """Damage was found in a store, when it was opened or while it was in use."""


class SchemaTooNew(StoreError):
    """Written by a newer Bendybus; this one would not understand it."""
