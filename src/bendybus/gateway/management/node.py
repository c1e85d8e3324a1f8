"""The node: finds the operation that a request names, checks the right for it, and answers.

A refusal is an answer too: its status, and the condition that the SDKs turn into
their own exceptions. A refusal inside a transaction also fails the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from bendybus import audit
from bendybus.amqp.types import Int, Symbol
from bendybus.auth.claims import Claims
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.broker.topics import Topics
from bendybus.domain.session_commands import SessionLock
from bendybus.errors import ArgumentError, BrokerError, InvalidOperation, NotSupported, Unauthorized
from bendybus.gateway.addresses import Address
from bendybus.gateway.management import (
    extensions,
    filter_rules,
    filtering,
    inserting,
    locks,
    messages,
    replaying,
    scheduling,
    sessions,
)
from bendybus.gateway.management.fields import Body
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.gateway.requests import Request, Response
from bendybus.gateway.transactions import Transactions
from bendybus.names import SessionId, SessionKey

__all__ = ["OPERATIONS", "ManagementNode"]

OPERATIONS: Final[Mapping[str, Operation]] = {
    **messages.OPERATIONS,
    **locks.OPERATIONS,
    **scheduling.OPERATIONS,
    **sessions.OPERATIONS,
    **filter_rules.OPERATIONS,
    **extensions.OPERATIONS,
    **filtering.OPERATIONS,
    **replaying.OPERATIONS,
    **inserting.OPERATIONS,
}


class ManagementNode:
    """One connection's view of one entity's `$management`."""

    def __init__(
        self,
        entity: SendTarget,
        address: Address,
        claims: Claims,
        actor: Callable[[], audit.Actor],
        transactions: Transactions,
        topics: Topics,
        session_locks: Mapping[tuple[Queue, SessionKey], SessionLock],
        session_links: Mapping[tuple[Queue, str], SessionId],
    ) -> None:
        self._entity = entity
        self._managed = Managed(entity, address.subqueue, topics, session_locks)
        self._resource = address.resource
        self._claims = claims
        self._actor = actor
        self._transactions = transactions
        self._session_links = session_links

    async def handle(self, request: Request) -> Response:
        try:
            operation = OPERATIONS.get(request.operation)
            if operation is None:
                raise NotSupported(f"The operation '{request.operation}' is not supported.")
            actor = self._require(operation)
            self._entity.accessed_at = self._entity.now()
            if not isinstance(request.body, Mapping):
                raise ArgumentError(f"'{request.operation}' needs a map as its body.")
            if (faults := self._entity.faults) is not None:
                faults.refuse_operation(self._entity.path)
                await faults.delay()
            asked = self._with_session(request, request.body)
            with audit.acting(actor):
                body = await self._run(request, operation, asked)
        except BrokerError as error:
            return _status(error.status, error.description, error.condition)
        return _status(204, "No content") if body is None else _status(200, "OK", body=body)

    def _require(self, operation: Operation) -> audit.Actor:
        """The client, for the audit log; `Unauthorized` if it lacks the right."""
        actor = self._actor()
        try:
            claim = self._claims.require(self._resource, operation.right, now())
        except Unauthorized:
            right = operation.right.label
            audit.record("operation-refused", actor, reason="no-right", resource=self._resource, right=right)
            raise
        return replace(actor, by=claim.holder)

    async def _run(self, request: Request, operation: Operation, body: Body) -> Answer:
        try:
            if request.state is None:
                return await operation.run(self._managed, body)
            return await self._enlist(request, operation, body)
        except BrokerError as error:
            if operation.right is Right.MANAGE:
                audit.record_refused_change(request.operation, self._resource, error)
            raise

    async def _enlist(self, request: Request, operation: Operation, body: Body) -> Answer:
        """Make the request part of a transaction."""
        transaction = self._transactions.find(request.state)
        try:
            if operation.enlist is None:
                raise InvalidOperation(f"'{request.operation}' cannot be part of a transaction.")
            return await operation.enlist(self._managed, body, transaction)
        except BrokerError as refusal:
            transaction.failure = transaction.failure or refusal
            raise

    def _with_session(self, request: Request, body: Body) -> Body:
        """The body with its session. A request of the Go SDK names the link that holds the session instead.

        A request of the .NET SDK names both. Its receiver may have lost the session to another receiver on
        the same connection.
        """
        name, entity = request.properties.get("associated-link-name"), self._entity
        if not self._session_links or not isinstance(name, str) or not isinstance(entity, Queue):
            return body
        held = self._session_links.get((entity, name))
        if body.get("session-id") is None:
            return body if held is None else {**body, "session-id": held}
        if held is None:
            self._managed.refuse_former_holder(body)
        return body


def _status(code: int, description: str, condition: str | None = None, body: object = None) -> Response:
    properties: dict[str, object] = {"statusCode": Int(code), "statusDescription": description}
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
    return Response(properties, {} if body is None else body)
