"""Attach: what a link is connected to, and whether the client may attach it.

Every check of a link is made here, before it is accepted. Each refusal is an error that the
SDKs turn into their own exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bendybus.amqp.performatives import Coordinator
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Topic
from bendybus.domain.entities import Tier
from bendybus.domain.messages import SubQueue
from bendybus.engine.link import Link
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.errors import EntityNotFound, InvalidField, InvalidOperation, NotSupported, Unauthorized
from bendybus.gateway.addresses import Address, NodeKind
from bendybus.gateway.attachments import Attachment, Destination
from bendybus.gateway.browser import COPY, MOVE, Browser
from bendybus.gateway.cbs import CbsNode
from bendybus.gateway.client_entities import (
    attach_known_subscription,
    attach_missing,
    attach_subscription,
    attach_temporary_source,
    attach_temporary_target,
)
from bendybus.gateway.management import ManagementNode
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.requests import REQUEST_CREDIT, Replier, Requester
from bendybus.gateway.selective_receiver import SelectiveReceiver
from bendybus.gateway.sender import SENDER_CREDIT, Sender, accept_sender
from bendybus.gateway.session_receiver import SessionReceiver
from bendybus.gateway.source_filters import SourceFilters
from bendybus.gateway.termini import asks_for_subscription, is_dynamic, names_topic
from bendybus.gateway.transactions import COORDINATOR_CREDIT, CoordinatorNode

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["address_of", "attach"]

TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"

# A management request may contain messages; nothing else in it is large.
REQUEST_SIZE_MAX = 1024 * 1024
# A token. SAS tokens have some hundred bytes; a JWT with the groups of its user may have 16 KB.
TOKEN_SIZE_MAX = 64 * 1024
# A declare or a discharge has about ten bytes. A client may attach this link without a token.
COORDINATION_SIZE_MAX = 64 * 1024


def attach(connection: AmqpConnection, link: Link) -> Attachment:
    """Accept the link and return its node, or raise the reason for refusing it.

    The link of a session is accepted later, when the session is locked (`SessionReceiver.accept`), and so is
    the link to an entity that has to be created (`Opening`).
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
    if is_dynamic(link.target):
        return attach_temporary_target(connection, link)
    text = getattr(link.target, "address", None)
    address = Address.parse(text)
    if address.kind is NodeKind.ENTITY:
        connection.client.claims.require(address.resource, Right.SEND, now())
        try:
            target = connection.client.broker.find_target(address.path)
        except EntityNotFound:
            created = attach_missing(connection, link, address, lambda: _attach_inbound(connection, link))
            if created is None:
                raise
            return created
        target.refuse_sending(address.subqueue)
        destination = link.properties.get(TRANSFER_DESTINATION)
        if destination is not None:
            return _attach_via(connection, link, address, target, destination)
        connection.transactions.coordination(link.session).enter(target, receives=False)
        accept_sender(link, target)
        link.grant(SENDER_CREDIT)
        return Attachment(Sender(connection, link, target), address.resource, Right.SEND, target)
    size_max = REQUEST_SIZE_MAX
    if address.kind is NodeKind.CBS:
        _refuse_second_at_cbs(connection, Requester)
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
    accept_sender(link, entity, {TRANSFER_DESTINATION: destination})
    link.grant(SENDER_CREDIT)
    node = Sender(connection, link, entity, via)
    through = Destination(target.resource, entity)
    return Attachment(node, address.resource, Right.SEND, via, destination=through)


def _attach_outbound(connection: AmqpConnection, link: SendingLink) -> Attachment:
    """The client receives: from an entity, or replies from a node."""
    if link.source is None:
        return attach_known_subscription(connection, link)
    if is_dynamic(link.source):
        return attach_temporary_source(connection, link)
    address = Address.parse(getattr(link.source, "address", None))
    if address.kind is NodeKind.ENTITY:
        return _attach_to_source(connection, link, address)
    right = managed = None
    if address.kind is NodeKind.MANAGEMENT:
        right = _any_right(connection, address)
        managed = connection.client.broker.find_target(address.path)
    else:
        _refuse_second_at_cbs(connection, Replier)
    link.accept(source=SourceFilters.none().answer(link))
    return Attachment(Replier(connection, link, address), address.resource, right, managed)


def _refuse_second_at_cbs(connection: AmqpConnection, kind: type[Requester | Replier]) -> None:
    """A connection has one link each way to `$cbs`. After this error, Go's SDK connects again."""
    if connection.links.count_at_cbs(kind):
        raise InvalidOperation(
            "A link to the connection's $cbs node has already been opened. "
            "A connection may have one link to $cbs and one link from it."
        )


def _attach_to_source(connection: AmqpConnection, link: SendingLink, address: Address) -> Attachment:
    broker = connection.client.broker
    connection.client.claims.require(address.resource, Right.LISTEN, now())
    mode = getattr(link.source, "distribution_mode", None)
    if mode not in (None, MOVE, COPY):
        raise InvalidField(f"The distribution mode of a source is '{MOVE}' or '{COPY}', not '{mode}'.")
    try:
        entity = broker.find_target(address.path)
        if isinstance(entity, Topic) and asks_for_subscription(link.source):
            return attach_subscription(connection, link, address, entity)
        queue = broker.find(address.path)
    except EntityNotFound:
        created = attach_missing(connection, link, address, lambda: _attach_outbound(connection, link))
        if created is None:
            raise
        return created
    filters = SourceFilters.of(link)
    # To a JMS client, a topic's messages are copies. A durable consumer says so, but it is not a browser.
    browses = mode == COPY and not names_topic(link.source)
    node = (_browse if browses else _receive)(connection, link, queue, address.subqueue, filters)
    return Attachment(node, address.resource, Right.LISTEN, queue)


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
