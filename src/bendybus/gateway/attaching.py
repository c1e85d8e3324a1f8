"""Attach: what a link is connected to, and whether its client may.

Everything that can be said against a link is said here, before it is accepted;
each refusal is the error that the SDKs turn into their own exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bendybus.amqp.performatives import Coordinator
from bendybus.amqp.types import ULong
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Target
from bendybus.domain.entities import Tier
from bendybus.domain.messages import SubQueue
from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import OutcomesReceived
from bendybus.engine.link import Link
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.errors import (
    ArgumentError,
    EntityNotFound,
    InvalidField,
    NotSupported,
    Unauthorized,
)
from bendybus.gateway.addresses import Address, NodeKind
from bendybus.gateway.browser import COPY, MOVE, Browser
from bendybus.gateway.cbs import CbsNode
from bendybus.gateway.management import ManagementNode
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.requests import REQUEST_CREDIT, Replier, Requester
from bendybus.gateway.selective_receiver import SelectiveReceiver
from bendybus.gateway.sender import SENDER_CREDIT, Sender
from bendybus.gateway.session_receiver import SessionReceiver
from bendybus.gateway.source_filters import SourceFilters
from bendybus.gateway.transactions import COORDINATOR_CREDIT, CoordinatorNode

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["Attachment", "InboundNode", "OutboundNode", "attach"]

TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
BATCH_SIZE_MAX = "com.microsoft:max-message-batch-size"

# Of a batch, on Azure too: single messages of a Premium entity may be a hundred times as large.
BATCH_BYTES_MAX = 1024 * 1024
# A management request may carry messages; nothing else about it is large.
REQUEST_SIZE_MAX = 1024 * 1024
# A token. SAS tokens have some hundred bytes; a JWT with the groups of its user may have 16 KB.
TOKEN_SIZE_MAX = 64 * 1024
# To declare or to discharge a transaction takes some ten bytes. A client may come without a token here.
COORDINATION_SIZE_MAX = 64 * 1024


class InboundNode(Protocol):
    """Takes what a client sends."""

    def deliveries(self, deliveries: list[Delivery]) -> None: ...

    def close(self) -> None: ...


class OutboundNode(Protocol):
    """Gives what a client receives."""

    def flow(self) -> None: ...

    def outcomes(self, event: OutcomesReceived) -> None: ...

    def close(self) -> None: ...


Node: TypeAlias = InboundNode | OutboundNode


@dataclass(frozen=True, slots=True)
class Attachment:
    """An accepted link, and the right it stands on."""

    node: Node
    resource: str
    right: Right | None
    """None where no right is needed: at `$cbs`, where rights come from."""
    entity: Target | None = None
    """None at `$cbs`."""

    def refuse_changed(self) -> None:
        """The entity was updated or deleted: raise what now stands against this link, if anything."""
        entity = self.entity
        if entity is None:
            return
        if entity.deleted:
            raise EntityNotFound(entity.path)
        if isinstance(self.node, Sender):
            entity.refuse_sending()
        elif isinstance(entity, Queue) and isinstance(self.node, Receiver | Browser):
            entity.refuse_receiving(self.node.subqueue)


def attach(connection: AmqpConnection, link: Link) -> Attachment:
    """Accept the link and give its node, or raise why it is refused.

    A session's link is accepted later, by its node, when the session is (`SessionReceiver.accept`).
    """
    if isinstance(link, ReceivingLink):
        return _attach_inbound(connection, link)
    assert isinstance(link, SendingLink)
    return _attach_outbound(connection, link)


def _attach_inbound(connection: AmqpConnection, link: ReceivingLink) -> Attachment:
    """The client sends: to an entity, or requests to a node."""
    if isinstance(link.target, Coordinator):
        return _attach_coordinator(connection, link)
    text = getattr(link.target, "address", None)
    address = Address.parse(text)
    if address.kind is NodeKind.ENTITY:
        connection.claims.require(address.resource, Right.SEND, now())
        target = connection.broker.find_target(address.path)
        target.refuse_sending(address.subqueue)
        destination = link.properties.get(TRANSFER_DESTINATION)
        if destination is not None:
            return _attach_via(connection, link, address, target, destination)
        connection.transactions.coordination(link.session).enter(target, receives=False)
        _accept_sender(link, target)
        link.grant(SENDER_CREDIT)
        return Attachment(Sender(connection, link, target), address.resource, Right.SEND, target)
    size_max = REQUEST_SIZE_MAX
    if address.kind is NodeKind.CBS:
        connection.check_cbs_link(Requester)
        size_max = TOKEN_SIZE_MAX
        cbs = CbsNode(connection.keys_for, connection.accept_claim, lambda: connection.broker.entities)
        requester = Requester(connection, link, address, cbs.handle)
        right = managed = None
    else:
        right = _any_right(connection, address)
        managed = connection.broker.find_target(address.path)
        management = ManagementNode(
            managed,
            address,
            connection.claims,
            connection.transactions,
            connection.broker.topics,
            connection.session_locks,
            connection.session_links,
        )
        requester = Requester(connection, link, address, management.handle)
        # The state of a session may have the size of a message, whatever that is.
        size_max += managed.description.max_message_size_kb * 1024
    link.accept(max_message_size=size_max)
    link.grant(REQUEST_CREDIT)
    return Attachment(requester, address.resource, right, managed)


def _accept_sender(link: ReceivingLink, target: Target, properties: dict[str, object] | None = None) -> None:
    """With the largest message the target takes, and the largest batch that SDKs should make."""
    size_max = target.description.max_message_size_kb * 1024
    batch = {BATCH_SIZE_MAX: ULong(min(size_max, BATCH_BYTES_MAX))}
    link.accept(max_message_size=size_max, properties={**(properties or {}), **batch})


def _attach_coordinator(connection: AmqpConnection, link: ReceivingLink) -> Attachment:
    if connection.broker.tier is Tier.BASIC:
        raise NotSupported("The basic tier does not offer transactions.")
    connection.transactions.coordinator_attached(link.session)
    link.accept(max_message_size=COORDINATION_SIZE_MAX)
    link.grant(COORDINATOR_CREDIT)
    return Attachment(CoordinatorNode(connection, link), "", None)


def _attach_via(
    connection: AmqpConnection, link: ReceivingLink, address: Address, via: Target, destination: object
) -> Attachment:
    """The client sends through an entity to another one, whose limits hold."""
    target = Address.parse(destination)
    connection.claims.require(target.resource, Right.SEND, now())
    entity = connection.broker.find_target(target.path)
    entity.refuse_sending(target.subqueue)
    connection.transactions.coordination(link.session).enter(via, receives=False)
    _accept_sender(link, entity, {TRANSFER_DESTINATION: destination})
    link.grant(SENDER_CREDIT)
    return Attachment(Sender(connection, link, entity, via), address.resource, Right.SEND, via)


def _attach_outbound(connection: AmqpConnection, link: SendingLink) -> Attachment:
    """The client receives: from an entity, or replies from a node."""
    address = Address.parse(getattr(link.source, "address", None))
    if address.kind is NodeKind.ENTITY:
        connection.claims.require(address.resource, Right.LISTEN, now())
        queue = connection.broker.find(address.path)
        if getattr(link.source, "dynamic", None):
            raise ArgumentError("Nodes are not created by attaching to them.")
        filters = SourceFilters.of(link)
        mode = getattr(link.source, "distribution_mode", None)
        if mode == COPY:
            node: Node = _browse(connection, link, queue, address.subqueue, filters)
        elif mode is None or mode == MOVE:
            node = _receive(connection, link, queue, address.subqueue, filters)
        else:
            raise InvalidField(f"The distribution mode of a source is '{MOVE}' or '{COPY}', not '{mode}'.")
        return Attachment(node, address.resource, Right.LISTEN, queue)
    right = managed = None
    if address.kind is NodeKind.MANAGEMENT:
        right = _any_right(connection, address)
        managed = connection.broker.find_target(address.path)
    else:
        connection.check_cbs_link(Replier)
    link.accept(source=SourceFilters.none().answer(link))
    return Attachment(Replier(connection, link, address), address.resource, right, managed)


def _receive(
    connection: AmqpConnection, link: SendingLink, queue: Queue, subqueue: SubQueue, filters: SourceFilters
) -> Receiver:
    session = filters.session
    if session is not None and not session.exclusive and connection.broker.tier is not Tier.PREMIUM:
        raise NotSupported("Sessions that can be handed over need the premium tier.")
    queue.refuse_receiver(subqueue, sessionful=session is not None)
    connection.transactions.coordination(link.session).enter(queue, receives=True)
    if session is not None:
        return SessionReceiver(connection, link, queue, session)
    link.accept(source=filters.answer(link))
    if filters.selection is not None:
        return SelectiveReceiver(connection, link, queue, subqueue, filters.selection)
    return Receiver(connection, link, queue, subqueue)


def _browse(
    connection: AmqpConnection, link: SendingLink, queue: Queue, subqueue: SubQueue, filters: SourceFilters
) -> Browser:
    """A browser needs no session. One that names a session is shown the messages of that session."""
    queue.refuse_receiving(subqueue)
    session_id = None
    if filters.session is not None:
        if not filters.session.exclusive:
            raise InvalidField("A session that is browsed is not locked, so it cannot be handed over.")
        queue.refuse_receiver(subqueue, sessionful=True)
        session_id = filters.session.session_id
        if session_id is None:
            raise InvalidField("The next session cannot be browsed: name one, or browse them all.")
    link.accept(source=filters.answer(link))
    return Browser(connection, link, queue, subqueue, filters.selection, session_id)


def _any_right(connection: AmqpConnection, address: Address) -> Right:
    """Each operation asks for its own right later; to ask at all, any will do."""
    for right in (Right.LISTEN, Right.SEND):
        try:
            connection.claims.require(address.resource, right, now())
        except Unauthorized:
            continue
        return right
    connection.claims.require(address.resource, Right.MANAGE, now())
    return Right.MANAGE
