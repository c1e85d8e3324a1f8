"""A link's hold of an entity: what keeps a temporary entity, or makes a link a subscription's consumer.

The broker does the work that follows the end of the link, so that it continues without the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bendybus import audit
from bendybus.broker.broker import Broker
from bendybus.broker.topic import SendTarget, Subscription
from bendybus.engine.link import Link
from bendybus.errors import BrokerError

__all__ = ["Hold", "when_ended"]

# A client that closes its connection is answered after this time, even if its temporary entities still exist.
ENDINGS_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Hold:
    broker: Broker
    entity: SendTarget
    link: Link
    """The holder."""
    authorize: Callable[[], None]
    """Raises if the client may not delete a durable subscription."""
    actor: Callable[[], audit.Actor]
    """Who the client is, for the audit log."""

    def end(self, *, closed: bool) -> asyncio.Task[BrokerError | None] | None:
        """The link has ended. Returns what to await before the client is answered: an error, or None.

        A durable subscription stays, unless the client closes the link: "the terminus [is] destroyed" then
        [AMQP 2.6.4].
        """
        entity = self.entity
        with audit.acting(self.actor()):
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


def when_ended(
    endings: Sequence[asyncio.Task[BrokerError | None]], then: Callable[[], None]
) -> asyncio.Task[None] | None:
    """Call `then` when all of these have ended: at once if there are none, otherwise in the task returned."""

    async def wait() -> None:
        await asyncio.wait(endings, timeout=ENDINGS_TIMEOUT_S)
        then()

    if endings:
        return asyncio.get_running_loop().create_task(wait())
    then()
    return None
