"""When a link is ended by the server: its client has lost a right, or an entity no longer allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from bendybus.auth.claims import Claim, Claims
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.domain.entities import EntityStatus, QueueDescription
from bendybus.gateway.attachments import Attachment, Destination
from bendybus.gateway.links import Links
from bendybus.gateway.sender import Sender
from bendybus.names import EntityPath, Instant
from unit.gateway.test_probation import opened


class FakeLink:
    def __init__(self) -> None:
        self.ended: Exception | None = None
        self.name = "link"

    def detach(self, reason: Exception) -> None:
        self.ended = reason


def queue(path: str) -> Queue:
    return Queue(QueueDescription(EntityPath(path)), 1, lambda host: None)


def sending_through() -> tuple[Links, FakeLink, Queue]:
    """A link that sends to `to` through `via`."""
    connection, _ = opened()
    link, via, to = FakeLink(), queue("via"), queue("to")
    node = Sender(connection, cast(Any, link), to, via)
    attachment = Attachment(node, "via", Right.SEND, via, destination=Destination("to", to))
    connection.links.attachments[cast(Any, link)] = attachment
    return connection.links, link, to


async def test_a_link_that_sends_through_an_entity_ends_with_the_right_for_its_destination() -> None:
    links, link, _ = sending_through()
    claims = Claims()
    claims.add(Claim("via", Right.SEND, Instant(now() + 60_000)), now())
    claims.add(Claim("to", Right.SEND, Instant(now() + 60_000)), now())
    links.tick(claims)
    assert link.ended is None
    claims.add(Claim("to", Right.SEND, Instant(now() - 1)), now())
    links.tick(claims)
    assert "'to'" in str(link.ended)
    assert not links.attachments


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_link_that_sends_through_an_entity_ends_with_its_destination(deleted: bool) -> None:
    links, link, to = sending_through()
    links.entity_changed(to)
    assert link.ended is None
    if deleted:
        to.deleted = True
    else:
        to.description = replace(to.description, status=EntityStatus.SEND_DISABLED)
    links.entity_changed(to)
    assert link.ended is not None
