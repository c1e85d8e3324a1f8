"""Source filters by which a receiver asks for a session, and the same filters in the answer.

    com.microsoft:session-filter                      a session's id, or null for the next one
    com.microsoft:non-exclusive-session-filter:list   [id or null, lock token or null]

The second one accepts a session that can be handed over. The answer has its lock token. A
receiver that presents the token takes the session over from its holder. The token is as good
as the lock, so no error and no log line shows it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bendybus.amqp.performatives import Source
from bendybus.amqp.types import Described
from bendybus.domain.routing import KEY_LENGTH_MAX
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import ArgumentError
from bendybus.names import LockToken, SessionId

__all__ = ["SESSION_FILTER", "WantedSession", "answer_source", "is_session_filter", "wanted_session"]

SESSION_FILTER: Final = "com.microsoft:session-filter"
HANDOVER_FILTER: Final = "com.microsoft:non-exclusive-session-filter:list"
# Some clients describe it by its code, and key it by a name of their own.
HANDOVER_DESCRIPTORS: Final = (0x137000000E, HANDOVER_FILTER)


@dataclass(frozen=True, slots=True)
class WantedSession:
    """What an attach asks for."""

    session_id: SessionId | None
    """None for the next one."""
    exclusive: bool = True
    handover: LockToken | None = None
    """The token that takes the session over from its holder."""


def wanted_session(source: object) -> WantedSession | None:
    """None if the source has no session filter; `ArgumentError` if the filter is invalid."""
    filters = _filters(source)
    name = _handover_name(filters)
    if name is None:
        return (
            WantedSession(_session_id(_plain(filters[SESSION_FILTER]))) if SESSION_FILTER in filters else None
        )
    if SESSION_FILTER in filters:
        raise ArgumentError(f"A source has either {SESSION_FILTER} or {HANDOVER_FILTER}, not both.")
    fields = _plain(filters[name])
    if not isinstance(fields, list) or len(fields) > 2:
        raise ArgumentError(f"{HANDOVER_FILTER} must be a list of a session's id and a lock token.")
    # Trailing nulls of a list may be left out. [AMQP 1.4]
    session_id, token = [*fields, None, None][:2]
    if token is not None and not isinstance(token, uuid.UUID):
        raise ArgumentError(f"The lock token of {HANDOVER_FILTER} must be a uuid or null.")
    if token is not None and session_id is None:
        raise ArgumentError(f"The lock token of {HANDOVER_FILTER} needs the id of the session it is for.")
    handover = None if token is None else LockToken(token.bytes_le)
    return WantedSession(_session_id(session_id), exclusive=False, handover=handover)


def is_session_filter(name: str, value: object) -> bool:
    """Whether this filter of a source asks for a session."""
    return name == SESSION_FILTER or _asks_for_handover(name, value)


def answer_source(source: object, lock: SessionLock) -> Source:
    """The client's source with the session that was accepted, under the same key and in the same shape."""
    assert isinstance(source, Source), "it had a filter"
    name = _handover_name(_filters(source)) or SESSION_FILTER
    value: object = lock.session_id
    if lock.handover is not None:
        # On the wire a token is a GUID in .NET's byte order.
        value = [lock.session_id, uuid.UUID(bytes_le=lock.handover)]
    asked = _filters(source).get(name)
    if isinstance(asked, Described):
        value = Described(asked.descriptor, value)
    return Source(
        source.address,
        source.durable,
        source.expiry_policy,
        source.timeout,
        source.dynamic,
        source.dynamic_node_properties,
        source.distribution_mode,
        {name: value},
        source.default_outcome,
        source.outcomes,
        source.capabilities,
    )


def _handover_name(filters: Mapping[str, object]) -> str | None:
    """The key under which a client asks for a session that can be handed over, if it does."""
    return next((name for name, value in filters.items() if _asks_for_handover(name, value)), None)


def _asks_for_handover(name: str, value: object) -> bool:
    described = isinstance(value, Described) and value.descriptor in HANDOVER_DESCRIPTORS
    return described or name == HANDOVER_FILTER


def _session_id(wanted: object) -> SessionId | None:
    if wanted is not None and not isinstance(wanted, str):
        raise ArgumentError(f"{SESSION_FILTER} must be a session's id or null, not {wanted!r}.")
    if wanted is not None and len(wanted) > KEY_LENGTH_MAX:
        raise ArgumentError(
            f"SessionId '{wanted[:32]}...' has {len(wanted)} characters; at most {KEY_LENGTH_MAX} may be."
        )
    return None if wanted is None else SessionId(str(wanted))


def _plain(value: object) -> object:
    """go and .NET describe the value; all others write it plain."""
    return value.value if isinstance(value, Described) else value


def _filters(source: object) -> Mapping[str, object]:
    return getattr(source, "filter", None) or {}
