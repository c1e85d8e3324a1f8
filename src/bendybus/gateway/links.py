"""The links of one connection, each with the node behind it.

`attach` accepts or refuses a link (attaching.py has the checks). Later a link is ended here
when its token expires, when its entity no longer allows it, or when its node asks for that.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from bendybus import audit
from bendybus.auth.claims import Claims
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.entity import Entity
from bendybus.engine.link import Link
from bendybus.engine.session import Session
from bendybus.errors import BrokerError, Unauthorized
from bendybus.gateway.addresses import Address, with_host
from bendybus.gateway.attaching import address_of, attach
from bendybus.gateway.attachments import Attachment
from bendybus.gateway.browser import Browser
from bendybus.gateway.link_ports import OutboundLink
from bendybus.gateway.opening import Opening
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.requests import Replier, Requester, choose_replier
from bendybus.gateway.sender import Sender
from bendybus.gateway.session_receiver import SessionReceiver

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["Links"]

logger = logging.getLogger(__name__)


class Links:
    __slots__ = ("_connection", "attachments", "opening")

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        # Looked up for every event.
        self.attachments: dict[Link, Attachment] = {}
        self.opening = 0
        """Links whose entities are being created, detached ones too."""

    # -- attach and end -----------------------------------------------------------

    def attach(self, link: Link) -> None:
        """The client attaches: accept the link, or refuse it with the reason."""
        try:
            attachment = self.attachments[link] = attach(self._connection, link)
        except BrokerError as refusal:
            self.refuse(link, refusal)
        else:
            if isinstance(attachment.node, SessionReceiver):
                attachment.node.accept()
            elif isinstance(attachment.node, Opening):
                attachment.node.start()

    def refuse(self, link: Link, refusal: BrokerError) -> None:
        self.attachments.pop(link, None)
        peer = self._connection.peer
        logger.info("link '%.100s' from %s refused: %s", link.name, peer, refusal.description)
        if isinstance(refusal, Unauthorized):
            actor, resource = self._connection.actor(), address_of(link)
            audit.record("operation-refused", actor, reason="no-right", resource=resource)
        link.refuse(with_host(refusal, self._connection.client.host))

    def opened(self, link: Link, attachment: Attachment) -> None:
        """The entity of the link exists now, and the link has been accepted."""
        self.attachments[link] = attachment
        if isinstance(attachment.node, SessionReceiver):
            attachment.node.accept()
        elif isinstance(attachment.node, Opening):
            attachment.node.start()
        elif isinstance(attachment.node, Receiver | Browser):
            attachment.node.flow()

    def detached(self, link: Link, *, closed: bool) -> None:
        """The client has detached. Its answer waits for the end of an entity that ends with the link."""
        attachment = self.attachments.pop(link, None)
        ending = None
        if attachment is not None:
            attachment.node.close()
            if attachment.hold is not None:
                ending = attachment.hold.end(closed=closed)
        if ending is None:
            link.answer_detach()
        else:
            ending.add_done_callback(partial(self._answer_detach, link))

    def _answer_detach(self, link: Link, ending: asyncio.Task[BrokerError | None]) -> None:
        link.answer_detach(None if ending.cancelled() else ending.result())
        self._connection.flush_soon()

    def end(self, link: Link | OutboundLink, reason: BrokerError) -> None:
        """Close a link, accepted or not yet, and tell the client the reason."""
        whole = cast(Link, link)
        attachment = self.attachments.get(whole)
        if attachment is not None:
            peer = self._connection.peer
            logger.info("link '%.100s' from %s ended: %s", link.name, peer, reason.description)
            self._end(whole, attachment, reason)
            self._connection.flush_soon()

    def entity_changed(self, entity: Entity[Any, Any, Any]) -> None:
        """An entity was updated or deleted: close the links that it no longer allows."""
        for link, attachment in list(self.attachments.items()):
            if attachment.is_about(entity):
                try:
                    attachment.refuse_changed()
                except BrokerError as reason:
                    self._end(link, attachment, with_host(reason, self._connection.client.host))
                    self._connection.flush_soon()

    def tick(self, claims: Claims) -> None:
        """Close the links whose token has expired; let receivers release what they have kept too long."""
        at = now()
        allowed: set[tuple[str, Right]] = set()
        for link, attachment in list(self.attachments.items()):
            # A client may have a thousand links to one queue.
            missing = [each for each in attachment.needed if each not in allowed]
            try:
                for resource, right in missing:
                    claims.require(resource, right, at)
                    allowed.add((resource, right))
            except Unauthorized as ended:
                self._end(link, attachment, ended)
            if isinstance(attachment.node, Receiver) and attachment.entity is not None:
                attachment.node.tick(attachment.entity.now())

    def close(self) -> list[asyncio.Task[BrokerError | None]]:
        """The connection is gone, and every link with it. Returns the ends of entities that end with them."""
        attachments = list(self.attachments.values())
        self.attachments.clear()
        endings = [_let_go(attachment) for attachment in attachments]
        return [ending for ending in endings if ending is not None]

    def _end(self, link: Link, attachment: Attachment, reason: BrokerError) -> None:
        self.attachments.pop(link)
        _let_go(attachment)
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


def _let_go(attachment: Attachment) -> asyncio.Task[BrokerError | None] | None:
    """The link has ended without a detach of the client."""
    attachment.node.close()
    return None if attachment.hold is None else attachment.hold.end(closed=False)
