"""Messaging stores over HTTP: list, attach, drain, retire and forget them.

    GET     /$stores           all stores: kind, state, what they keep, how far one that drains has come
    POST    /$stores           {"url": "sqlite:///...", "name": "..."}    attach; the name may be left out
    GET     /$stores/{name}    one store, and which partitions of which entities it keeps: ?skip=0&top=50
    PUT     /$stores/{name}    {"draining": true}    empty it; false: use it again
    DELETE  /$stores/{name}    retire; only when it keeps nothing
    DELETE  /$stores/{name}?forget=true    give it up with everything in it; only while it is away

Manage on the whole namespace is needed. Only stores that the operator allowed at the start can be attached
(server/allowed_stores.py), and never by the key of one of several namespaces, which share the machine.
Bodies and answers are JSON. What is done: server/store_keeper.py, broker/draining.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus import audit
from bendybus.admin.pages import page_of
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.forgetting import Loss, loss_of
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.stores import AttachedStore
from bendybus.domain.entities import normalise_path
from bendybus.errors import ArgumentError, BrokerError, InvalidOperation, StoreNotAllowed
from bendybus.http_bodies import json_body
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["StoreKeeper", "store_routes"]


class StoreKeeper(Protocol):
    """Attaches, retires and forgets the stores of a namespace: server/store_keeper.py."""

    async def attach(self, url: str, name: str | None = None) -> str: ...

    async def retire(self, name: str) -> None: ...

    async def forget(self, name: str) -> Loss: ...


def store_routes(namespace: Namespace, keeper: StoreKeeper | None, namespaces: Namespaces) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity."""
    api = _StoreApi(namespace, keeper, namespaces)
    return [
        Route("/$stores", api.all_stores, methods=["GET", "POST"]),
        Route("/$stores/{name}", api.one_store, methods=["GET", "PUT", "DELETE"]),
    ]


class _StoreApi:
    def __init__(self, namespace: Namespace, keeper: StoreKeeper | None, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._broker = namespace.broker
        self._keys = namespace.keys
        self._keeper = keeper

    async def all_stores(self, request: Request) -> Response:
        return await self._answer(request, self._attach if request.method == "POST" else self._list)

    async def one_store(self, request: Request) -> Response:
        operations = {"PUT": self._drain, "DELETE": self._retire}
        return await self._answer(request, operations.get(request.method, self._show))

    async def _answer(
        self, request: Request, operation: Callable[[Request], Awaitable[tuple[object, HTTPStatus]]]
    ) -> Response:
        try:
            authorise(request.headers, self._keys, "", Right.MANAGE, now())
            answer, status = await operation(request)
            return JSONResponse(answer, status)
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            return JSONResponse({"error": refusal.description}, refusal.status)

    async def _list(self, request: Request) -> tuple[object, HTTPStatus]:
        self._broker.entities.elsewhere.refuse("the list of messaging stores")
        return {"stores": [self._shown(store) for store in self._broker.stores]}, HTTPStatus.OK

    async def _show(self, request: Request) -> tuple[object, HTTPStatus]:
        store = self._broker.stores[request.path_params["name"]]
        skip, top = page_of(request.query_params)
        placed: dict[str, list[int]] = {}
        for resident in store.residents:
            placed.setdefault(resident.path, []).append(int(resident.number))
        entities = sorted(placed, key=normalise_path)
        placement = [
            {"entity": entity, "partitions": sorted(placed[entity])} for entity in entities[skip : skip + top]
        ]
        return self._shown(store) | {"placement": placement, "entityCount": len(placed)}, HTTPStatus.OK

    async def _attach(self, request: Request) -> tuple[object, HTTPStatus]:
        self._broker.entities.elsewhere.refuse(
            "attaching a messaging store",
            "Restart the brokers of the cluster one after the other, each with one more --store.",
        )
        if self._namespaces.only is None:
            raise StoreNotAllowed(
                "This server has several namespaces, and the key of one does not attach stores."
            )
        body = _object(await json_body(request))
        url, name = body.get("url"), body.get("name")
        if not isinstance(url, str) or not url:
            raise ArgumentError("'url' must be the store's address, such as sqlite:///PATH.")
        if name is not None and not isinstance(name, str):
            raise ArgumentError("'name' must be text.")
        attached = await self._the_keeper().attach(url, name)
        return self._shown(self._broker.stores[attached]), HTTPStatus.CREATED

    async def _drain(self, request: Request) -> tuple[object, HTTPStatus]:
        name = request.path_params["name"]
        draining = _object(await json_body(request)).get("draining")
        if not isinstance(draining, bool):
            raise ArgumentError("'draining' must be true or false.")
        await (self._broker.drains.begin(name) if draining else self._broker.drains.end(name))
        return self._shown(self._broker.stores[name]), HTTPStatus.ACCEPTED

    async def _retire(self, request: Request) -> tuple[object, HTTPStatus]:
        name = request.path_params["name"]
        match request.query_params.get("forget"):
            case None:
                await self._the_keeper().retire(name)
                return {"name": name, "retired": True}, HTTPStatus.OK
            case "true":
                return {"name": name, **asdict(await self._the_keeper().forget(name))}, HTTPStatus.OK
        raise ArgumentError("'forget' must be true, or left out.")

    def _the_keeper(self) -> StoreKeeper:
        if self._keeper is None:
            raise InvalidOperation("This namespace keeps the stores that it was made with.")
        return self._keeper

    def _shown(self, store: AttachedStore) -> dict[str, object]:
        shown: dict[str, object] = {
            "name": store.name,
            "kind": store.store.kind,
            "state": store.state.value,
            "since": store.state_since,
            "partitions": len(store.residents),
            "bytes": sum(resident.size_bytes for resident in store.residents),
            "draining": store.name in self._broker.drains,
        }
        if store.reason:
            shown["reason"] = store.reason
        if store.state is StoreState.AWAY:
            shown["loss"] = asdict(loss_of(store))
        return shown | self._broker.drains.progress(store.name)


def _object(body: object) -> Mapping[str, object]:
    if not isinstance(body, Mapping):
        raise ArgumentError("The body must be a JSON object.")
    return body
