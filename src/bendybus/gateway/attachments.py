"""What is behind an accepted link: its node, the right that it needs, and the entity that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bendybus.auth.rights import Right
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import OutcomesReceived
from bendybus.errors import EntityNotFound
from bendybus.gateway.browser import Browser
from bendybus.gateway.holds import Hold
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.sender import Sender

__all__ = ["Attachment", "Destination", "InboundNode", "Node", "OutboundNode"]


class InboundNode(Protocol):
    """Accepts what a client sends."""

    def deliveries(self, deliveries: list[Delivery]) -> None: ...

    def close(self) -> None: ...


class OutboundNode(Protocol):
    """Supplies what a client receives."""

    def flow(self) -> None: ...

    def outcomes(self, event: OutcomesReceived) -> None: ...

    def close(self) -> None: ...


Node: TypeAlias = InboundNode | OutboundNode


@dataclass(frozen=True, slots=True)
class Destination:
    """The entity that a link sends to through another one. It needs Send on both."""

    resource: str
    entity: SendTarget


@dataclass(frozen=True, slots=True)
class Attachment:
    """An accepted link, and the right that it needs."""

    node: Node
    resource: str
    right: Right | None
    """None at `$cbs`, where no right is needed."""
    entity: SendTarget | None = None
    """None at `$cbs`, and while the entity is being created."""
    hold: Hold | None = None
    """The hold on an entity that may end with the link."""
    destination: Destination | None = None
    """Where a link sends to if not to its entity."""

    @property
    def needed(self) -> list[tuple[str, Right]]:
        """The rights that the client must have for as long as the link is attached."""
        needed = [] if self.right is None else [(self.resource, self.right)]
        if self.destination is not None:
            needed.append((self.destination.resource, Right.SEND))
        return needed

    def is_about(self, entity: object) -> bool:
        """Whether changes of this entity matter to the link."""
        return self.entity is entity or (self.destination is not None and self.destination.entity is entity)

    def refuse_changed(self) -> None:
        """The entity was updated or deleted: raise the reason if this link is no longer allowed."""
        entity = self.entity
        if entity is None:
            return
        if entity.deleted:
            raise EntityNotFound(entity.path)
        if self.destination is not None:
            if self.destination.entity.deleted:
                raise EntityNotFound(self.destination.entity.path)
            self.destination.entity.refuse_sending()
        if entity.faults is not None:
            entity.faults.refuse_link(entity.path)
        if isinstance(self.node, Sender):
            entity.refuse_sending()
        elif isinstance(entity, Queue) and isinstance(self.node, Receiver | Browser):
            entity.refuse_receiving(self.node.subqueue)
