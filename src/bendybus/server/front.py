"""The front: one port with AMQP and HTTP, for all namespaces of the server.

Namespaces can be added and removed while it is open. The gateway finds the namespace of an
AMQP connection. The namespace of an HTTP request is found here, by its host name or its token.
The request is then served by routes that know only this namespace. The brokers of the
namespaces are opened and closed in app.py and in `bendybus.testing`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from bendybus import audit
from bendybus.admin.authorization_rule_routes import AuthorizationRuleRoutes
from bendybus.admin.authorization_rules import AuthorizationRules
from bendybus.admin.broker_routes import broker_routes
from bendybus.admin.connection_routes import ConnectionKeeper, connection_routes
from bendybus.admin.fault_routes import fault_routes
from bendybus.admin.overview_routes import overview_routes
from bendybus.admin.pipeline_routes import pipeline_routes
from bendybus.admin.routes import management_routes
from bendybus.admin.store_routes import store_routes
from bendybus.arm.errors import refused
from bendybus.arm.resources import is_resource_request
from bendybus.arm.routes import ResourceManager, ResourceManagerOptions
from bendybus.gateway.connection_list import ConnectionList
from bendybus.gateway.gateway import Gateway
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.namespaces import Namespace, Namespaces
from bendybus.rest.routes import RestMessages
from bendybus.server.accept_turns import AcceptTurns
from bendybus.server.cluster_part import ClusterPart
from bendybus.server.forwarded_http import Refuse
from bendybus.server.http import HEALTH_PATH, Health, http_app, watching_app
from bendybus.server.http_protocol import HttpHost, TakeOver
from bendybus.server.listener import Listener
from bendybus.server.metrics_page import MetricsPage
from bendybus.server.plain_refusals import PlainAmqpRefusal, PlainHttpRefusal
from bendybus.server.store_keeper import StoreKeeper

__all__ = ["Front"]

# On the port for metrics: a few monitoring systems, each with a connection or two.
WATCHING_CONNECTIONS_MAX: Final = 64


Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


class Front:
    def __init__(
        self,
        tls: ssl.SSLContext,
        *,
        handshake_timeout_s: float,
        connections_max: int,
        memory_bytes: int,
        require_tls: bool = False,
        operators_routes: Sequence[BaseRoute] = (),
        take_over: TakeOver | None = None,
        member: ClusterPart | None = None,
        resource_manager: ResourceManagerOptions | None = None,
    ) -> None:
        """`operators_routes`: what belongs to the server and to no namespace.

        `take_over`: for the WebSockets of the portal, which are passed on as bytes. `member`: what makes this
        server one broker of several.
        """
        self._member = member
        self.namespaces = Namespaces()
        self.ready = False
        """What `/health` says."""
        budget = MemoryBudget(memory_bytes)
        self.gateway = Gateway(self.namespaces, handshake_timeout_s=handshake_timeout_s, budget=budget)
        self._routes = _NamespaceRoutes(self.namespaces, ConnectionList(self.gateway), member)
        self._resource_manager = ResourceManager(
            self.namespaces, resource_manager or ResourceManagerOptions()
        )
        metrics = self.metrics = MetricsPage(
            self.namespaces, self.gateway, None if member is None else member.figures_of_others
        )
        app = http_app(
            amqp=self.gateway.protocol,
            health=self._health,
            metrics=metrics.show if member is None else _where_the_catalog_is(member, metrics.show),
            # Last: every path may be an entity's.
            routes=[_ResourceRoute(self._resource_manager.answer, member), *operators_routes, self._routes],
        )
        if member is not None:
            member.answer_with(app, metrics.of_process)
        watching = watching_app(health=self._health, metrics=metrics.show_all)

        def host(app: ASGIApp, take_over: TakeOver | None = None) -> HttpHost:
            served = PlainHttpRefusal(app, HEALTH_PATH) if require_tls else app
            return HttpHost(
                _KnownPeer(served), budget, head_timeout_s=handshake_timeout_s, take_over=take_over
            )

        if require_tls and take_over is not None:
            take_over = _only_over_tls(take_over)
        self._http, self._watching_http = host(app, take_over), host(watching)
        self._watching = Listener(
            http=self._watching_http.protocol,
            tls=tls,
            handshake_timeout_s=handshake_timeout_s,
            connections_max=WATCHING_CONNECTIONS_MAX,
        )
        self._listener = Listener(
            amqp=self.gateway.protocol,
            plain_amqp=PlainAmqpRefusal if require_tls else None,
            http=self._http.protocol,
            tls=tls,
            handshake_timeout_s=handshake_timeout_s,
            connections_max=connections_max,
        )

    def admit(
        self,
        namespace: Namespace,
        rules: AuthorizationRules,
        keeper: StoreKeeper | None = None,
    ) -> None:
        """Serve clients in this namespace, whose broker has been started.

        `keeper` attaches and retires its stores; None if that is not possible.
        """
        self.namespaces.add(namespace)
        self._routes.admit(namespace, rules, keeper)
        self._resource_manager.admit(namespace, rules)
        self.gateway.admit(namespace)

    def dismiss(self, namespace: Namespace) -> None:
        """Disconnect the clients of this namespace. Its broker may then be stopped."""
        self.namespaces.remove(namespace)
        self._routes.dismiss(namespace)
        self._resource_manager.dismiss(namespace)
        self.gateway.dismiss(namespace)

    async def open(self, addresses: Iterable[tuple[str, int]]) -> list[int]:
        """Accept connections on these addresses. Returns the ports."""
        self.gateway.start()
        return [await self._listener.listen(host, port) for host, port in addresses]

    def open_sockets(
        self,
        addresses: Iterable[Sequence[socket.socket]],
        metrics: Sequence[socket.socket],
        turns: AcceptTurns,
    ) -> list[int]:
        """The same on sockets that other processes accept on too, and perhaps the port for metrics."""
        self.gateway.start()
        if metrics:
            self._watching.listen_on(metrics)
        return [self._listener.listen_on(sockets, turns) for sockets in addresses]

    async def open_metrics(self, host: str, port: int) -> int:
        """Serve health and metrics, and nothing else, on one more port. Returns the port."""
        return await self._watching.listen(host, port)

    def _health(self) -> Health:
        """What the server is doing, and how its stores are: by name, of several namespaces by both names."""
        alone = self.namespaces.only is not None
        stores = {
            store.name if alone else f"{namespace.name}/{store.name}": store.state.value
            for namespace in self.namespaces
            for store in namespace.broker.stores
        }
        draining = "" if self._member is None else self._member.draining
        return Health(self.ready and not draining, {"stores": stores}, draining)

    async def close(self) -> None:
        """Stop accepting, wait until everything accepted is durable and answered, and close."""
        self.ready = False
        self._listener.stop_accepting()
        self._routes.stop()
        for namespace in self.namespaces:
            if namespace.faults is not None:
                namespace.faults.heal_all()
            await namespace.broker.drain()
        self.gateway.stop()
        await self._http.close()
        await self._watching_http.close()
        await self._watching.close()
        await self._listener.close()


def _where_the_catalog_is(member: ClusterPart, show: Answer, refuse: Refuse | None = None) -> Answer:
    """The broker that has the catalog answers. `refuse`: how it is said that there is none."""
    forwarding = member.forwarding(refuse)

    async def answer(request: Request) -> Response:
        return await (show(request) if member.has_catalog else forwarding.answer(request))

    return answer


def _only_over_tls(take_over: TakeOver) -> TakeOver:
    """Without TLS a WebSocket stays the application's, which refuses it."""

    def take_over_tls(
        method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], scheme: str
    ) -> asyncio.Protocol | None:
        return take_over(method, url, headers, scheme) if scheme == "https" else None

    return take_over_tls


class _ResourceRoute(BaseRoute):
    """Requests to the resource manager, of all namespaces."""

    def __init__(self, answer: Answer, member: ClusterPart | None) -> None:
        self._answer = answer
        if member is not None:
            self._answer = _where_the_catalog_is(member, answer, lambda error, path: refused(error))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found = scope["type"] == "http" and is_resource_request(
            scope["path"], scope["query_string"].decode("latin-1")
        )
        return (Match.FULL if found else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)


class _KnownPeer:
    """Tells the audit log where each request comes from. Each has its own task, and so its own context."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        audit.enter(by="", peer=audit.peer_name(scope.get("client")))
        await self._app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Served:
    """One namespace's own routes."""

    rest: RestMessages
    router: Router
    following: Router | None
    """The routes while another broker has the catalog; None for a server with one broker."""


class _NamespaceRoutes(BaseRoute):
    """All routes of all namespaces: finds the namespace, and lets it find the route."""

    def __init__(
        self, namespaces: Namespaces, connections: ConnectionKeeper, member: ClusterPart | None
    ) -> None:
        self._namespaces = namespaces
        self._connections = connections
        self._member = member
        self._served: dict[Namespace, _Served] = {}

    def admit(
        self,
        namespace: Namespace,
        rules: AuthorizationRules,
        keeper: StoreKeeper | None,
    ) -> None:
        rest = RestMessages(namespace.broker, namespace.keys)
        member, following, others = self._member, None, None
        if member is not None:
            others = member.others
            following = Router([rest, member.forwarding()], redirect_slashes=False)
        # Management last: what is not a message operation is an entity.
        rule_routes = AuthorizationRuleRoutes(rules, namespace.keys)
        own = [
            *fault_routes(namespace),
            *store_routes(namespace, keeper, self._namespaces, others),
            *broker_routes(namespace, member),
            *connection_routes(namespace, self._connections, others),
            *overview_routes(namespace, others),
            *pipeline_routes(namespace),
        ]
        routes = [*own, rest, rule_routes, *management_routes(namespace)]
        self._served[namespace] = _Served(rest, Router(routes, redirect_slashes=False), following)

    def dismiss(self, namespace: Namespace) -> None:
        self._served.pop(namespace).rest.stop()

    def stop(self) -> None:
        """Answer all requests that wait for a message."""
        for served in self._served.values():
            served.rest.stop()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["type"] == "http" and self._served else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        namespace = self._namespaces.of_request(Headers(scope=scope))
        audit.enter(namespace=namespace.name)
        served, router = self._served[namespace], self._served[namespace].router
        if served.following is not None and self._member is not None and not self._member.has_catalog:
            router = served.following
        await router(scope, receive, send)
