"""Locked and deferred messages over HTTP: renewed, settled, and received by their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import urandom
from typing import Final
from uuid import UUID

from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Given,
    LockDeferred,
    Renew,
    Renewed,
    Settled,
)
from bendybus.errors import ArgumentError, BrokerError, MessageNotFound
from bendybus.names import LockToken, SequenceNumber
from bendybus.rest.calls import Operation, RestCall
from bendybus.rest.messages import message_id, show
from bendybus.rest.receiving import Received
from bendybus.rest.sessions import HeldSession

__all__ = ["receive_deferred", "settle"]

# As for a receiver over AMQP (gateway/settlement.py).
DELAY_MAX_S: Final = 7 * 86_400


async def settle(call: RestCall, queue: Queue, query: Mapping[str, Sequence[str]]) -> None:
    """Renew the lock of the one message that is meant, or settle the message."""
    command = _settlement(call.operation, query)
    host, token = await _find(call, queue)
    if command is None:
        reply = await host.ask(Renew([token]))
        assert isinstance(reply, Renewed)
        lost = None in reply.locked_until
    else:
        command.lock_tokens = [token]
        reply = await host.ask(command)
        assert isinstance(reply, Settled)
        lost = bool(reply.lost)
    if lost:
        raise _no_such_lock(call, queue)


def _settlement(
    operation: Operation, query: Mapping[str, Sequence[str]]
) -> Complete | Abandon | Defer | DeadLetter | None:
    """The command of an operation, without its message; None for a renewal."""
    match operation:
        case Operation.COMPLETE:
            return Complete([])
        case Operation.UNLOCK:
            return Abandon([], None, _delay_ms(query))
        case Operation.DEFER:
            return Defer([])
        case Operation.DEAD_LETTER:
            reason, description = (query.get(name, [None])[-1] for name in ("reason", "description"))
            return DeadLetter([], reason or None, description or None)
    return None


def _delay_ms(query: Mapping[str, Sequence[str]]) -> int | None:
    if not (given := query.get("delay")):
        return None
    try:
        seconds = float(given[-1])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= DELAY_MAX_S:
        raise ArgumentError(
            f"The delay must be a number of seconds up to {DELAY_MAX_S}, not '{given[-1][:60]}'."
        )
    return round(seconds * 1000)


async def _find(call: RestCall, queue: Queue) -> tuple[ReceivingPort, LockToken]:
    """The partition and the lock meant by a message's id or number together with a lock token."""
    try:
        token = LockToken(UUID(call.lock_token).bytes_le)
    except ValueError:
        raise ArgumentError(f"'{call.lock_token[:60]}' is not a lock token, which is a GUID.") from None
    host = queue.host_of_token(token)
    message = None if host is None else await host.find_locked(token)
    if host is None or message is None or message.subqueue is not call.subqueue:
        raise _no_such_lock(call, queue)
    if call.session_lock and not HeldSession(queue, call).includes(message):
        raise _no_such_lock(call, queue)
    if call.message != str(message.sequence_number):
        (payload,) = await host.payloads([message])
        if payload is None or message_id(message, payload) != call.message:
            raise _no_such_lock(call, queue)
    return host, token


def _no_such_lock(call: RestCall, queue: Queue) -> MessageNotFound:
    return MessageNotFound(
        f"'{queue.path}' has no message '{call.message[:128]}' under the lock '{call.lock_token}'. "
        "Either the lock expired, or the message has already been removed."
    )


async def receive_deferred(call: RestCall, queue: Queue) -> Received:
    """The deferred message with this number, locked or deleted (B-06). `MessageNotFound` if there is none."""
    number, deletes = SequenceNumber(int(call.message)), call.operation is Operation.TAKE_DEFERRED
    host = queue.host_of_sequence_number(number)
    if host is None:
        raise MessageNotFound(f"'{queue.path}' has no message with the sequence number {number}.")
    session = HeldSession(queue, call).lock if call.session_lock else None
    given = await host.ask(LockDeferred([number], urandom(ENTROPY_PER_LOCK), call.subqueue, session))
    assert isinstance(given, Given)
    (message,) = given.messages
    token = message.lock_token
    assert token is not None, "it was just locked"
    try:
        (payload,) = await host.payloads([message])
        if payload is None:
            raise MessageNotFound(f"The message {number} of '{queue.path}' has been removed.")
        received = Received(number, token, show(message, payload, locked=not deletes))
        if deletes:
            await host.ask(Complete([token]))
    except BrokerError:
        host.release([token])
        raise
    return received
