"""Sessions by request: locks, states and the list of sessions, at a queue's partitions.

Who asks must hold the session on the same connection; management.py finds the
lock. Enumerating needs no lock. How a session is accepted: session_receiver.py.
"""

from __future__ import annotations

from bendybus.broker.partition_host import PartitionHost
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
from bendybus.errors import Unavailable
from bendybus.gateway.settlement import session_lost
from bendybus.gateway.transactions import Transaction
from bendybus.names import Instant, SessionId

__all__ = ["get_state", "list_sessions", "renew", "set_state", "set_state_in_transaction"]


def _host(queue: Queue, lock: SessionLock) -> PartitionHost:
    host = queue.host_of_token(lock.token)
    if host is None:
        raise session_lost(lock.session_id, queue.path)
    return host


async def _ask_holder(queue: Queue, lock: SessionLock, command: Command) -> Reply:
    """Ask what only the holder may ask: a partition that is away has forgotten who that is."""
    try:
        return await _host(queue, lock).ask(command)
    except Unavailable as away:
        raise session_lost(lock.session_id, queue.path) from away


async def renew(queue: Queue, lock: SessionLock) -> Instant:
    renewed = await _ask_holder(queue, lock, RenewSession(lock))
    assert isinstance(renewed, SessionAccepted)
    return renewed.locked_until


async def get_state(queue: Queue, lock: SessionLock) -> bytes | None:
    return await _host(queue, lock).session_state(lock)


async def set_state(queue: Queue, lock: SessionLock, state: bytes | None) -> None:
    await _ask_holder(queue, lock, SetSessionState(lock, state))


def set_state_in_transaction(
    queue: Queue, lock: SessionLock, state: bytes | None, transaction: Transaction
) -> None:
    transaction.set_state(queue, _host(queue, lock), SetSessionState(lock, state))


async def list_sessions(
    queue: Queue, updated_after: Instant | None, skip: int, count: int
) -> list[SessionId]:
    """So many sessions after the first `skip`, partition by partition."""
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
