"""AutoDeleteOnIdle: which entities have been unused for so long that they are deleted."""

from __future__ import annotations

from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget, Topic
from bendybus.names import Instant

__all__ = ["is_idle"]


def is_idle(entity: SendTarget, at: Instant, *, since: Instant) -> bool:
    """Whether nobody has sent, received, peeked or changed anything for the time of AutoDeleteOnIdle.

    The time before `since`, when the server was down, does not count. An entity that forwards is
    in use, and so is one that a link holds, or with messages for other entities in its outbox.
    """
    limit_s = entity.description.auto_delete_on_idle_s
    if limit_s is None or entity.loading or entity.holders:
        return False
    if isinstance(entity, Queue) and (entity.awaited or entity.description.forward_to is not None):
        return False
    last = max(entity.accessed_at, entity.updated_at, since)
    if at - last <= limit_s * 1000 or any(
        host.figures is None or host.figures.scheduled_count for host in entity.own.values()
    ):
        return False
    sources = entity.subscriptions if isinstance(entity, Topic) else (entity,)
    return not any(source.departing for source in sources)
