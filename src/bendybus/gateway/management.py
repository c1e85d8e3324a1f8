"""`$management`: what a link cannot say, as requests with an operation and a map.

Each operation is one method, found by its name on the wire in `_OPERATIONS`;
those that Service Bus does not have are in extensions.py.
Arrays are AMQP arrays and numbers have the width that the SDKs insist on.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from os import urandom
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from bendybus.amqp.types import Array, Int, Symbol, Timestamp
from bendybus.auth.claims import Claims
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.entity import Entity
from bendybus.broker.host import Host
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription, Target
from bendybus.broker.topics import Topics
from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Command,
    Complete,
    Deleted,
    DeleteOldest,
    Given,
    LockDeferred,
    Peek,
    Renew,
    Renewed,
    Reply,
    Settled,
)
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SessionLock
from bendybus.envelope import render, render_deferred, render_peeked
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    InvalidOperation,
    MessageNotFound,
    NotSupported,
    Unavailable,
)
from bendybus.gateway.addresses import Address
from bendybus.gateway.extensions import EXTENSIONS, Extension
from bendybus.gateway.requests import Request, Response
from bendybus.gateway.rules import encode_rule, read_rule
from bendybus.gateway.scheduling import cancel, schedule, schedule_in_transaction
from bendybus.gateway.session_requests import (
    get_state,
    list_sessions,
    renew,
    set_state,
    set_state_in_transaction,
)
from bendybus.gateway.settlement import command_for_status, lock_lost, refused, session_lost
from bendybus.gateway.transactions import Transaction, Transactions
from bendybus.names import PARTITION_SHIFT, Instant, LockToken, SequenceNumber, SessionId

__all__ = ["ManagementNode"]

# "a peek may return fewer than asked (256 KB per answer ...)" (P-30)
PEEK_BYTES_MAX: Final = 256 * 1024

# More in one answer than any SDK asks for; the size bound usually ends it sooner.
PEEK_COUNT_MAX: Final = 5000

# "Batch delete: 500 Standard, 4,000 Premium per call"; the larger serves both.
DELETED_AT_ONCE_MAX: Final = 4000

# Deferred messages in one answer: 64 of the largest in Standard.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

# The year 10000: instead of the sessions whose state was set since, all that have messages or a state.
ALL_SESSIONS: Final = 253_402_300_800_000

# SDKs ask for 100 at a time.
SESSIONS_LISTED_MAX: Final = 1000

H = TypeVar("H", bound=Host[Any])

Body: TypeAlias = Mapping[object, object]
Answer: TypeAlias = dict[str, object] | None
"""The response's body; None where there is nothing to be had (204)."""


class ManagementNode:
    """One connection's view of one entity's `$management`."""

    def __init__(
        self,
        entity: Target,
        address: Address,
        claims: Claims,
        transactions: Transactions,
        topics: Topics,
        session_locks: Mapping[tuple[Queue, SessionId], SessionLock],
        session_links: Mapping[tuple[Queue, str], SessionId],
    ) -> None:
        self._entity = entity
        self._session_locks = session_locks
        self._session_links = session_links
        self._subqueue = address.subqueue
        self._resource = address.resource
        self._claims = claims
        self._transactions = transactions
        self._topics = topics

    @property
    def _queue(self) -> Queue:
        """For the operations of receivers; a topic has none."""
        if not isinstance(self._entity, Queue):
            raise InvalidOperation(
                f"'{self._entity.path}' is a topic; messages are received from its subscriptions."
            )
        return self._entity

    @property
    def _subscription(self) -> Subscription:
        if not isinstance(self._entity, Subscription):
            raise InvalidOperation(f"'{self._entity.path}' has no rules: subscriptions have.")
        return self._entity

    async def handle(self, request: Request) -> Response:
        try:
            operation = _OPERATIONS.get(request.operation)
            if operation is None:
                raise NotSupported(f"The operation '{request.operation}' is not supported.")
            self._claims.require(self._resource, operation.right, now())
            self._entity.accessed_at = self._entity.now()
            if not isinstance(request.body, Mapping):
                raise ArgumentError(f"'{request.operation}' needs a map as its body.")
            asked = self._with_session(request, request.body)
            if request.state is None:
                body = await operation.run(self, asked)
            else:
                body = await self._enlist(request, asked)
        except BrokerError as error:
            return _status(error.status, error.description, error.condition)
        return _status(204, "No content") if body is None else _status(200, "OK", body=body)

    async def _enlist(self, request: Request, body: Body) -> Answer:
        """A request that is to be a part of a transaction."""
        transaction = self._transactions.find(request.state)
        try:
            run = _IN_TRANSACTIONS.get(request.operation)
            if run is None:
                raise InvalidOperation(f"'{request.operation}' cannot be part of a transaction.")
            return await run(self, body, transaction)
        except BrokerError as refusal:
            transaction.failure = transaction.failure or refusal
            raise

    # -- looking ------------------------------------------------------------------

    async def _peek(self, body: Body) -> Answer:
        """Browse in the order of sequence numbers, which walks partition after partition."""
        first = _whole_number(body, "from-sequence-number")
        count = min(_whole_number(body, "message-count"), PEEK_COUNT_MAX)
        found: list[bytes] = []
        size = 0
        session_id = _session_id(body)
        hosts = self._queue.hosts[max(first, 0) >> PARTITION_SHIFT :]
        if session_id is not None:
            hosts = [self._queue.place(session_id)]
        for host in hosts:
            if count <= len(found) or size >= PEEK_BYTES_MAX:
                break
            try:
                peek = Peek(SequenceNumber(first), count - len(found), self._subqueue, session_id)
                given = await host.ask(peek)
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
                rendered = render_peeked(message, payload)
                size += len(rendered)
                if found and size > PEEK_BYTES_MAX:
                    break
                found.append(rendered)
        return {"messages": [{"message": message} for message in found]} if found else None

    # -- deferred messages --------------------------------------------------------

    async def _receive_by_sequence_number(self, body: Body) -> Answer:
        numbers = _sequence_numbers(body)
        deletes = _integer(body.get("receiver-settle-mode", 1)) == 0
        session = self._session(body) if self._queue.has_sessions(self._subqueue) else None
        taken: list[tuple[PartitionHost, list[Message]]] = []
        try:
            for host, share in self._by_partition(numbers, session).items():
                entropy = urandom(ENTROPY_PER_LOCK * len(share))
                given = await host.ask(LockDeferred(share, entropy, self._subqueue, session))
                assert isinstance(given, Given)
                taken.append((host, given.messages))
            _refuse_beyond_answer([message for _, messages in taken for message in messages])
            answers: dict[SequenceNumber, dict[str, object]] = {}
            for host, messages in taken:
                for message, payload in zip(messages, await host.payloads(messages), strict=True):
                    if payload is None:
                        raise lock_lost(self._queue.path)
                    answers[message.sequence_number] = _deferred(message, payload, locked=not deletes)
                if deletes:
                    await host.ask(Complete(_tokens(messages)))
        except BrokerError:
            # All or none: a message locked for an answer that is not given is put back.
            for host, messages in taken:
                host.release(_tokens(messages))
            raise
        return {"messages": [answers[number] for number in numbers]}

    def _by_partition(
        self, numbers: Sequence[SequenceNumber], session: SessionLock | None
    ) -> dict[PartitionHost, list[SequenceNumber]]:
        """Each partition's share; those of a session are all in its own."""
        shares = _by_partition(self._queue, numbers)
        if session is not None and set(shares) - {self._queue.host_of_token(session.token)}:
            raise MessageNotFound(f"Not all of these messages of '{self._queue.path}' are in the session.")
        return shares

    async def _batch_delete(self, body: Body) -> Answer:
        """The oldest messages that nobody has locked, over all partitions (which Azure cannot)."""
        wanted = _whole_number(body, "message-count")
        if wanted < 1:
            raise ArgumentError(f"'message-count' must be at least 1, not {wanted}.")
        wanted = min(wanted, DELETED_AT_ONCE_MAX)
        before = Instant(_whole_number(body, "enqueued-time-utc"))
        self._queue.refuse_receiving(self._subqueue)
        session_id = body.get("session-id")
        if session_id is not None and not isinstance(session_id, str):
            raise ArgumentError(f"'session-id' must be a string, not {session_id!r}.")
        session = None if session_id is None else SessionId(session_id)
        deleted = 0
        for host in self._queue.in_turn():
            if deleted >= wanted:
                break
            try:
                reply = await host.ask(DeleteOldest(wanted - deleted, before, self._subqueue, session))
            except Unavailable:
                # "A slow or dead store delays nobody" (P-27)
                continue
            assert isinstance(reply, Deleted)
            deleted += reply.count
        return {"message-count": Int(deleted)} if deleted else None

    # -- scheduled messages -------------------------------------------------------

    async def _schedule(self, body: Body) -> Answer:
        self._entity.refuse_sending(self._subqueue)
        numbers = await schedule(self._entity, _array(body, "messages"))
        return {"sequence-numbers": Array(int, [*numbers])}

    async def _cancel_scheduled(self, body: Body) -> Answer:
        entity: Entity[Any, Any] = self._entity
        entity.refuse_sending(self._subqueue)
        await cancel(_by_partition(entity, _sequence_numbers(body)))
        return {}

    async def _schedule_in_transaction(self, body: Body, transaction: Transaction) -> Answer:
        self._entity.refuse_sending(self._subqueue)
        numbers = await schedule_in_transaction(self._entity, _array(body, "messages"), transaction)
        return {"sequence-numbers": Array(int, [*numbers])}

    # -- rules --------------------------------------------------------------------

    async def _add_rule_in_transaction(self, body: Body, transaction: Transaction) -> Answer:
        rule = replace(read_rule(body), created_at=self._entity.now())
        transaction.change_rule(self._subscription, lambda description: description.with_rule(rule))
        return {}

    async def _remove_rule_in_transaction(self, body: Body, transaction: Transaction) -> Answer:
        name = _rule_name(body)
        transaction.change_rule(self._subscription, lambda description: description.without_rule(name))
        return {}

    async def _add_rule(self, body: Body) -> Answer:
        subscription = self._subscription
        await self._topics.add_rule(subscription.topic_path, subscription.name, read_rule(body))
        return {}

    async def _remove_rule(self, body: Body) -> Answer:
        subscription, name = self._subscription, _rule_name(body)
        await self._topics.remove_rule(subscription.topic_path, subscription.name, name)
        return {}

    async def _enumerate_rules(self, body: Body) -> Answer:
        skip, top = max(0, _whole_number(body, "skip")), max(0, _whole_number(body, "top"))
        rules = self._subscription.description.rules[skip : skip + top]
        return {"rules": [encode_rule(rule) for rule in rules]} if rules else None

    # -- locks --------------------------------------------------------------------

    async def _renew_lock(self, body: Body) -> Answer:
        tokens = _lock_tokens(body)
        ends: dict[LockToken, int | None] = {}
        for host, share in self._by_token(tokens).items():
            renewed = await _ask_holder(host, Renew(share))
            assert isinstance(renewed, Renewed)
            ends.update(zip(share, renewed.locked_until, strict=True))
        found = [end for token in tokens if (end := ends.get(token)) is not None]
        if len(found) < len(tokens):
            raise lock_lost(self._queue.path)
        return {"expirations": Array(Timestamp, [Timestamp(end) for end in found])}

    async def _update_disposition(self, body: Body) -> Answer:
        tokens = _lock_tokens(body)
        shares = self._by_token(tokens)
        lost = len(tokens) - sum(map(len, shares.values()))
        for host, share in shares.items():
            settled = await _ask_holder(host, command_for_status(share, body))
            assert isinstance(settled, Settled)
            lost += len(settled.lost)
        if lost:
            if self._queue.has_sessions(self._subqueue) and _session_id(body) is not None:
                # Who holds the session no more hears that; else it is this message's lock alone.
                self._session(body)
            raise lock_lost(self._queue.path)
        return {}

    async def _update_disposition_in_transaction(self, body: Body, transaction: Transaction) -> Answer:
        tokens = _lock_tokens(body)
        shares = self._by_token(tokens)
        if sum(map(len, shares.values())) < len(tokens):
            raise lock_lost(self._queue.path)
        for host, share in shares.items():
            transaction.settle(self._queue, host, share, command_for_status(share, body))
        return {}

    def _by_token(self, tokens: Sequence[LockToken]) -> dict[PartitionHost, list[LockToken]]:
        shares: dict[PartitionHost, list[LockToken]] = {}
        for token in tokens:
            host = self._queue.host_of_token(token)
            if host is not None:
                shares.setdefault(host, []).append(token)
        return shares

    # -- sessions -----------------------------------------------------------------

    def _with_session(self, request: Request, body: Body) -> Body:
        """What names a link instead of a session is about the session that this link holds, as go has it."""
        name = request.properties.get("associated-link-name")
        if not self._session_links or not isinstance(name, str) or body.get("session-id") is not None:
            return body
        held = self._session_links.get((self._queue, name)) if isinstance(self._entity, Queue) else None
        return body if held is None else {**body, "session-id": held}

    def _session(self, body: Body) -> SessionLock:
        """The lock of the session that the request names."""
        session_id = _session_id(body)
        if session_id is None:
            raise ArgumentError("'session-id' must name a session.")
        lock = self._session_locks.get((self._queue, session_id))
        if lock is None:
            raise session_lost(session_id, self._queue.path)
        return lock

    async def _renew_session_lock(self, body: Body) -> Answer:
        return {"expiration": Timestamp(await renew(self._queue, self._session(body)))}

    async def _get_session_state(self, body: Body) -> Answer:
        return {"session-state": await get_state(self._queue, self._session(body))}

    async def _set_session_state(self, body: Body) -> Answer:
        await set_state(self._queue, self._session(body), _session_state(body))
        return {}

    async def _set_session_state_in_transaction(self, body: Body, transaction: Transaction) -> Answer:
        set_state_in_transaction(self._queue, self._session(body), _session_state(body), transaction)
        return {}

    async def _get_message_sessions(self, body: Body) -> Answer:
        skip, top = _whole_number(body, "skip"), _whole_number(body, "top")
        after = _whole_number(body, "last-updated-time")
        if skip < 0 or top < 0:
            raise ArgumentError(f"'skip' and 'top' must not be negative: {skip}, {top}.")
        found = await list_sessions(
            self._queue,
            None if after >= ALL_SESSIONS else Instant(after),
            skip,
            min(top, SESSIONS_LISTED_MAX),
        )
        if not found:
            return None
        return {"skip": Int(skip + len(found)), "sessions-ids": Array(str, [*found])}


class _Operation(NamedTuple):
    right: Right
    run: Callable[[ManagementNode, Body], Awaitable[Answer]]


def _extended(extension: Extension) -> _Operation:
    async def run(node: ManagementNode, body: Body) -> Answer:
        return await extension.run(node._queue, node._subqueue, body)

    return _Operation(extension.right, run)


_OPERATIONS: Final[Mapping[str, _Operation]] = {
    f"com.microsoft:{name}": _Operation(right, run)
    for name, right, run in (
        ("peek-message", Right.LISTEN, ManagementNode._peek),
        ("receive-by-sequence-number", Right.LISTEN, ManagementNode._receive_by_sequence_number),
        ("batch-delete-messages", Right.LISTEN, ManagementNode._batch_delete),
        ("renew-lock", Right.LISTEN, ManagementNode._renew_lock),
        ("update-disposition", Right.LISTEN, ManagementNode._update_disposition),
        ("renew-session-lock", Right.LISTEN, ManagementNode._renew_session_lock),
        ("get-session-state", Right.LISTEN, ManagementNode._get_session_state),
        ("set-session-state", Right.LISTEN, ManagementNode._set_session_state),
        ("get-message-sessions", Right.LISTEN, ManagementNode._get_message_sessions),
        ("schedule-message", Right.SEND, ManagementNode._schedule),
        ("cancel-scheduled-message", Right.SEND, ManagementNode._cancel_scheduled),
        ("add-rule", Right.MANAGE, ManagementNode._add_rule),
        ("remove-rule", Right.MANAGE, ManagementNode._remove_rule),
        ("enumerate-rules", Right.MANAGE, ManagementNode._enumerate_rules),
    )
} | {name: _extended(extension) for name, extension in EXTENSIONS.items()}

_IN_TRANSACTIONS: Final[Mapping[str, Callable[[ManagementNode, Body, Transaction], Awaitable[Answer]]]] = {
    "com.microsoft:schedule-message": ManagementNode._schedule_in_transaction,
    "com.microsoft:update-disposition": ManagementNode._update_disposition_in_transaction,
    "com.microsoft:set-session-state": ManagementNode._set_session_state_in_transaction,
    "com.microsoft:add-rule": ManagementNode._add_rule_in_transaction,
    "com.microsoft:remove-rule": ManagementNode._remove_rule_in_transaction,
}


def _by_partition(entity: Entity[H, Any], numbers: Sequence[SequenceNumber]) -> dict[H, list[SequenceNumber]]:
    shares: dict[H, list[SequenceNumber]] = {}
    for number in numbers:
        host = entity.host_of_sequence_number(number)
        if host is None:
            raise MessageNotFound(f"'{entity.path}' has no message with the sequence number {number}.")
        shares.setdefault(host, []).append(number)
    return shares


async def _ask_holder(host: PartitionHost, command: Command) -> Reply:
    """Ask something of a partition that only who holds a lock may ask."""
    try:
        return await host.ask(command)
    except BrokerError as error:
        raise refused(error) from error


def _status(code: int, description: str, condition: str | None = None, body: object = None) -> Response:
    properties: dict[str, object] = {"statusCode": Int(code), "statusDescription": description}
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
    return Response(properties, {} if body is None else body)


def _deferred(message: Message, payload: bytes, *, locked: bool) -> dict[str, object]:
    if not locked:
        return {"message": b"".join(render(message, payload, locked=False))}
    assert message.lock_token is not None
    return {
        "message": render_deferred(message, payload),
        "lock-token": uuid.UUID(bytes_le=message.lock_token),
    }


def _refuse_beyond_answer(messages: Sequence[Message]) -> None:
    size = sum(message.size for message in messages)
    if size > ANSWER_BYTES_MAX:
        raise ArgumentError(
            f"The {len(messages)} messages asked for have {size} bytes; one answer holds {ANSWER_BYTES_MAX}. "
            "Please ask for fewer."
        )


def _first_bytes(messages: list[Message], size_max: int) -> list[Message]:
    """Those that have `size_max` bytes together, and one more: what is not answered need not be read."""
    size = 0
    for count, message in enumerate(messages, 1):
        size += message.size
        if size > size_max:
            return messages[:count]
    return messages


def _tokens(messages: Sequence[Message]) -> list[LockToken]:
    return [message.lock_token for message in messages if message.lock_token is not None]


def _session_state(body: Body) -> bytes | None:
    state = body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentError(f"'session-state' must be binary or null, not {type(state).__name__}.")
    return state


def _rule_name(body: Body) -> str:
    name = body.get("rule-name")
    if not isinstance(name, str):
        raise ArgumentError(f"'rule-name' must be a text, not {name!r}.")
    return name


def _lock_tokens(body: Body) -> list[LockToken]:
    tokens = _array(body, "lock-tokens")
    if not all(isinstance(token, uuid.UUID) for token in tokens):
        raise ArgumentError("'lock-tokens' holds something that is not a uuid.")
    # On links a token is a GUID in .NET's byte order; here it comes as the uuid it stands for.
    return [LockToken(token.bytes_le) for token in tokens if isinstance(token, uuid.UUID)]


def _session_id(body: Body) -> SessionId | None:
    session_id = body.get("session-id")
    if session_id is not None and not isinstance(session_id, str):
        raise ArgumentError(f"'session-id' must be a string, not {session_id!r}.")
    return None if session_id is None else SessionId(session_id)


def _sequence_numbers(body: Body) -> list[SequenceNumber]:
    """Each once, however often it is asked for: a few bytes of request could make a gigabyte of answer."""
    asked = dict.fromkeys(_integer(number) for number in _array(body, "sequence-numbers"))
    return [SequenceNumber(number) for number in asked]


def _array(body: Body, name: str) -> Sequence[object]:
    value = body.get(name)
    values = value.values if isinstance(value, Array) else value
    if not isinstance(values, list) or not values:
        raise ArgumentError(f"'{name}' must be an array with at least one element.")
    return values


def _whole_number(body: Body, name: str) -> int:
    return _integer(body.get(name), name)


def _integer(value: object, name: str = "sequence-numbers") -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(f"'{name}' must be a whole number, not {value!r}.")
    return value
