"""A namespace in the hands of a test: its connection string, its entities, its clock, its reset.

Everything here runs on the server's own loop and returns when it is done, so that
the test's next line finds it so. How namespaces come and go: server.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bendybus.admin.rule_book import RootRule, RuleBook
from bendybus.auth.rules import KeyRing
from bendybus.broker.broker import Broker
from bendybus.broker.clock import Clock
from bendybus.broker.queue import Queue
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.commands import Given, Peek
from bendybus.domain.entities import QueueDescription, Tier, normalise_path
from bendybus.domain.messages import SubQueue
from bendybus.errors import InvalidOperation, NotSupported
from bendybus.names import EntityPath, SequenceNumber
from bendybus.namespaces import Namespace as ServedNamespace
from bendybus.server.emulator_config import unsupported_features
from bendybus.server.front import Front
from bendybus.store.catalog import Catalog
from bendybus.store.protocol import MessagingStore
from bendybus.testing.clock import TimeMachine
from bendybus.testing.sight import SeenMessage, seen

__all__ = ["Ground", "Namespace"]

# More messages than a test looks at.
ALL: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Ground:
    """What a namespace stands on, and what stays when its broker goes."""

    catalog: Catalog
    stores: list[MessagingStore]
    tier: Tier
    folder: Path | None
    """Where a durable one keeps its files."""

    def open(self) -> None:
        self.catalog.open()
        for store in self.stores:
            store.open()

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.catalog.close()


class Namespace:
    """Made by `Server.namespace`; a context manager that takes it away again."""

    def __init__(
        self,
        name: str,
        root: RootRule,
        ground: Ground,
        queues: Iterable[QueueDescription],
        rules: Mapping[str, Sequence[AuthorizationRule]],
        connection_string: str,
        front: Front,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self.connection_string = connection_string
        """For any Azure SDK; it opens this namespace and no other of the server."""
        self.name = name
        self._root = root
        self._rules = rules
        self._ground = ground
        self._queues = {normalise_path(queue.path): queue for queue in queues}
        """Those it was made with, to which a reset goes back."""
        self._front = front
        self._call = call
        self._clock = Clock()
        self._served: ServedNamespace | None = None
        self.clock = TimeMachine(self._clock, self._advance)
        for queue in self._queues.values():
            _refuse_unsupported(queue)

    @property
    def closed(self) -> bool:
        return self._served is None

    # -- entities -----------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> None:
        """Make a queue. Properties are those of Config.json in lower case: `lock_duration_s=5`."""
        description = QueueDescription(EntityPath(name), **properties)
        _refuse_unsupported(description)
        self._call(self._open.broker.create_queue(description))

    def delete_queue(self, name: str) -> None:
        self._call(self._open.broker.delete_queue(name))

    def queues(self) -> list[str]:
        """The names of all queues."""
        return sorted(queue.path for queue in self._open.broker.queues())

    def messages(self, queue: str) -> list[SeenMessage]:
        """Everything in a queue, in whatever state, by sequence number; nothing is received by looking."""
        seen: list[SeenMessage] = self._call(_look(self._open.broker.find(queue), SubQueue.MAIN))
        return seen

    def dead_letters(self, queue: str) -> list[SeenMessage]:
        """Everything in a queue's dead-letter queue."""
        seen: list[SeenMessage] = self._call(_look(self._open.broker.find(queue), SubQueue.DEAD_LETTER))
        return seen

    # -- life ---------------------------------------------------------------------

    def reset(self) -> None:
        """As it was when it was made: the same entities and nothing in them, at the real time.

        Clients stay connected. What was acknowledged before is gone, and what is sent afterwards stays.
        """
        self._call(self._reset())

    def restart(self) -> None:
        """Stop the broker and start it anew: clients are cut off, locks are lost, messages are not."""
        self._call(self._restart())

    def close(self) -> None:
        """Take the namespace away, with everything in it unless it is durable."""
        if self._served is not None:
            self._call(self.leave())

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- on the server's loop -----------------------------------------------------

    async def enter(self) -> None:
        """Open what it stands on, start a broker there, and let clients in."""
        self._ground.open()
        broker = Broker(self._ground.catalog, self._ground.stores, tier=self._ground.tier, clock=self._clock)
        broker.start()
        keys = KeyRing()
        book = RuleBook(broker, keys, self._root)
        book.open()
        try:
            await broker.ensure_queues(list(self._queues.values()))
            for scope, rules in self._rules.items():
                await book.bring(scope, rules)
        except BaseException:
            await broker.stop()
            self._ground.close()
            raise
        self._served = ServedNamespace(self.name, broker, keys)
        self._front.admit(self._served, book)

    async def leave(self) -> None:
        """Send the clients away, stop the broker, close what it stands on; nothing if that has been done."""
        served, self._served = self._served, None
        if served is not None:
            self._front.dismiss(served)
            await served.broker.stop()
            self._ground.close()

    async def _restart(self) -> None:
        await self.leave()
        await self.enter()

    async def _reset(self) -> None:
        broker = self._open.broker
        for queue in list(broker.queues()):
            if not self._is_as_made(queue):
                await broker.delete_queue(queue.path)
        await broker.empty()
        await broker.ensure_queues(list(self._queues.values()))
        self._clock.set_right()

    def _is_as_made(self, queue: Queue) -> bool:
        """Whether the queue is one of the first, or can be made like it."""
        first = self._queues.get(normalise_path(queue.path))
        if first is None:
            return False
        try:
            queue.description.refuse_immutable_changes(first)
        except InvalidOperation:
            return False
        return True

    def _advance(self, by_ms: int) -> None:
        self._call(self._advanced(by_ms))

    async def _advanced(self, by_ms: int) -> None:
        await self._open.broker.advance(by_ms)
        # What that brought to waiting receivers is written at the end of the loop's turn.
        await asyncio.sleep(0)

    @property
    def _open(self) -> ServedNamespace:
        if self._served is None:
            raise RuntimeError("this namespace has been closed")
        return self._served


def _refuse_unsupported(description: QueueDescription) -> None:
    if features := unsupported_features(description):
        raise NotSupported(f"Queue '{description.path}': {', '.join(features)}: not supported yet.")


async def _look(queue: Queue, subqueue: SubQueue) -> list[SeenMessage]:
    found: list[SeenMessage] = []
    for host in queue.hosts:
        given = await host.ask(Peek(SequenceNumber(0), ALL, subqueue))
        assert isinstance(given, Given)
        payloads = await host.payloads(given.messages)
        pairs = zip(given.messages, payloads, strict=True)
        found += [seen(message, payload) for message, payload in pairs if payload is not None]
    return found
