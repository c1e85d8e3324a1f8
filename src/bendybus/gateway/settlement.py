"""Outcomes: what a client's settlement asks of a partition, and what we answer.

    accepted                      complete
    released                      release: back, uncounted
    modified                      abandon: back, counted
    modified, undeliverable-here  defer
    rejected                      dead-letter

The same applies to a disposition on a link and to `update-disposition`. An error is returned
as a rejected outcome with the condition that the SDKs look for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bendybus.amqp.annotations import RETRY_DELAY
from bendybus.amqp.codec import encode
from bendybus.amqp.performatives import (
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
)
from bendybus.amqp.types import Symbol
from bendybus.domain.commands import Abandon, Command, Complete, DeadLetter, Defer, Release
from bendybus.domain.durations import parse_duration
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    MessageLockLost,
    NotSupported,
    SessionLockLost,
    Unavailable,
)
from bendybus.names import LockToken, SessionId

__all__ = [
    "command_for_outcome",
    "command_for_status",
    "echo",
    "lock_lost",
    "refused",
    "rejection",
    "session_lost",
]


DELAY_MAX_S: Final = 7 * 86_400


def command_for_outcome(tokens: Sequence[LockToken], outcome: DeliveryState | None) -> Command:
    """A delivery state from a link."""
    match outcome:
        case Accepted():
            return Complete(tokens)
        case Released():
            return Release(tokens)
        case Modified(undeliverable_here=True, message_annotations=properties):
            return Defer(tokens, encode_properties(properties))
        case Modified(message_annotations=properties):
            return _abandon(tokens, properties)
        case Rejected(error=error):
            return _dead_letter(tokens, dict(error.info or {}) if error is not None else {})
        case _:
            raise NotSupported(f"{type(outcome).__name__} is not an outcome that a receiver can give.")


def command_for_status(tokens: Sequence[LockToken], body: Mapping[object, object]) -> Command:
    """The body of an update-disposition request."""
    given = body.get("properties-to-modify")
    properties = dict(given) if isinstance(given, Mapping) else {}
    encoded = encode_properties(properties)
    match body.get("disposition-status"):
        case "completed":
            return Complete(tokens)
        case "abandoned":
            return _abandon(tokens, properties)
        case "defered":  # sic: so do all the SDKs
            return Defer(tokens, encoded)
        case "suspended":
            for name, key in _WHY.items():
                if body.get(key) is not None:
                    properties[name] = body[key]
            return _dead_letter(tokens, properties)
        case status:
            raise ArgumentError(
                f"'{status}' is not a disposition-status: completed, abandoned, defered or suspended."
            )


def _abandon(tokens: Sequence[LockToken], properties: Mapping[str, object] | None) -> Abandon:
    """A property of ours, which any SDK can set, says how long the message rests."""
    if not properties or RETRY_DELAY not in properties:
        return Abandon(tokens, encode_properties(properties))
    others = {name: value for name, value in properties.items() if name != RETRY_DELAY}
    return Abandon(tokens, encode_properties(others), _delay_ms(properties[RETRY_DELAY]))


def _delay_ms(value: object) -> int:
    """Seconds as a number, or a duration in ISO 8601."""
    seconds: object = value
    if isinstance(value, str):
        try:
            seconds = parse_duration(value)
        except ArgumentError:
            seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_MAX_S:
        raise ArgumentError(
            f"'{RETRY_DELAY}' is {value!r}; it must be a number of seconds up to {DELAY_MAX_S}, or a "
            "duration such as PT30S."
        )
    return round(seconds * 1000)


# The properties that say why a message was dead-lettered, and their names in a request.
_WHY: Final = {
    "DeadLetterReason": "deadletter-reason",
    "DeadLetterErrorDescription": "deadletter-description",
}


def _dead_letter(tokens: Sequence[LockToken], properties: dict[str, object]) -> DeadLetter:
    """Reason and description are texts. Any other value is an ordinary property, and keeps its type."""
    reason, description = (_taken_text(properties, name) for name in _WHY)
    return DeadLetter(tokens, reason, description, encode_properties(properties))


def _taken_text(properties: dict[str, object], name: str) -> str | None:
    value = properties.get(name)
    if value is not None and not isinstance(value, str):
        return None
    properties.pop(name, None)
    # py sends "" for a reason that was not given.
    return value or None


def encode_properties(properties: Mapping[str, object] | None) -> bytes | None:
    """Application properties that replace those of the message; their names are strings on the wire."""
    if not properties:
        return None
    return encode({str(name): value for name, value in properties.items()})


def echo(outcome: DeliveryState | None) -> DeliveryState | None:
    """The outcome, as clients expect it to be confirmed."""
    # py takes a rejected outcome that carries an error for a failure, so a dead-lettering is echoed bare.
    return Rejected() if isinstance(outcome, Rejected) else outcome


def rejection(error: BrokerError) -> Rejected:
    return Rejected(error=Error(condition=Symbol(error.condition), description=error.description, info=None))


def lock_lost(path: str) -> MessageLockLost:
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
        f"from the queue '{path}'."
    )


def session_lost(session_id: SessionId, path: str) -> SessionLockLost:
    return SessionLockLost(
        f"The lock of the session '{session_id}' of '{path}' has expired, was released or was taken over. "
        "Please accept the session again."
    )


def refused(error: BrokerError) -> BrokerError:
    """The error that answers a settlement or renewal which failed with `error`.

    An unavailable partition has lost its locks. The client is told so, and not to retry: the SDKs would retry
    for ten seconds inside the call, and then get the same answer.
    """
    if not isinstance(error, Unavailable):
        return error
    return MessageLockLost(f"The lock is lost, and whether the message was settled is not known: {error}")
