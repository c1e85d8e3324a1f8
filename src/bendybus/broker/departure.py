"""Messages that were sent through an entity leave before the entity is deleted.

A transaction puts its messages for other entities into the outbox of the entity that it goes through; for a
topic, into the outbox of a subscription. They were acknowledged, and they do not belong to the deleted
entity. So the entity takes no more of them, and its forwarder sends those that it has. If a destination is
away, the deletion is refused: only this outbox knows which of them may have arrived already, so no other can
take them over. Messages of the entity itself that are being forwarded are deleted with it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bendybus.broker.forwarding import Forwarder
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.turns import Turns
from bendybus.domain.messages import UNASSIGNED, Posting, SubQueue
from bendybus.errors import BrokerError, MessagesInTransit
from bendybus.names import SequenceNumber

__all__ = ["departing", "send_off"]

logger = logging.getLogger(__name__)

# Sending takes milliseconds, or the time allowed to a stalled store. Other entities cannot change meanwhile.
DEPARTURE_MAX_S: Final = 10.0
PAGE_MAX: Final = 500


@contextmanager
def departing(sources: Sequence[Queue]) -> Iterator[None]:
    """Let nothing more be sent through these entities, which are being deleted, unless that fails."""
    for source in sources:
        source.leaving = True
    try:
        yield
    finally:
        for source in sources:
            source.leaving = False


async def send_off(source: Queue, forwarder: Forwarder, *, force: bool) -> None:
    """Wait until no message sent through the entity is left in its outboxes, or raise `MessagesInTransit`.

    `force`: give up messages that cannot leave.
    """
    if not source.departing and not source.loading:
        return
    try:
        async with asyncio.timeout(DEPARTURE_MAX_S):
            await source.loaded()
            await _stored(source)
            forwarder.wake()
            await forwarder.settled()
    except (TimeoutError, BrokerError) as reason:
        logger.debug("'%s': not all messages could leave: %s", source.path, reason)
    left = await _left_behind(source)
    if left is None:
        return
    if not force:
        raise MessagesInTransit(
            f"Nothing was changed: messages that were sent through '{source.path}' to '{left.destination}' "
            "cannot leave now. Retry when the destination is available, or use force to give them up."
        )
    logger.warning(
        "'%s' is deleted by force: messages sent through it, including some to '%s', are given up",
        source.path,
        left.destination,
    )


async def _stored(source: Queue) -> None:
    """Wait until everything that is being committed is in the outbox or has failed."""
    for store in {host.store for host in source.own.values() if host.partition is not None}:
        await store.writer.run(lambda: None)


async def _left_behind(source: Queue) -> Posting | None:
    """The posting of a message that was sent through the entity, if any outbox has one."""
    for host in source.own.values():
        found = await _first_sent_through(host)
        if found is not None:
            return found
    return None


async def _first_sent_through(host: PartitionHost) -> Posting | None:
    start, turns = UNASSIGNED, Turns()
    while page := host.waiting(start, PAGE_MAX, sys.maxsize, SubQueue.OUTBOX):
        for message in page:
            posting = None if message.amendment is None else message.amendment.posting
            if posting is not None and posting.sent_through:
                return posting
        start = SequenceNumber(page[-1].sequence_number + 1)
        await turns.next()
    return None
