"""Errors that the other side reports, as errors of this package.

The condition on the wire decides the class, which says whether a retry is useful. The text is the peer's. The
tree of errors: errors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus import errors
from bendybus.amqp.performatives import DeliveryState, Error, Rejected
from bendybus.errors import BrokerError

__all__ = ["connection_lost", "refusal", "refusal_in", "refusal_of_status"]

_BY_CONDITION: Final[Mapping[str, type[BrokerError]]] = {
    **{
        kind.condition: kind
        for kind in (
            errors.ArgumentError,
            errors.InvalidOperation,
            errors.EntityDisabled,
            errors.Unauthorized,
            errors.QuotaExceeded,
            errors.MessageSizeExceeded,
            errors.EntityNotFound,
            errors.MessageNotFound,
            errors.EntityExists,
            errors.PreconditionFailed,
            errors.MessageLockLost,
            errors.SessionLockLost,
            errors.SessionCannotBeLocked,
            errors.ConsumerLeaseHeld,
            errors.NotSupported,
            errors.ServerBusy,
            errors.OperationTimeout,
            errors.ConnectionLost,
        )
    },
    "com.microsoft:argument-out-of-range": errors.ArgumentError,
    "com.microsoft:auth-failed": errors.Unauthorized,
    "amqp:resource-deleted": errors.EntityNotFound,
    # Service Bus moves links between its machines. A client that attaches again can continue.
    "amqp:link:detach-forced": errors.ConnectionLost,
    "amqp:internal-error": errors.Unavailable,
    "com.microsoft:operation-cancelled": errors.Unavailable,
}

# For answers that have a status and no condition.
_BY_STATUS: Final[Mapping[int, type[BrokerError]]] = {
    401: errors.Unauthorized,
    403: errors.Unauthorized,
    404: errors.EntityNotFound,
    408: errors.OperationTimeout,
    409: errors.EntityExists,
    410: errors.MessageLockLost,
    501: errors.NotSupported,
    503: errors.ServerBusy,
}


def refusal(error: Error | None, what: str) -> BrokerError:
    """The peer's reason for ending or refusing `what`."""
    if error is None:
        return connection_lost(f"{what}: ended by the server, which gave no reason.")
    condition = str(error.condition)
    return _make(_BY_CONDITION.get(condition, errors.RequestError), condition, error.description, what)


def refusal_in(state: DeliveryState | None, what: str) -> BrokerError | None:
    """The error in a rejected outcome; None for all other outcomes."""
    if not isinstance(state, Rejected):
        return None
    return refusal(
        state.error or Error(errors.RequestError.condition, "rejected, with no reason given"), what
    )


def refusal_of_status(status: int, condition: object, description: object, what: str) -> BrokerError:
    """The error of a request that was not successful."""
    text = str(description) if description else f"status {status}"
    if isinstance(condition, str):
        return _make(_BY_CONDITION.get(condition, errors.RequestError), condition, text, what)
    kind = _BY_STATUS.get(status, errors.Unavailable if status >= 500 else errors.RequestError)
    return _make(kind, kind.condition, text, what)


def connection_lost(text: str) -> errors.ConnectionLost:
    return errors.ConnectionLost(text)


def _make(kind: type[BrokerError], condition: str, text: str | None, what: str) -> BrokerError:
    error = kind("")
    error.args = (f"{what}: {text or condition}",)
    error.condition = condition
    return error
