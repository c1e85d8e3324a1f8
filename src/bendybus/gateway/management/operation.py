"""An operation of `$management`: the right that it needs, and the function that performs it.

The function is a coroutine that takes a `Managed` entity and the body of the request. It
raises an error to refuse. An operation that can be part of a transaction has a second
function, which only adds its commands to the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from bendybus.auth.rights import Right
from bendybus.broker.entity import Entity
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Subscription
from bendybus.broker.topics import Topics
from bendybus.domain.messages import SubQueue
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import ArgumentError, InvalidOperation, MessageNotFound
from bendybus.gateway.management.fields import Body, session_id_of
from bendybus.gateway.settlement import session_lost
from bendybus.gateway.transaction import Transaction
from bendybus.names import SequenceNumber, SessionKey

__all__ = ["Answer", "Managed", "Operation", "by_partition"]

H = TypeVar("H", bound=PartitionPort)

Answer: TypeAlias = dict[str, object] | None
"""The body of the response; None for an empty one (204)."""


@dataclass(frozen=True, slots=True)
class Managed:
    """The entity whose `$management` is used, and what the client's connection holds of it."""

    entity: SendTarget
    subqueue: SubQueue
    topics: Topics
    session_locks: Mapping[tuple[Queue, SessionKey], SessionLock]

    @property
    def queue(self) -> Queue:
        """For the operations of receivers; a topic has none."""
        if not isinstance(self.entity, Queue):
            raise InvalidOperation(
                f"'{self.entity.path}' is a topic; messages are received from its subscriptions."
            )
        return self.entity

    @property
    def subscription(self) -> Subscription:
        if not isinstance(self.entity, Subscription):
            raise InvalidOperation(f"'{self.entity.path}' has no rules: subscriptions have.")
        return self.entity

    def session(self, body: Body) -> SessionLock:
        """The lock of the session that the request names, which its connection must hold."""
        session_id = session_id_of(body)
        if session_id is None:
            raise ArgumentError("'session-id' must name a session.")
        lock = self.session_locks.get((self.queue, self.queue.session_key(session_id)))
        if lock is None:
            raise session_lost(session_id, self.queue.path)
        return lock

    def refuse_former_holder(self, body: Body) -> None:
        """The receiver that asks holds no session, but another one of its connection may hold this one."""
        session_id = session_id_of(body)
        if session_id is not None:
            lock = self.session_locks.get((self.queue, self.queue.session_key(session_id)))
            if lock is not None and lock.handover is not None:
                raise session_lost(session_id, self.queue.path)

    def refuse_session_of_others(self, body: Body) -> None:
        """A client that names a session when it settles must hold it: it may have been handed over."""
        if session_id_of(body) is not None and self.queue.has_sessions(self.subqueue):
            self.session(body)


class Operation(NamedTuple):
    right: Right
    run: Callable[[Managed, Body], Awaitable[Answer]]
    enlist: Callable[[Managed, Body, Transaction], Awaitable[Answer]] | None = None
    """The same as part of a transaction; None if that is not possible."""


def by_partition(
    entity: Entity[H, Any, Any], numbers: Sequence[SequenceNumber]
) -> dict[H, list[SequenceNumber]]:
    """Each partition's share of these; `MessageNotFound` where there is none for a number."""
    shares: dict[H, list[SequenceNumber]] = {}
    for number in numbers:
        host = entity.host_of_sequence_number(number)
        if host is None:
            raise MessageNotFound(f"'{entity.path}' has no message with the sequence number {number}.")
        shares.setdefault(host, []).append(number)
    return shares
