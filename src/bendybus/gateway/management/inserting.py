"""Operations of `$management` that fill an entity with the contents of another one, for tools that move them.

Nobody can send to a subscription, send a deferred message or a dead letter, or set the state of a session
without holding it. These operations write them as they are, and need the right Manage. Reading the states
is here too. Nothing of this is in Service Bus: docs/reference/extensions.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from os import urandom
from typing import Final, TypeVar

from bendybus import audit
from bendybus.auth.rights import Right
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import ENTROPY_PER_LOCK, Enqueue, Enqueued
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    ReleaseSession,
    SessionAccepted,
    SessionLock,
    SetSessionState,
)
from bendybus.envelope import admit
from bendybus.errors import ArgumentError, InvalidOperation, MessageSizeExceeded
from bendybus.gateway.management.fields import Body, array
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.names import RoutingKey, SessionId

__all__ = ["OPERATIONS"]

T = TypeVar("T")

# A copy is the message with a mark of the tool, so it may be a little larger than what could be sent.
MARK_BYTES_MAX: Final = 1024

# In one answer with states. The client asks again for those that are left.
STATES_BYTES_MAX: Final = 4 * 1024 * 1024


# -- messages ---------------------------------------------------------------------


async def _insert_messages(managed: Managed, body: Body) -> Answer:
    """Each partition takes its share at once, all of it or none, in the order of the request.

    Messages without a key go to one partition together.
    """
    queue, subqueue = managed.queue, managed.subqueue
    if subqueue not in (SubQueue.MAIN, SubQueue.DEAD_LETTER):
        raise InvalidOperation(f"Nothing can be inserted into this sub-queue of '{queue.path}'.")
    shares: dict[ReceivingPort, list[Message]] = {}
    hosts: dict[RoutingKey | None, ReceivingPort] = {}
    for entry in array(body, "messages"):
        message, key = _admitted(queue, entry)
        message.subqueue = subqueue
        if key not in hosts:
            hosts[key] = queue.host_for(key)
        shares.setdefault(hosts[key], []).append(message)
    count = 0
    for host, messages in shares.items():
        enqueued = await host.ask(Enqueue(messages, shelved=True))
        assert isinstance(enqueued, Enqueued)
        count += enqueued.count
    audit.record("messages-inserted", entity=queue.path, messages=count)
    return {"inserted": count}


def _admitted(queue: Queue, entry: object) -> tuple[Message, RoutingKey | None]:
    payload = entry.get("message") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(payload, bytes):
        raise ArgumentError("'messages' must hold maps, each with an encoded 'message'.")
    limit = queue.description.max_message_bytes + MARK_BYTES_MAX
    if len(payload) > limit:
        raise MessageSizeExceeded(f"A message has {len(payload)} bytes; '{queue.path}' takes up to {limit}.")
    message, key = admit(payload, queue.now(), queue.description)
    if message.state is MessageState.SCHEDULED:
        raise ArgumentError("A message that is not due yet cannot be inserted: send it.")
    state = entry.get("state", 0)
    if state not in (MessageState.ACTIVE, MessageState.DEFERRED) or isinstance(state, bool):
        raise ArgumentError(f"'state' must be 0 active or 1 deferred, not {state!r}.")
    message.state = MessageState(state)
    return message, key


# -- states of sessions -----------------------------------------------------------


async def _get_session_states(managed: Managed, body: Body) -> Answer:
    queue = managed.queue
    states: list[dict[str, object]] = []
    size = 0
    for each in array(body, "session-ids"):
        session_id = _session_id(each)
        state = await _holding(queue, session_id, lambda host, lock: host.session_state(lock))
        states.append({"session-id": session_id, "session-state": state})
        size += len(state or b"")
        if size > STATES_BYTES_MAX:
            break
    return {"states": states}


async def _set_session_states(managed: Managed, body: Body) -> Answer:
    queue = managed.queue
    for entry in array(body, "states"):
        if not isinstance(entry, Mapping):
            raise ArgumentError("'states' must hold maps, each with 'session-id' and 'session-state'.")
        state = entry.get("session-state")
        if state is not None and not isinstance(state, bytes):
            raise ArgumentError(f"'session-state' must be binary or null, not {type(state).__name__}.")
        await _set(queue, _session_id(entry.get("session-id")), state or None)
    return {}


async def _set(queue: Queue, session_id: SessionId, state: bytes | None) -> None:
    await _holding(queue, session_id, lambda host, lock: host.ask(SetSessionState(lock, state)))


async def _holding(
    queue: Queue, session_id: SessionId, work: Callable[[ReceivingPort, SessionLock], Awaitable[T]]
) -> T:
    """Hold a session for as long as this takes. `SessionCannotBeLocked` if a receiver holds it."""
    host = queue.host_for(queue.session_key(session_id))
    accepted = await host.ask(AcceptSession(session_id, urandom(ENTROPY_PER_LOCK)))
    assert isinstance(accepted, SessionAccepted) and accepted.lock is not None
    try:
        return await work(host, accepted.lock)
    finally:
        await host.ask(ReleaseSession(accepted.lock))


def _session_id(value: object) -> SessionId:
    if not isinstance(value, str):
        raise ArgumentError(f"A session is named by a string, not {value!r}.")
    return SessionId(value)


OPERATIONS: Final[Mapping[str, Operation]] = {
    "bendybus:insert-messages": Operation(Right.MANAGE, _insert_messages),
    "bendybus:get-session-states": Operation(Right.LISTEN, _get_session_states),
    "bendybus:set-session-states": Operation(Right.MANAGE, _set_session_states),
}
