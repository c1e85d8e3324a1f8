"""Messaging stores over HTTP: list, attach, drain, retire and forget them.

    GET     /$stores           all stores: kind, state, what they keep, how far one that drains has come
    POST    /$stores           {"url": "sqlite:///...", "name": "..."}    attach; the name may be left out
    GET     /$stores/{name}    one store, and which partitions of which entities it keeps: ?skip=0&top=50
    PUT     /$stores/{name}    {"draining": true}    empty it; false: use it again
    DELETE  /$stores/{name}    retire; only when it keeps nothing
    DELETE  /$stores/{name}?forget=true    give it up with everything in it; only while it is away

Manage on the whole namespace is needed. Only stores that the operator allowed at the start can be attached
(server/allowed_stores.py), and never by the key of one of several namespaces, which share the machine.
Bodies and answers are JSON. What is done: server/store_keeper.py, broker/draining.py. A server with several
brokers shows the stores of all of them, each with its broker, and refuses every change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus import audit
from bendybus.admin.other_brokers import OtherBrokers
from bendybus.admin.pages import page_of
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.forgetting import Loss, loss_of
from bendybus.broker.lifecycle import StoreState
from bendybus.broker.placing import placed_in
from bendybus.broker.stores import AttachedStore
from bendybus.domain.entities import normalise_path
from bendybus.errors import ArgumentError, BrokerError, InvalidOperation, StoreNotAllowed, StoreNotFound
from bendybus.http_bodies import json_body
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["StoreKeeper", "store_routes"]

# A question to the other brokers.
STORES: Final = "stores"


class StoreKeeper(Protocol):
    """Attaches, retires and forgets the stores of a namespace: server/store_keeper.py."""

    async def attach(self, url: str, name: str | None = None) -> str: ...

    async def retire(self, name: str) -> None: ...

    async def forget(self, name: str) -> Loss: ...


def store_routes(
    namespace: Namespace,
    keeper: StoreKeeper | None,
    namespaces: Namespaces,
    others: OtherBrokers | None = None,
) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity.

    `others`: None for a server with one broker.
    """
    api = _StoreApi(namespace, keeper, namespaces, others)
    return [
        Route("/$stores", api.all_stores, methods=["GET", "POST"]),
        Route("/$stores/{name}", api.one_store, methods=["GET", "PUT", "DELETE"]),
    ]


class _StoreApi:
    def __init__(
        self,
        namespace: Namespace,
        keeper: StoreKeeper | None,
        namespaces: Namespaces,
        others: OtherBrokers | None,
    ) -> None:
        self._namespaces = namespaces
        self._others = others
        self._broker = namespace.broker
        self._keys = namespace.keys
        self._keeper = keeper
        if others is not None:
            others.answer(STORES, type(None), self._own_stores)

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
        stores = await self._own_stores(None) if self._others is None else await self._everywhere()
        return {"stores": stores}, HTTPStatus.OK

    async def _show(self, request: Request) -> tuple[object, HTTPStatus]:
        name = request.path_params["name"]
        skip, top = page_of(request.query_params)
        if self._others is None:
            store = self._broker.stores[name]
            residents = [(resident.path, int(resident.number)) for resident in store.residents]
            shown = self._shown(store)
        else:
            shown = {each["name"]: each for each in await self._everywhere()}.get(name, {})
            if not shown:
                known = ", ".join(self._others.owners)
                raise StoreNotFound(f"There is no messaging store '{name}'; there are {known}.")
            records = self._broker.entities.records()
            residents = [(path, int(number)) for path, number in placed_in(records).get(name, ())]
        placed: dict[str, list[int]] = {}
        for path, number in residents:
            placed.setdefault(path, []).append(number)
        entities = sorted(placed, key=normalise_path)
        placement = [
            {"entity": entity, "partitions": sorted(placed[entity])} for entity in entities[skip : skip + top]
        ]
        return shown | {"placement": placement, "entityCount": len(placed)}, HTTPStatus.OK

    async def _own_stores(self, _: None) -> list[dict[str, Any]]:
        return [self._shown(store) for store in self._broker.stores]

    async def _everywhere(self) -> list[dict[str, Any]]:
        """The stores of all brokers, by name."""
        assert self._others is not None
        answers = await self._others.ask_all(STORES, None, list[dict[str, Any]])
        answers[self._others.name] = await self._own_stores(None)
        found = {
            each["name"]: each | {"broker": broker} for broker, stores in answers.items() for each in stores
        }
        placed = placed_in(self._broker.entities.records())
        return [
            found.get(name) or _unknown_store(name, owner, len(placed.get(name, ())))
            for name, owner in self._others.owners.items()
        ]

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
        self._broker.entities.elsewhere.refuse("draining a messaging store")
        name = request.path_params["name"]
        draining = _object(await json_body(request)).get("draining")
        if not isinstance(draining, bool):
            raise ArgumentError("'draining' must be true or false.")
        await (self._broker.drains.begin(name) if draining else self._broker.drains.end(name))
        return self._shown(self._broker.stores[name]), HTTPStatus.ACCEPTED

    async def _retire(self, request: Request) -> tuple[object, HTTPStatus]:
        name, elsewhere = request.path_params["name"], self._broker.entities.elsewhere
        match request.query_params.get("forget"):
            case None:
                elsewhere.refuse("retiring a messaging store")
                await self._the_keeper().retire(name)
                return {"name": name, "retired": True}, HTTPStatus.OK
            case "true":
                elsewhere.refuse("forgetting a messaging store")
                return {"name": name, **asdict(await self._the_keeper().forget(name))}, HTTPStatus.OK
        raise ArgumentError("'forget' must be true, or left out.")

    def _the_keeper(self) -> StoreKeeper:
        if self._keeper is None:
            raise InvalidOperation("This namespace keeps the stores that it was made with.")
        return self._keeper

    def _shown(self, store: AttachedStore) -> dict[str, Any]:
        shown: dict[str, Any] = {
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


def _unknown_store(name: str, owner: str, partitions: int) -> dict[str, Any]:
    """A store whose owner does not answer, or that has none."""
    reason = f"The broker '{owner}', which owns it, does not answer." if owner else "No broker owns it now."
    return {
        "name": name,
        "kind": "",
        "state": "unknown",
        "since": None,
        "partitions": partitions,
        "bytes": 0,
        "draining": False,
        "reason": reason,
        "broker": owner,
    }


def _object(body: object) -> Mapping[str, object]:
    if not isinstance(body, Mapping):
        raise ArgumentError("The body must be a JSON object.")
    return body
