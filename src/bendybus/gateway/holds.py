"""A link's hold of an entity: what keeps a temporary entity, or makes a link a subscription's consumer.

The broker does the work that follows the end of the link, so that it continues without the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bendybus.broker.broker import Broker
from bendybus.broker.topic import SendTarget, Subscription
from bendybus.engine.link import Link
from bendybus.errors import BrokerError

__all__ = ["Hold"]


@dataclass(frozen=True, slots=True)
class Hold:
    broker: Broker
    entity: SendTarget
    link: Link
    """The holder."""
    authorize: Callable[[], None]
    """Raises if the client may not delete a durable subscription."""

    def end(self, *, closed: bool) -> asyncio.Task[BrokerError | None] | None:
        """The link has ended. Returns what to await before the client is answered: an error, or None.

        A durable subscription stays, unless the client closes the link: "the terminus [is] destroyed" then
        [AMQP 2.6.4].
        """
        entity = self.entity
        if closed and isinstance(entity, Subscription) and not entity.description.temporary:
            return self.broker.background.start(self._unsubscribe(entity))
        return self.broker.temporary.release(entity, self.link)

    async def _unsubscribe(self, subscription: Subscription) -> BrokerError | None:
        try:
            self.authorize()
            await self.broker.client_subscriptions.unsubscribe(subscription, self.link)
        except BrokerError as refusal:
            subscription.holders.discard(self.link)
            return refusal
        return None
