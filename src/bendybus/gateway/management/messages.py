"""Messages by request: `peek-message`, `receive-by-sequence-number` and `batch-delete-messages`.

They cover all partitions of a queue or subscription. An unavailable partition is skipped if any messages will
do, and causes an error if the request names messages in it. Locks of received messages: locks.py. Scheduled
messages: scheduling.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from copy import copy
from os import urandom
from typing import Final

from bendybus import audit
from bendybus.amqp.types import Int
from bendybus.auth.rights import Right
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Complete,
    Deleted,
    DeleteOldest,
    Given,
    LockDeferred,
    Peek,
    Settled,
)
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SessionLock
from bendybus.envelope import render, render_peeked
from bendybus.errors import ArgumentError, BrokerError, MessageNotFound, Unavailable
from bendybus.gateway.management.fields import Body, flag, sequence_numbers, session_id_of, whole_number
from bendybus.gateway.management.operation import Answer, Managed, Operation, by_partition
from bendybus.gateway.settlement import lock_lost
from bendybus.names import PARTITION_SHIFT, Instant, LockToken, SequenceNumber

__all__ = ["OPERATIONS"]

# "a peek may return fewer than asked (256 KB per answer ...)" (P-30)
PEEK_BYTES_MAX: Final = 256 * 1024

# More in one answer than any SDK asks for; the size bound usually ends it sooner.
PEEK_COUNT_MAX: Final = 5000

# "Batch delete: 500 Standard, 4,000 Premium per call"; the larger serves both.
DELETED_AT_ONCE_MAX: Final = 4000

# Deferred messages in one answer: 64 of the largest in Standard.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


# -- looking ----------------------------------------------------------------------


async def _peek(managed: Managed, body: Body) -> Answer:
    """Browse in the order of sequence numbers, which walks partition after partition."""
    first = whole_number(body, "from-sequence-number")
    count = min(whole_number(body, "message-count"), PEEK_COUNT_MAX)
    found: list[bytes] = []
    size = 0
    session_id = session_id_of(body)
    without_body = flag(body, "omit-message-body")
    queue = managed.queue
    hosts = queue.hosts[max(first, 0) >> PARTITION_SHIFT :]
    if session_id is not None:
        hosts = [queue.host_for(queue.session_key(session_id))]
    for host in hosts:
        if count <= len(found) or size >= PEEK_BYTES_MAX:
            break
        try:
            command = Peek(SequenceNumber(first), count - len(found), managed.subqueue, session_id)
            given = await host.ask(command)
            assert isinstance(given, Given)
            # Copies: while payloads are read, a message may get another number or leave.
            messages = list(map(copy, _first_bytes(given.messages, PEEK_BYTES_MAX - size)))
            payloads = await host.payloads(messages)
        except Unavailable:
            # "A slow or dead store delays nobody: the others' messages flow" (P-27)
            continue
        for message, payload in zip(messages, payloads, strict=True):
            if payload is None:
                continue
            rendered = render_peeked(message, payload, without_body=without_body)
            size += len(rendered)
            if found and size > PEEK_BYTES_MAX:
                break
            found.append(rendered)
    return {"messages": [{"message": message} for message in found]} if found else None


def _first_bytes(messages: list[Message], size_max: int) -> list[Message]:
    """Those that have `size_max` bytes together, and one more: what is not answered need not be read."""
    size = 0
    for count, message in enumerate(messages, 1):
        size += message.size
        if size > size_max:
            return messages[:count]
    return messages


# -- deferred messages ------------------------------------------------------------


async def _receive_by_sequence_number(managed: Managed, body: Body) -> Answer:
    numbers = sequence_numbers(body)
    deletes = whole_number(body, "receiver-settle-mode", 1) == 0
    queue, subqueue = managed.queue, managed.subqueue
    session = managed.session(body) if queue.has_sessions(subqueue) else None
    taken: list[tuple[ReceivingPort, list[Message]]] = []
    try:
        for host, share in _shares(queue, numbers, session).items():
            entropy = urandom(ENTROPY_PER_LOCK * len(share))
            given = await host.ask(LockDeferred(share, entropy, subqueue, session))
            assert isinstance(given, Given)
            taken.append((host, given.messages))
        _refuse_beyond_answer([message for _, messages in taken for message in messages])
        answers: dict[SequenceNumber, dict[str, object]] = {}
        for host, messages in taken:
            for message, payload in zip(messages, await host.payloads(messages), strict=True):
                if payload is None:
                    raise lock_lost(queue.path)
                answers[message.sequence_number] = _deferred(message, payload, locked=not deletes)
        if deletes:
            # Not before all of them have been read: what is removed for an answer that is not given is lost.
            for host, messages in taken:
                removed = await host.ask(Complete(_tokens(messages)))
                assert isinstance(removed, Settled)
                if removed.lost:
                    raise lock_lost(queue.path)
    except BrokerError:
        # All or none: a message locked for an answer that is not given is put back.
        for host, messages in taken:
            host.release(_tokens(messages))
        raise
    return {"messages": [answers[number] for number in numbers]}


def _shares(
    queue: Queue, numbers: Sequence[SequenceNumber], session: SessionLock | None
) -> dict[ReceivingPort, list[SequenceNumber]]:
    """Each partition's; those of a session are all in its own."""
    shares = by_partition(queue, numbers)
    if session is not None and set(shares) - {queue.host_of_token(session.token)}:
        raise MessageNotFound(f"Not all of these messages of '{queue.path}' are in the session.")
    return shares


def _refuse_beyond_answer(messages: Sequence[Message]) -> None:
    size = sum(message.size for message in messages)
    if size > ANSWER_BYTES_MAX:
        raise ArgumentError(
            f"The {len(messages)} messages asked for have {size} bytes; one answer holds {ANSWER_BYTES_MAX}. "
            "Please ask for fewer."
        )


def _deferred(message: Message, payload: bytes, *, locked: bool) -> dict[str, object]:
    answer: dict[str, object] = {"message": b"".join(render(message, payload, locked=locked))}
    if locked:
        assert message.lock_token is not None
        answer["lock-token"] = uuid.UUID(bytes_le=message.lock_token)
    return answer


def _tokens(messages: Sequence[Message]) -> list[LockToken]:
    return [message.lock_token for message in messages if message.lock_token is not None]


# -- deleting ---------------------------------------------------------------------


async def _batch_delete(managed: Managed, body: Body) -> Answer:
    """The oldest messages that nobody has locked, over all partitions (which Azure cannot)."""
    wanted = whole_number(body, "message-count")
    if wanted < 1:
        raise ArgumentError(f"'message-count' must be at least 1, not {wanted}.")
    wanted = min(wanted, DELETED_AT_ONCE_MAX)
    before = Instant(whole_number(body, "enqueued-time-utc"))
    queue, subqueue = managed.queue, managed.subqueue
    queue.refuse_receiving(subqueue)
    session_id = session_id_of(body)
    deleted = 0
    for host in queue.in_turn():
        if deleted >= wanted:
            break
        try:
            reply = await host.ask(DeleteOldest(wanted - deleted, before, subqueue, session_id))
        except Unavailable:
            # "A slow or dead store delays nobody" (P-27)
            continue
        assert isinstance(reply, Deleted)
        deleted += reply.count
    if not deleted:
        return None
    audit.record("messages-deleted", entity=managed.entity.path, messages=deleted)
    return {"message-count": Int(deleted)}


OPERATIONS: Final[Mapping[str, Operation]] = {
    "com.microsoft:peek-message": Operation(Right.LISTEN, _peek),
    "com.microsoft:receive-by-sequence-number": Operation(Right.LISTEN, _receive_by_sequence_number),
    "com.microsoft:batch-delete-messages": Operation(Right.LISTEN, _batch_delete),
}
