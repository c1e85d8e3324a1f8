"""What makes a server one broker of several: requests that brokers pass on, and what they count.

How a broker becomes a part of the others: cluster_member.py for processes on one machine, cluster_node.py for
brokers on many machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from starlette.types import ASGIApp

from bendybus.admin.broker_routes import ListedBroker
from bendybus.broker.broker import Broker
from bendybus.cluster.cluster import Cluster
from bendybus.cluster.frames import Frame
from bendybus.cluster.items import Call
from bendybus.cluster.link import PeerLink
from bendybus.cluster.serving import Calls
from bendybus.errors import NotSupported, Unavailable
from bendybus.server.broker_questions import QUESTION_CALL, BrokerQuestions
from bendybus.server.figures import ProcessFigures
from bendybus.server.forwarded_http import (
    HTTP_CALL,
    ForwardedRequest,
    ForwardedResponse,
    ForwardingRoute,
    Refuse,
    serve_forwarded,
)
from bendybus.store.catalog import Catalog
from bendybus.store.folder import DataFolder

__all__ = ["ClusterPart", "refuse_new_root_key"]

FIGURES: Final = "figures"
# A walk over all entities, in turns.
FIGURES_TIMEOUT_S: Final = 30.0


class ClusterPart(ABC):
    """One broker of several, as the composition root sees it."""

    processes: int
    """How many processes share this machine's memory."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.others = BrokerQuestions(lambda: self.cluster)
        self.all_counted = True
        """Whether every other broker answered when they were last asked what they count."""
        self._app: ASGIApp | None = None

    @property
    def has_catalog(self) -> bool:
        return self.cluster.has_catalog

    @abstractmethod
    async def catalog(self, folder: DataFolder, exits: AsyncExitStack) -> Catalog:
        """The catalog itself, or what the broker that has it says."""

    @abstractmethod
    async def serve(
        self, broker: Broker, namespace_changed: Callable[[], None], exits: AsyncExitStack
    ) -> None:
        """Serve the other brokers."""

    @abstractmethod
    def listed_brokers(self) -> list[ListedBroker]:
        """All brokers, by name."""

    async def drain_broker(self, name: str, draining: bool) -> None:
        """Let a broker give all its stores to others, or take part again."""
        raise NotSupported(
            "The brokers of this server are processes of one machine, and each keeps its messaging stores. "
            "Only the brokers of a cluster can be drained."
        )

    @property
    def draining(self) -> str:
        """Why clients should connect to another broker, for people; empty if they need not."""
        return ""

    @abstractmethod
    async def leave(self) -> None:
        """Called before the end, while clients are still served."""

    # -- HTTP ---------------------------------------------------------------------

    @property
    def own_calls(self) -> Calls:
        return {HTTP_CALL: self._serve_http, QUESTION_CALL: self.others.serve}

    def forwarding(self, refuse: Refuse | None = None) -> ForwardingRoute:
        """Passes management on to the broker that has the catalog, when it is not this one."""
        return ForwardingRoute(lambda: self.cluster.leader, refuse)

    def answer_with(self, app: ASGIApp, figures: Callable[[bool], Awaitable[ProcessFigures]]) -> None:
        """How requests that other brokers pass on are answered, and what this process counts."""
        self._app = app
        self.others.answer(FIGURES, bool, figures)

    async def figures_of_others(self, by_partition: bool) -> list[ProcessFigures]:
        """What the other processes count, of those that can be asked."""
        kind = list[tuple[str, str, int | float]]
        asked = list(self.others.brokers)
        counted = await self.others.ask_all(FIGURES, by_partition, kind, FIGURES_TIMEOUT_S)
        self.all_counted = len(counted) == len(asked)
        return list(counted.values())

    async def _serve_http(self, link: PeerLink, frame: Frame, call: Call) -> ForwardedResponse:
        if self._app is None or not self.has_catalog:
            raise Unavailable("This broker does not lead yet, or not any more. Please retry the operation.")
        return await serve_forwarded(self._app, frame.decoded(ForwardedRequest, call.body))


def refuse_new_root_key(which: str, key: str) -> None:
    """Instead of keeping it: the other brokers would not know it."""
    raise NotSupported(
        "The root key cannot be changed yet while a server with several brokers runs. Start it with one "
        "broker to change the key."
    )
