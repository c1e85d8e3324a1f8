"""The server's process: the whole broker with its gateway, and how it dies and comes back.

Everything between the wire and the stores is the broker's own code. One life
follows another on the same disks, whether it ends in an orderly way or in the
middle of anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from bendybus.auth.key_ring import ROOT_RULE_NAME, AccessRule, KeyRing
from bendybus.broker.broker import Broker
from bendybus.domain.entities import Tier
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import BrokerError
from bendybus.gateway.gateway import Gateway
from bendybus.namespaces import NAMESPACE_DEFAULT, Namespace, Namespaces
from faults.simulation.loop import Loop
from faults.simulation.network import Network
from faults.simulation.stores import Disk, VirtualCatalog, VirtualStore
from faults.simulation.threads import Threading
from faults.simulation.world import World
from fix_client import Endpoint

__all__ = ["ENDPOINT", "Process", "Server", "ServerGone"]

ENDPOINT = Endpoint("server", 5671, ROOT_RULE_NAME, "simulated-key")

T = TypeVar("T")


class ServerGone(Exception):
    """The process ended before it answered."""


class Process:
    """A server's process: one life after another, each on an event loop of its own."""

    def __init__(self, world: World, name: str, complain: Callable[[str], None]) -> None:
        self.world = world
        self.name = name
        self.lives = 0
        self.crashes = 0
        self.loop: Loop
        self.broker: Broker | None = None
        """None while the process is down."""
        self._complain = complain
        self._graves: list[Loop] = []
        self._asked: dict[asyncio.Future[Any], Loop] = {}

    @property
    def is_up(self) -> bool:
        return bool(self.lives) and self.loop.alive

    def start(self) -> None:
        self.lives += 1
        self.world.note(f"{self.name} starts, life {self.lives}")
        self.loop = Loop(self.world, f"{self.name}-{self.lives}", self._complain)
        self._launch(self.loop)

    def _launch(self, loop: Loop) -> None:
        """What the new process does first."""
        raise NotImplementedError

    def _lose_network(self) -> None:
        """The process is gone, and so are its connections."""
        raise NotImplementedError

    def crash(self) -> None:
        """Power off: what was not committed is gone."""
        self.crashes += 1
        self.world.note(f"{self.name} crashes")
        self.die()

    def die(self) -> None:
        self.broker = None
        self.loop.kill()
        self._graves.append(self.loop)
        self._lose_network()
        asked, self._asked = self._asked, {}
        for answer, loop in asked.items():
            loop.call_soon(_refuse, answer, ServerGone())

    async def ask(self, what: Callable[[Broker], Awaitable[T]]) -> T:
        """For what people do over HTTP: run this in the server's process, if it is up and stays so."""
        broker, asker = self.broker, asyncio.get_running_loop()
        assert isinstance(asker, Loop)
        if broker is None:
            raise ServerGone
        answer: asyncio.Future[T] = asker.create_future()
        self._asked[answer] = asker

        async def work() -> None:
            try:
                result = await what(broker)
            except BrokerError as refusal:
                asker.call_soon(_refuse, answer, refusal)
            else:
                asker.call_soon(_fulfil, answer, result)
            self._asked.pop(answer, None)

        self.loop.call_soon(lambda: self.loop.create_task(work()))
        return await answer

    def bury(self) -> None:
        if self.is_up:
            self.die()
        for loop in self._graves:
            loop.bury()


class Server(Process):
    """A server that is alone."""

    def __init__(
        self,
        world: World,
        network: Network,
        disk: Disk,
        stores: Sequence[VirtualStore],
        catalog: VirtualCatalog,
        tier: Tier,
        complain: Callable[[str], None],
    ) -> None:
        super().__init__(world, "server", complain)
        self._network = network
        self._disk = disk
        self._stores = stores
        self._catalog = catalog
        self._tier = tier
        self._gateway: Gateway | None = None

    @property
    def threads(self) -> Threading:
        return Threading(self.loop)

    def _launch(self, loop: Loop) -> None:
        self._disk.loop = loop
        loop.call_soon(self._serve)

    def _serve(self) -> None:
        broker = Broker(self._catalog, self._stores, tier=self._tier, contents=AmqpContents())
        broker.start()
        namespaces = Namespaces()
        namespaces.add(Namespace(NAMESPACE_DEFAULT, broker, KeyRing([AccessRule.root(ENDPOINT.key)])))
        self._gateway = Gateway(namespaces)
        self._gateway.start()
        self.broker = broker
        self._network.listening = self.loop, self._gateway.protocol

    def stop(self) -> None:
        """SIGTERM: orderly, unless a crash comes first."""
        if self.broker is None:
            return
        self.world.note("server stops")
        loop = self.loop
        self._network.listening = None
        loop.create_task(self._stop(loop, self.broker))

    async def _stop(self, loop: Loop, broker: Broker) -> None:
        assert self._gateway is not None
        self._gateway.stop()
        await broker.stop()
        if self.loop is loop and loop.alive:
            self.world.note("server has stopped")
            self.die()

    def _lose_network(self) -> None:
        self._gateway = None
        self._network.lose_server()


def _fulfil(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _refuse(done: asyncio.Future[Any], failure: Exception) -> None:
    if not done.done():
        done.set_exception(failure)
