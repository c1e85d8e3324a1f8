"""Sessions by request: their locks, their states, and the list of them, at a queue's partitions.

The client must hold the session on the same connection (`Managed.session`).
Listing sessions needs no lock. How a session is accepted: gateway/session_receiver.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bendybus.amqp.types import Array, Int, Timestamp
from bendybus.auth.rights import Right
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Command, Reply
from bendybus.domain.session_commands import (
    ListSessions,
    RenewSession,
    SessionAccepted,
    SessionLock,
    SessionsListed,
    SetSessionState,
)
from bendybus.errors import ArgumentError, Unavailable
from bendybus.gateway.management.fields import Body, whole_number
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.gateway.settlement import session_lost
from bendybus.gateway.transaction import Transaction
from bendybus.names import Instant, SessionId

__all__ = ["OPERATIONS"]

# The year 10000: instead of the sessions whose state was set since, all that have messages or a state.
ALL_SESSIONS: Final = 253_402_300_800_000

# SDKs ask for 100 at a time.
SESSIONS_LISTED_MAX: Final = 1000


# -- the one that is held ---------------------------------------------------------


async def _renew_lock(managed: Managed, body: Body) -> Answer:
    queue, lock = managed.queue, managed.session(body)
    renewed = await _ask_holder(queue, lock, RenewSession(lock))
    assert isinstance(renewed, SessionAccepted)
    return {"expiration": Timestamp(renewed.locked_until)}


async def _get_state(managed: Managed, body: Body) -> Answer:
    queue, lock = managed.queue, managed.session(body)
    return {"session-state": await _host(queue, lock).session_state(lock)}


async def _set_state(managed: Managed, body: Body) -> Answer:
    queue, lock = managed.queue, managed.session(body)
    await _ask_holder(queue, lock, SetSessionState(lock, _state(body)))
    return {}


async def _set_state_in_transaction(managed: Managed, body: Body, transaction: Transaction) -> Answer:
    queue, lock = managed.queue, managed.session(body)
    state = _state(body)
    transaction.set_state(queue, _host(queue, lock), SetSessionState(lock, state))
    return {}


def _state(body: Body) -> bytes | None:
    state = body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentError(f"'session-state' must be binary or null, not {type(state).__name__}.")
    # go writes an empty binary for none, and to Service Bus they are the same.
    return state or None


async def _ask_holder(queue: Queue, lock: SessionLock, command: Command) -> Reply:
    """Submit a command of the session's holder. An unavailable partition has lost its session locks."""
    try:
        return await _host(queue, lock).ask(command)
    except Unavailable as away:
        raise session_lost(lock.session_id, queue.path) from away


def _host(queue: Queue, lock: SessionLock) -> ReceivingPort:
    host = queue.host_of_token(lock.token)
    if host is None:
        raise session_lost(lock.session_id, queue.path)
    return host


# -- all of them ------------------------------------------------------------------


async def _get_message_sessions(managed: Managed, body: Body) -> Answer:
    skip, top = whole_number(body, "skip"), whole_number(body, "top")
    after = whole_number(body, "last-updated-time")
    if skip < 0 or top < 0:
        raise ArgumentError(f"'skip' and 'top' must not be negative: {skip}, {top}.")
    updated_after = None if after >= ALL_SESSIONS else Instant(after)
    found = await _list(managed.queue, updated_after, skip, min(top, SESSIONS_LISTED_MAX))
    if not found:
        return None
    return {"skip": Int(skip + len(found)), "sessions-ids": Array(str, [*found])}


async def _list(queue: Queue, updated_after: Instant | None, skip: int, count: int) -> list[SessionId]:
    """This many sessions after the first `skip`, partition by partition."""
    found: list[SessionId] = []
    for host in queue.hosts:
        if len(found) >= count:
            break
        try:
            listed = await host.ask(ListSessions(updated_after, skip, count - len(found)))
        except Unavailable:
            # "A slow or dead store delays nobody" (P-27)
            continue
        assert isinstance(listed, SessionsListed)
        found += listed.session_ids
        skip = max(0, skip - listed.matching)
    return found


OPERATIONS: Final[Mapping[str, Operation]] = {
    "com.microsoft:renew-session-lock": Operation(Right.LISTEN, _renew_lock),
    "com.microsoft:get-session-state": Operation(Right.LISTEN, _get_state),
    "com.microsoft:set-session-state": Operation(Right.LISTEN, _set_state, _set_state_in_transaction),
    "com.microsoft:get-message-sessions": Operation(Right.LISTEN, _get_message_sessions),
}
