"""Entities that links make, with several brokers: their creation, and whether somebody holds one.

A link of any broker may create a temporary entity or consume a subscription. Its broker asks the one that has
the catalog, which makes the change. Then the link is one of the entity's holders, at its own broker only. The
broker with the catalog asks all others whether a link holds the entity before it deletes it, and before it
gives it to its only consumer. So a broker that dies takes its holders with it, and a new leader has nothing
to recover.

An answer says that a link may hold an entity. The next question to that broker is sent after the answer, and
answered after the link was counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bendybus.broker.broker import Broker
from bendybus.broker.client_subscriptions import WantedSubscription
from bendybus.broker.topic import SendTarget, Subscription
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.domain.entities import QueueDescription
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import EntityNotFound, StoreUnavailable, Unauthorized
from bendybus.names import EntityPath

if TYPE_CHECKING:
    from bendybus.cluster.cluster import Cluster
    from bendybus.cluster.serving import Calls

__all__ = ["LinkedEntitiesElsewhere", "LinkedEntityCalls"]


class LinkedEntitiesElsewhere:
    """`LinkedEntities` of a broker of several."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_temporary(self, path: EntityPath, *, is_topic: bool) -> None:
        await self._ask("create-temporary", (path, is_topic))

    async def create_missing(self, path: EntityPath, *, is_topic: bool, idle_s: float | None) -> None:
        await self._ask("create-missing", (path, is_topic, idle_s))

    async def consume(self, topic: EntityPath, wanted: WantedSubscription, refusal: str | None) -> None:
        await self._ask("consume", (topic, wanted, refusal))

    async def consume_known(self, path: EntityPath) -> None:
        await self._ask("consume-known", path)

    async def unsubscribe(self, path: EntityPath) -> None:
        await self._ask("unsubscribe", path)

    async def release(self, path: EntityPath) -> None:
        await self._ask("release", path)

    async def is_held(self, path: EntityPath) -> bool:
        for peer in list(self._cluster.peers.by_name.values()):
            if await peer.call("is-held", path, bool):
                return True
        return False

    async def _ask(self, name: str, body: object) -> None:
        await self._cluster.leader.call(name, body, type(None))


class LinkedEntityCalls:
    """What the other brokers ask about entities that links make."""

    def __init__(self, broker: Broker, cluster: Cluster) -> None:
        self._broker = broker
        self._cluster = cluster

    def calls(self) -> Calls:
        return {
            "is-held": self._is_held,
            "create-temporary": self._create_temporary,
            "create-missing": self._create_missing,
            "consume": self._consume,
            "consume-known": self._consume_known,
            "unsubscribe": self._unsubscribe,
            "release": self._release,
        }

    async def _is_held(self, link: PeerLink, frame: Frame, call: Call) -> bool:
        entity = self._broker.entities.look_up(frame.decoded(str, call.body))
        return entity is not None and bool(entity.holders)

    # -- where the catalog is -----------------------------------------------------

    def _refuse_without_catalog(self) -> None:
        if not self._cluster.has_catalog:
            raise StoreUnavailable("This broker does not have the catalog. Please retry the operation.")

    async def _create_temporary(self, link: PeerLink, frame: Frame, call: Call) -> None:
        self._refuse_without_catalog()
        path, is_topic = frame.decoded(tuple[EntityPath, bool], call.body)
        temporary, holder = self._broker.temporary, object()
        create = temporary.create_topic if is_topic else temporary.create_queue
        _let_go_soon(await create(path, holder), holder)

    async def _create_missing(self, link: PeerLink, frame: Frame, call: Call) -> None:
        self._refuse_without_catalog()
        path, is_topic, idle_s = frame.decoded(tuple[EntityPath, bool, float | None], call.body)
        if is_topic:
            await self._broker.topics.create(TopicDescription(path, auto_delete_on_idle_s=idle_s))
        else:
            await self._broker.queues.create(QueueDescription(path, auto_delete_on_idle_s=idle_s))

    async def _consume(self, link: PeerLink, frame: Frame, call: Call) -> None:
        self._refuse_without_catalog()
        path, wanted, refusal = frame.decoded(tuple[str, WantedSubscription, str | None], call.body)
        holder = object()

        def authorize() -> None:
            if refusal is not None:
                raise Unauthorized(refusal)

        topic = self._broker.topics.get(path)
        subscription = await self._broker.client_subscriptions.consume(topic, wanted, holder, authorize)
        _let_go_soon(subscription, holder)

    async def _consume_known(self, link: PeerLink, frame: Frame, call: Call) -> None:
        subscription, holder = self._subscription(frame, call), object()
        await self._broker.client_subscriptions.consume_known(subscription, holder)
        _let_go_soon(subscription, holder)

    async def _unsubscribe(self, link: PeerLink, frame: Frame, call: Call) -> None:
        await self._broker.client_subscriptions.unsubscribe(self._subscription(frame, call), None)

    async def _release(self, link: PeerLink, frame: Frame, call: Call) -> None:
        self._refuse_without_catalog()
        entity = self._broker.entities.look_up(frame.decoded(str, call.body))
        if entity is not None:
            await self._broker.temporary.delete_unheld(entity)

    def _subscription(self, frame: Frame, call: Call) -> Subscription:
        self._refuse_without_catalog()
        path = frame.decoded(str, call.body)
        entity = self._broker.entities.look_up(path)
        if not isinstance(entity, Subscription):
            raise EntityNotFound(path)
        return entity


def _let_go_soon(entity: SendTarget, holder: object) -> None:
    """The link that holds the entity is another broker's. Until the answer is sent, this stands for it."""
    asyncio.get_running_loop().call_soon(entity.holders.discard, holder)
