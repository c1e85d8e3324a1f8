"""The fields of a request's body: each is read with its type, or refused with an error that names it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from bendybus.amqp.types import Array
from bendybus.domain.messages import MessageState
from bendybus.errors import ArgumentError
from bendybus.names import Instant, LockToken, SequenceNumber, SessionId

__all__ = [
    "Body",
    "array",
    "flag",
    "lock_tokens",
    "sequence_numbers",
    "session_id_of",
    "states_of",
    "time_of",
    "whole_number",
]

Body: TypeAlias = Mapping[object, object]


def lock_tokens(body: Body) -> list[LockToken]:
    tokens = array(body, "lock-tokens")
    if not all(isinstance(token, uuid.UUID) for token in tokens):
        raise ArgumentError("'lock-tokens' holds something that is not a uuid.")
    # On links a token is a GUID in .NET's byte order; here it is an ordinary UUID.
    return [LockToken(token.bytes_le) for token in tokens if isinstance(token, uuid.UUID)]


def session_id_of(body: Body) -> SessionId | None:
    session_id = body.get("session-id")
    if session_id is not None and not isinstance(session_id, str):
        raise ArgumentError(f"'session-id' must be a string, not {session_id!r}.")
    return None if session_id is None else SessionId(session_id)


def sequence_numbers(body: Body) -> list[SequenceNumber]:
    """Each number once: otherwise the answer to a small request could be a gigabyte."""
    asked = dict.fromkeys(_integer(each, "sequence-numbers") for each in array(body, "sequence-numbers"))
    return [SequenceNumber(number) for number in asked]


def array(body: Body, name: str) -> Sequence[object]:
    value = body.get(name)
    values = value.values if isinstance(value, Array) else value
    if not isinstance(values, list) or not values:
        raise ArgumentError(f"'{name}' must be an array with at least one element.")
    return values


def states_of(
    body: Body, default: Collection[MessageState] = (MessageState.ACTIVE,)
) -> Collection[MessageState]:
    """Only active messages, unless the request names other states."""
    if body.get("states") is None:
        return default
    asked = array(body, "states")
    states = frozenset(state for state in MessageState if state in asked)
    if len(states) < len(asked):
        raise ArgumentError(
            "'states' holds something else than 0 active, 1 deferred, 2 scheduled, each once."
        )
    return states


def time_of(body: Body, name: str) -> Instant | None:
    """In milliseconds since 1970, as a number or a timestamp; None if the field is missing."""
    return None if body.get(name) is None else Instant(whole_number(body, name))


def flag(body: Body, name: str) -> bool:
    """False if the field is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"'{name}' must be true or false, not {value!r}.")
    return bool(value)


def whole_number(body: Body, name: str, default: int | None = None) -> int:
    return _integer(body.get(name, default), name)


def _integer(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"'{name}' must be a whole number, not {value!r}.")
    return value
