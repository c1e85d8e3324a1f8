"""The links of one connection, each with the node behind it.

`attach` accepts or refuses a link (attaching.py has the checks). Later a link is ended here
when its token expires, when its entity no longer allows it, or when its node asks for that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from bendybus import audit
from bendybus.auth.claims import Claims
from bendybus.broker.clock import now
from bendybus.broker.entity import Entity
from bendybus.engine.link import Link
from bendybus.engine.session import Session
from bendybus.errors import BrokerError, Unauthorized
from bendybus.gateway.addresses import Address, with_host
from bendybus.gateway.attaching import Attachment, address_of, attach
from bendybus.gateway.browser import Browser
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.requests import Replier, Requester, choose_replier
from bendybus.gateway.sender import Sender
from bendybus.gateway.session_receiver import SessionReceiver

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["Links"]

logger = logging.getLogger(__name__)


class Links:
    __slots__ = ("_connection", "attachments")

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        # Looked up for every event.
        self.attachments: dict[Link, Attachment] = {}

    # -- attach and end -----------------------------------------------------------

    def attach(self, link: Link) -> None:
        """The client attaches: accept the link, or refuse it with the reason."""
        try:
            attachment = self.attachments[link] = attach(self._connection, link)
        except BrokerError as refusal:
            peer = self._connection.peer
            logger.info("link '%.100s' from %s refused: %s", link.name, peer, refusal.description)
            if isinstance(refusal, Unauthorized):
                actor, resource = self._connection.actor(), address_of(link)
                audit.record("operation-refused", actor, reason="no-right", resource=resource)
            link.refuse(with_host(refusal, self._connection.client.host))
        else:
            if isinstance(attachment.node, SessionReceiver):
                attachment.node.accept()

    def detached(self, link: Link) -> None:
        """The client has detached."""
        attachment = self.attachments.pop(link, None)
        if attachment is not None:
            attachment.node.close()

    def end(self, link: Link, reason: BrokerError) -> None:
        """Close a link, accepted or not yet, and tell the client the reason."""
        attachment = self.attachments.get(link)
        if attachment is not None:
            peer = self._connection.peer
            logger.info("link '%.100s' from %s ended: %s", link.name, peer, reason.description)
            self._end(link, attachment, reason)
            self._connection.flush_soon()

    def entity_changed(self, entity: Entity[Any, Any]) -> None:
        """An entity was updated or deleted: close the links that it no longer allows."""
        for link, attachment in list(self.attachments.items()):
            if attachment.entity is entity:
                try:
                    attachment.refuse_changed()
                except BrokerError as reason:
                    self._end(link, attachment, with_host(reason, self._connection.client.host))
                    self._connection.flush_soon()

    def tick(self, claims: Claims) -> None:
        """Close the links whose token has expired; let receivers release what they have kept too long."""
        for link, attachment in list(self.attachments.items()):
            if attachment.right is not None:
                try:
                    claims.require(attachment.resource, attachment.right, now())
                except Unauthorized as ended:
                    self._end(link, attachment, ended)
            if isinstance(attachment.node, Receiver) and attachment.entity is not None:
                attachment.node.tick(attachment.entity.now())

    def close(self) -> None:
        """The connection is gone, and every link with it."""
        attachments = list(self.attachments.values())
        self.attachments.clear()
        for attachment in attachments:
            attachment.node.close()

    def _end(self, link: Link, attachment: Attachment, reason: BrokerError) -> None:
        self.attachments.pop(link)
        attachment.node.close()
        link.detach(reason)

    # -- what nodes and the connection ask ----------------------------------------

    def go_on(self) -> None:
        """The client can be sent more again."""
        for attachment in list(self.attachments.values()):
            if isinstance(attachment.node, Receiver | Browser | Replier):
                attachment.node.flow()

    def takes_batches(self, link: Link) -> bool:
        """Whether the link carries messages, which are handled in batches, and not requests."""
        attachment = self.attachments.get(link)
        return attachment is None or isinstance(attachment.node, Sender)

    def count_at_cbs(self, kind: type[Requester | Replier]) -> int:
        """How many links of this kind are attached to `$cbs`."""
        nodes = (each.node for each in self.attachments.values() if each.entity is None)
        return sum(isinstance(node, kind) for node in nodes)

    def find_replier(self, node: Address, session: Session, reply_to: str | None) -> Replier | None:
        """The link on which this client awaits the node's replies."""
        nodes = (attachment.node for attachment in self.attachments.values())
        repliers = [each for each in nodes if isinstance(each, Replier) and each.node == node]
        return choose_replier(repliers, session, reply_to)
