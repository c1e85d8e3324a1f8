"""Readers that look at messages of another broker and take none: they are told when there are new messages.

The owner is asked for news once, and answers once (`Watch` and `News`). A reader that continues asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bendybus.broker.queue import Queue, Waiter
from bendybus.cluster.items import Watch
from bendybus.domain.messages import SubQueue

if TYPE_CHECKING:
    from bendybus.cluster.link import PeerLink

__all__ = ["Watching"]


class Watching:
    """The readers of one queue, for the partitions that one other broker owns."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._link: PeerLink | None = None
        self._waiters: dict[SubQueue, dict[Waiter, None]] = {subqueue: {} for subqueue in SubQueue}
        """While there are some, the owner has been asked."""

    def connected(self, link: PeerLink) -> None:
        """All waiting readers are woken afterwards, and ask again."""
        self._link = link

    def disconnected(self) -> None:
        self._link = None
        for waiters in self._waiters.values():
            waiters.clear()

    def watch(self, waiter: Waiter, subqueue: SubQueue) -> None:
        waiters = self._waiters[subqueue]
        if self._link is not None:
            if not waiters:
                self._link.send(Watch(self._queue.path, self._queue.generation, subqueue))
            waiters[waiter] = None

    def stop(self, waiter: Waiter, subqueue: SubQueue) -> None:
        """If no reader is left, the next news is ignored."""
        self._waiters[subqueue].pop(waiter, None)

    def news(self, subqueue: SubQueue) -> None:
        waiters = list(self._waiters[subqueue])
        self._waiters[subqueue].clear()
        for waiter in waiters:
            waiter.wake()
