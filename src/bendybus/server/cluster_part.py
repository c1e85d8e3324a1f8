"""What makes a server one broker of several: requests that brokers pass on, and what they count.

How a broker becomes a part of the others: cluster_member.py for processes on one machine, cluster_node.py for
brokers on many machines.
"""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

FIGURES_CALL: Final = "figures"
_FIGURES: Final = list[tuple[str, str, int | float]]


class ClusterPart(ABC):
    """One broker of several, as the composition root sees it."""

    processes: int
    """How many processes share this machine's memory."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._app: ASGIApp | None = None
        self._figures: Callable[[], Awaitable[ProcessFigures]] | None = None

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

    # -- HTTP ---------------------------------------------------------------------

    @property
    def own_calls(self) -> Calls:
        return {HTTP_CALL: self._serve_http, FIGURES_CALL: self._serve_figures}

    def forwarding(self, refuse: Refuse | None = None) -> ForwardingRoute:
        """Passes management on to the broker that has the catalog, when it is not this one."""
        return ForwardingRoute(lambda: self.cluster.leader, refuse)

    def answer_with(self, app: ASGIApp, figures: Callable[[], Awaitable[ProcessFigures]]) -> None:
        """How requests that other brokers pass on are answered, and what this process counts."""
        self._app, self._figures = app, figures

    async def figures_of_others(self) -> list[ProcessFigures]:
        """What the other processes count, of those that can be asked."""
        found: list[ProcessFigures] = []
        for peer in list(self.cluster.peers.by_name.values()):
            try:
                found.append(await peer.call(FIGURES_CALL, None, _FIGURES))
            except Unavailable as absence:
                logger.debug("the figures of the broker '%s' are missing: %s", peer.name, absence)
        return found

    async def _serve_figures(self, link: PeerLink, frame: Frame, call: Call) -> ProcessFigures:
        return () if self._figures is None else await self._figures()

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
