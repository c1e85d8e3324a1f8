"""Attach: what a link is connected to, and whether the client may attach it.

Every check of a link is made here, before it is accepted. Each refusal is an error that the
SDKs turn into their own exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bendybus.amqp.performatives import Coordinator
from bendybus.amqp.types import ULong
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
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

__all__ = ["Attachment", "address_of", "InboundNode", "OutboundNode", "attach"]

TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
BATCH_SIZE_MAX = "com.microsoft:max-message-batch-size"

# The limit of a batch, as on Azure. Single messages of a Premium entity may be 100 times as large.
BATCH_BYTES_MAX = 1024 * 1024
# A management request may contain messages; nothing else in it is large.
REQUEST_SIZE_MAX = 1024 * 1024
# A token. SAS tokens have some hundred bytes; a JWT with the groups of its user may have 16 KB.
TOKEN_SIZE_MAX = 64 * 1024
# A declare or a discharge has about ten bytes. A client may attach this link without a token.
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
    """An accepted link, and the right that it needs."""

    node: Node
    resource: str
    right: Right | None
    """None at `$cbs`, where no right is needed."""
    entity: SendTarget | None = None
    """None at `$cbs`."""

    def refuse_changed(self) -> None:
        """The entity was updated or deleted: raise the reason if this link is no longer allowed."""
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
    """Accept the link and return its node, or raise the reason for refusing it.

    The link of a session is accepted later, when the session is locked (`SessionReceiver.accept`).
    """
    if isinstance(link, ReceivingLink):
        return _attach_inbound(connection, link)
    assert isinstance(link, SendingLink)
    return _attach_outbound(connection, link)


def address_of(link: Link) -> str:
    """What a link is to reach, as the client wrote it."""
    address = getattr(link.target if isinstance(link, ReceivingLink) else link.source, "address", None)
    return address if isinstance(address, str) else ""


def _attach_inbound(connection: AmqpConnection, link: ReceivingLink) -> Attachment:
    """The client sends: to an entity, or requests to a node."""
    if isinstance(link.target, Coordinator):
        return _attach_coordinator(connection, link)
    text = getattr(link.target, "address", None)
    address = Address.parse(text)
    if address.kind is NodeKind.ENTITY:
        connection.client.claims.require(address.resource, Right.SEND, now())
        target = connection.client.broker.find_target(address.path)
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
        connection.client.probation.check_cbs_link(connection.links.count_at_cbs(Requester))
        size_max = TOKEN_SIZE_MAX
        client = connection.client
        cbs = CbsNode(client.keys_for, client.accept_claim, connection.actor, lambda: client.broker.entities)
        requester = Requester(connection, link, address, cbs.handle)
        right = managed = None
    else:
        right = _any_right(connection, address)
        managed = connection.client.broker.find_target(address.path)
        management = ManagementNode(
            managed,
            address,
            connection.client.claims,
            connection.actor,
            connection.transactions,
            connection.client.broker.topics,
            connection.session_locks,
            connection.session_links,
        )
        requester = Requester(connection, link, address, management.handle)
        # The state of a session may be as large as a message.
        size_max += managed.description.max_message_bytes
    link.accept(max_message_size=size_max)
    link.grant(REQUEST_CREDIT)
    return Attachment(requester, address.resource, right, managed)


def _accept_sender(
    link: ReceivingLink, target: SendTarget, properties: dict[str, object] | None = None
) -> None:
    """Accept with the largest message that the target takes, and the largest batch that SDKs should make."""
    size_max = target.description.max_message_bytes
    batch = {BATCH_SIZE_MAX: ULong(min(size_max, BATCH_BYTES_MAX))}
    link.accept(max_message_size=size_max, properties={**(properties or {}), **batch})


def _attach_coordinator(connection: AmqpConnection, link: ReceivingLink) -> Attachment:
    if connection.client.broker.tier is Tier.BASIC:
        raise NotSupported("The basic tier does not offer transactions.")
    connection.transactions.coordinator_attached(link.session)
    link.accept(max_message_size=COORDINATION_SIZE_MAX)
    link.grant(COORDINATOR_CREDIT)
    return Attachment(CoordinatorNode(connection, link), "", None)


def _attach_via(
    connection: AmqpConnection, link: ReceivingLink, address: Address, via: SendTarget, destination: object
) -> Attachment:
    """The client sends through one entity to another. The limits of the other apply."""
    target = Address.parse(destination)
    connection.client.claims.require(target.resource, Right.SEND, now())
    entity = connection.client.broker.find_target(target.path)
    entity.refuse_sending(target.subqueue)
    connection.transactions.coordination(link.session).enter(via, receives=False)
    _accept_sender(link, entity, {TRANSFER_DESTINATION: destination})
    link.grant(SENDER_CREDIT)
    return Attachment(Sender(connection, link, entity, via), address.resource, Right.SEND, via)


def _attach_outbound(connection: AmqpConnection, link: SendingLink) -> Attachment:
    """The client receives: from an entity, or replies from a node."""
    address = Address.parse(getattr(link.source, "address", None))
    if address.kind is NodeKind.ENTITY:
        connection.client.claims.require(address.resource, Right.LISTEN, now())
        queue = connection.client.broker.find(address.path)
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
        managed = connection.client.broker.find_target(address.path)
    else:
        connection.client.probation.check_cbs_link(connection.links.count_at_cbs(Replier))
    link.accept(source=SourceFilters.none().answer(link))
    return Attachment(Replier(connection, link, address), address.resource, right, managed)


def _receive(
    connection: AmqpConnection, link: SendingLink, queue: Queue, subqueue: SubQueue, filters: SourceFilters
) -> Receiver:
    session = filters.session
    if session is not None and not session.exclusive and connection.client.broker.tier is not Tier.PREMIUM:
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
    """Each operation checks its own right later. Attaching needs any one right."""
    for right in (Right.LISTEN, Right.SEND):
        try:
            connection.client.claims.require(address.resource, right, now())
        except Unauthorized:
            continue
        return right
    connection.client.claims.require(address.resource, Right.MANAGE, now())
    return Right.MANAGE
