"""A link whose entity is being created: its attach is answered when the entity exists.

The broker creates the entity, and continues if the connection ends. The entity is then released again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final

from bendybus import audit
from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import OutcomesReceived
from bendybus.engine.link import Link
from bendybus.errors import BrokerError, ServerBusy
from bendybus.gateway.attachments import Attachment
from bendybus.gateway.holds import Hold

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["Opening"]

# Entities are created one after the other. A client that detaches before the answer leaves a creation behind.
OPENING_MAX: Final = 100


class Opening:
    """The node of a link until `create` is done; then `accept` accepts the link and returns its own."""

    def __init__(
        self,
        connection: AmqpConnection,
        link: Link,
        create: Callable[[], Coroutine[None, None, Hold | None]],
        accept: Callable[[Hold | None], Attachment],
    ) -> None:
        if connection.links.opening >= OPENING_MAX:
            raise ServerBusy(
                f"{OPENING_MAX} links of this connection wait for entities that are being created. "
                "Please retry."
            )
        self._connection = connection
        self._link = link
        self._create = create
        self._accept = accept
        self._closed = False

    def start(self) -> None:
        self._connection.links.opening += 1
        self._connection.client.broker.background.start(self._run(self._connection.actor()))

    async def _run(self, actor: audit.Actor) -> None:
        hold: Hold | None = None
        try:
            with audit.acting(actor):
                hold = await self._create()
            if not self._closed:
                self._connection.links.opened(self._link, self._accept(hold))
                hold = None
        except BrokerError as refusal:
            if not self._closed:
                self._connection.links.refuse(self._link, refusal)
        finally:
            self._connection.links.opening -= 1
            if hold is not None:
                hold.end(closed=False)
        self._connection.flush_soon()

    def flow(self) -> None:
        """Credit that arrives before the link is accepted is used afterwards."""

    def deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """The client has no credit yet, so nothing that it sends is taken or answered."""

    def outcomes(self, event: OutcomesReceived) -> None:
        """Nothing has been sent."""

    def close(self) -> None:
        self._closed = True
