"""The brokers of a server over HTTP, for those who manage its namespace: who they are, and what each owns.

    GET /$brokers                all brokers
    GET /$brokers/{name}         one of them, with the partitions that it owns
    GET /$brokers?entity=PATH    the partitions of an entity, with the store and the owner of each
    PUT /$brokers/{name}         {"draining": true}    give its stores to others; false: take part again

Bodies and answers are JSON. The broker that has the catalog answers, whichever is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.placing import placed_in
from bendybus.errors import ArgumentError, BrokerError, EntityNotFound, InvalidOperation
from bendybus.http_bodies import json_body
from bendybus.namespaces import Namespace

__all__ = ["BrokerList", "ListedBroker", "broker_routes"]


@dataclass(frozen=True, slots=True)
class ListedBroker:
    """One broker, as the broker that has the catalog sees it."""

    name: str
    state: str
    leads: bool
    """Whether it has the catalog, and so makes the changes of entities."""
    stores: Sequence[str]
    """The messaging stores that it owns."""
    address: str = ""
    """Where the other brokers reach it; empty for processes of one machine."""
    version: str = ""


class BrokerList(Protocol):
    def listed_brokers(self) -> Sequence[ListedBroker]:
        """All brokers, by name."""

    async def drain_broker(self, name: str, draining: bool) -> None:
        """Let a broker give all its stores to others, or take part again."""


def broker_routes(namespace: Namespace, brokers: BrokerList | None) -> list[BaseRoute]:
    """`brokers`: None for a server with one broker."""

    def shown(broker: ListedBroker, *, whole: bool) -> dict[str, object]:
        placed = placed_in(namespace.broker.entities.records())
        owned = sorted(place for store in broker.stores for place in placed.get(store, ()))
        answer: dict[str, object] = {
            "name": broker.name,
            "state": broker.state,
            "leads": broker.leads,
            "address": broker.address,
            "version": broker.version,
            "stores": list(broker.stores),
            "partitions": len(owned),
        }
        if whole:
            entities: dict[str, list[int]] = {}
            for path, number in owned:
                entities.setdefault(path, []).append(number)
            answer["entities"] = entities
        return answer

    def owners(path: str, listed: Iterable[ListedBroker]) -> dict[str, object]:
        entities = namespace.broker.entities
        if entities.look_up(path) is None:
            raise EntityNotFound(path)
        by_store = {store: broker.name for broker in listed for store in broker.stores}
        placement = entities.record(path).placement
        partitions = [
            {"number": number, "store": store, "owner": by_store.get(store, "")}
            for number, store in enumerate(placement)
        ]
        return {"name": entities.record(path).path, "partitions": partitions}

    async def answered(request: Request) -> Response:
        try:
            authorise(request.headers, namespace.keys, "", Right.MANAGE, now())
            if brokers is None:
                raise InvalidOperation("This server has one broker.")
            listed = {broker.name: broker for broker in brokers.listed_brokers()}
            name, path = request.path_params.get("name"), request.query_params.get("entity")
            if name is None and path is not None:
                return JSONResponse(owners(path, listed.values()))
            if name is None:
                return JSONResponse({"brokers": [shown(each, whole=False) for each in listed.values()]})
            if name not in listed:
                raise ArgumentError(f"There is no broker '{name}'; there are {', '.join(listed)}.")
            if request.method == "PUT":
                await brokers.drain_broker(name, await _is_draining(request))
                listed = {broker.name: broker for broker in brokers.listed_brokers()}
            return JSONResponse(shown(listed[name], whole=True))
        except BrokerError as refusal:
            return JSONResponse({"error": refusal.description}, refusal.status)

    return [
        Route("/$brokers", answered, methods=["GET"]),
        Route("/$brokers/{name}", answered, methods=["GET", "PUT"]),
    ]


async def _is_draining(request: Request) -> bool:
    body = await json_body(request)
    draining = body.get("draining") if isinstance(body, dict) else None
    if not isinstance(draining, bool):
        raise ArgumentError("'draining' must be true or false.")
    return draining
