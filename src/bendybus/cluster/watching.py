"""Those who look at messages of another broker, and take none: they are told when there are new ones.

The owner is asked for news once, and answers once (`Watch` and `News`). Whoever looks on asks again.
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
    """Those who look at one queue, as far as one other broker has it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._link: PeerLink | None = None
        self._waiters: dict[SubQueue, dict[Waiter, None]] = {subqueue: {} for subqueue in SubQueue}
        """While there are some, the owner has been asked."""

    def connected(self, link: PeerLink) -> None:
        """All who wait are woken afterwards, and ask again."""
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
        """If nobody looks any more, the next news are ignored."""
        self._waiters[subqueue].pop(waiter, None)

    def news(self, subqueue: SubQueue) -> None:
        waiters = list(self._waiters[subqueue])
        self._waiters[subqueue].clear()
        for waiter in waiters:
            waiter.wake()
