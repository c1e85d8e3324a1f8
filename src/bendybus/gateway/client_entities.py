"""Entities that links make: the subscriptions and temporary nodes of JMS clients, and missing entities.

Creating an entity needs Manage, as through the management API: on the topic for a subscription, on the path
of a new queue or topic, which is a right on the whole namespace for a temporary one. Consuming a subscription
that exists needs Listen on its topic. azure-servicebus-jms identifies itself in its open frame. As on Azure,
missing queues and topics are created for this client only. All of this is offered only in Premium. How
termini are interpreted: termini.py.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import Source, Target
from bendybus.auth.rights import Right
from bendybus.broker.client_subscriptions import WantedSubscription
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.temporary import QUEUE_PREFIX, TOPIC_PREFIX
from bendybus.broker.topic import Subscription, Topic
from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.messages import SubQueue
from bendybus.domain.topic_entities import TopicDescription
from bendybus.engine.link import Link
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.errors import (
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    Unauthorized,
)
from bendybus.gateway.addresses import Address
from bendybus.gateway.attachments import Attachment
from bendybus.gateway.holds import Hold
from bendybus.gateway.opening import Opening
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.selective_receiver import SelectiveReceiver
from bendybus.gateway.sender import SENDER_CREDIT, Sender, accept_sender
from bendybus.gateway.source_filters import SourceFilters
from bendybus.gateway.termini import (
    QUEUE,
    SHARED_SUBSCRIPTIONS,
    TOPIC,
    answer_dynamic,
    answer_known,
    answer_subscription,
    capabilities_of,
    known_scope,
    wanted_subscription,
    wants_topic,
)
from bendybus.names import EntityPath

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = [
    "attach_known_subscription",
    "attach_missing",
    "attach_subscription",
    "attach_temporary_source",
    "attach_temporary_target",
]

# What azure-servicebus-jms says about itself, and about the entities that are created for it.
IS_CLIENT_PROVIDER: Final = "com.microsoft:is-client-provider"
QUEUE_IDLE: Final = "com.microsoft:queue-auto-delete-on-idle-duration-in-seconds"
TOPIC_IDLE: Final = "com.microsoft:topic-auto-delete-on-idle-duration-in-seconds"
SUBSCRIPTION_IDLE: Final = "com.microsoft:subscriber-auto-delete-on-idle-duration-in-seconds"


# -- subscriptions ----------------------------------------------------------------


def attach_subscription(
    connection: AmqpConnection, link: SendingLink, address: Address, topic: Topic
) -> Attachment:
    """The client consumes a topic: by a subscription that is created now, or that it has already."""
    if address.subqueue is not SubQueue.MAIN:
        raise InvalidOperation(f"'{topic.path}' is a topic, and topics have no sub-queues.")
    filters = SourceFilters.of(link)
    asked = wanted_subscription(link, connection.client.container_id, filters)
    wanted = replace(asked, auto_delete_on_idle_s=_seconds(connection, SUBSCRIPTION_IDLE))
    broker = connection.client.broker
    authorize = partial(_require, connection, topic.path)

    async def create() -> Hold:
        subscription = await broker.client_subscriptions.consume(topic, wanted, link, authorize)
        return Hold(broker, subscription, link, authorize, connection.actor)

    accept = partial(_accept_subscription, connection, link, address.resource, wanted, filters)
    return Attachment(Opening(connection, link, create, accept), address.resource, Right.LISTEN)


def _accept_subscription(
    connection: AmqpConnection,
    link: SendingLink,
    resource: str,
    wanted: WantedSubscription,
    filters: SourceFilters,
    hold: Hold | None,
) -> Attachment:
    assert hold is not None
    assert isinstance(link.source, Source)
    subscription = hold.entity
    assert isinstance(subscription, Subscription)
    subscription.refuse_receiver(SubQueue.MAIN, sessionful=filters.session is not None)
    connection.transactions.coordination(link.session).enter(subscription, receives=True)
    link.answers_later = True
    link.accept(
        source=answer_subscription(link.source, wanted, filters), offered_capabilities=[SHARED_SUBSCRIPTIONS]
    )
    # A selector is a rule of the subscription, unless an administrator has given it other rules.
    is_selective = filters.selection is not None and subscription.description.selector is None
    node = _receiver(connection, link, subscription, filters if is_selective else SourceFilters.none())
    return Attachment(node, resource, Right.LISTEN, subscription, hold)


def attach_known_subscription(connection: AmqpConnection, link: SendingLink) -> Attachment:
    """A link without a source means a durable subscription that exists. JMS clients delete it in this way."""
    broker = connection.client.broker
    scope = known_scope(link, connection.client.container_id)
    if not connection.authenticated:
        raise Unauthorized("Unauthorized access. No token has been put that gives any right.")
    try:
        subscription = broker.client_subscriptions.find(scope)
    except EntityNotFound:
        # Only a client that may receive from any entity is told which ones there are.
        connection.client.claims.require(str(scope), Right.LISTEN, now())
        broker.tier.require_premium("the subscriptions of JMS clients")
        raise
    connection.client.claims.require(subscription.path, Right.LISTEN, now())
    subscription.refuse_receiver(SubQueue.MAIN, sessionful=False)

    async def consume() -> Hold:
        await broker.client_subscriptions.consume_known(subscription, link)
        authorize = partial(_require, connection, subscription.topic_path)
        return Hold(broker, subscription, link, authorize, connection.actor)

    def accept(hold: Hold | None) -> Attachment:
        connection.transactions.coordination(link.session).enter(subscription, receives=True)
        link.answers_later = True
        shared = bool(subscription.description.shared)
        answer = answer_known(subscription.topic_path, shared=shared, is_global=not scope.client_id)
        link.accept(source=answer)
        node = Receiver(connection, link, subscription, SubQueue.MAIN)
        return Attachment(node, subscription.path, Right.LISTEN, subscription, hold)

    return Attachment(Opening(connection, link, consume, accept), subscription.path, Right.LISTEN)


def _receiver(
    connection: AmqpConnection, link: SendingLink, queue: Queue, filters: SourceFilters
) -> Receiver:
    if filters.selection is not None:
        return SelectiveReceiver(connection, link, queue, SubQueue.MAIN, filters.selection)
    return Receiver(connection, link, queue, SubQueue.MAIN)


# -- temporary nodes --------------------------------------------------------------


def attach_temporary_target(connection: AmqpConnection, link: ReceivingLink) -> Attachment:
    """The client asks for a temporary queue or topic that it sends to."""
    target = link.target
    assert isinstance(target, Target)
    is_topic = wants_topic(target)
    path, create = _creation(connection, link, is_topic=is_topic)

    def accept(hold: Hold | None) -> Attachment:
        assert hold is not None
        connection.transactions.coordination(link.session).enter(hold.entity, receives=False)
        link.answers_later = True
        accept_sender(link, hold.entity, answer=answer_dynamic(target, path))
        link.grant(SENDER_CREDIT)
        return Attachment(Sender(connection, link, hold.entity), path, Right.SEND, hold.entity, hold)

    return Attachment(Opening(connection, link, create, accept), path, Right.MANAGE)


def attach_temporary_source(connection: AmqpConnection, link: SendingLink) -> Attachment:
    """The client asks for a temporary queue that it receives from."""
    source = link.source
    assert isinstance(source, Source)
    if wants_topic(source):
        raise InvalidOperation(
            "Nobody receives from a topic itself: create it by a link to it, and then a subscription."
        )
    path, create = _creation(connection, link, is_topic=False)
    filters = SourceFilters.of(link)

    def accept(hold: Hold | None) -> Attachment:
        assert hold is not None
        queue = hold.entity
        assert isinstance(queue, Queue)
        queue.refuse_receiver(SubQueue.MAIN, sessionful=filters.session is not None)
        connection.transactions.coordination(link.session).enter(queue, receives=True)
        link.answers_later = True
        link.accept(source=replace(answer_dynamic(source, path), filter=filters.in_place or None))
        return Attachment(_receiver(connection, link, queue, filters), path, Right.LISTEN, queue, hold)

    return Attachment(Opening(connection, link, create, accept), path, Right.MANAGE)


def _creation(
    connection: AmqpConnection, link: Link, *, is_topic: bool
) -> tuple[EntityPath, Callable[[], Coroutine[None, None, Hold]]]:
    """The path of a new temporary entity, and what creates it."""
    broker = connection.client.broker
    path = broker.temporary.new_path(TOPIC_PREFIX if is_topic else QUEUE_PREFIX)
    authorize = partial(_require, connection, path)
    authorize()

    async def create() -> Hold:
        make = broker.temporary.create_topic if is_topic else broker.temporary.create_queue
        return Hold(broker, await make(path, link), link, authorize, connection.actor)

    return path, create


# -- queues and topics that do not exist ------------------------------------------


def attach_missing(
    connection: AmqpConnection, link: Link, address: Address, again: Callable[[], Attachment]
) -> Attachment | None:
    """Create the queue or topic, then attach again. None if this client gets an error instead."""
    terminus = link.target if isinstance(link, ReceivingLink) else link.source
    asked = capabilities_of(terminus)
    broker = connection.client.broker
    if connection.client.properties.get(IS_CLIENT_PROVIDER) is not True or broker.tier is not Tier.PREMIUM:
        return None
    if address.subqueue is not SubQueue.MAIN or (QUEUE not in asked and TOPIC not in asked):
        return None
    path = EntityPath(address.path)
    _require(connection, path)

    async def create() -> None:
        elsewhere = broker.entities.elsewhere
        is_topic = TOPIC in asked
        idle_s = _seconds(connection, TOPIC_IDLE if is_topic else QUEUE_IDLE)
        try:
            if not elsewhere.has_catalog:
                await elsewhere.linked_entities.create_missing(path, is_topic=is_topic, idle_s=idle_s)
            elif is_topic:
                await broker.topics.create(TopicDescription(path, auto_delete_on_idle_s=idle_s))
            else:
                await broker.queues.create(QueueDescription(path, auto_delete_on_idle_s=idle_s))
        except EntityExists:
            # Another link was faster.
            return

    return Attachment(Opening(connection, link, create, lambda _: again()), address.resource, Right.MANAGE)


def _seconds(connection: AmqpConnection, name: str) -> float | None:
    given = connection.client.properties.get(name)
    return float(given) if isinstance(given, int) and given > 0 else None


def _require(connection: AmqpConnection, path: str) -> None:
    connection.client.claims.require(path, Right.MANAGE, now())
