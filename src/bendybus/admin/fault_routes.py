"""Fault controls over HTTP: what is wrong with which store or entity, and the switches for it (B-09).

    GET     /$faults/stores             all stores of the namespace: state, and the fault that is switched on
    PUT     /$faults/stores/{name}      {"fault": "pause" | "slow" | "fail" | "heal", ...}
    DELETE  /$faults/stores/{name}      heal
    GET     /$faults/entities           the entities with which something is wrong
    PUT     /$faults/entities/{path}    {"busyShare": 0.2, "latencyMs": 100, "throttledPartitions": [3]}
    DELETE  /$faults/entities/{path}    heal
    POST    /$faults/entities/{path}    {"action": "detach" | "lose-locks"}

Manage on the whole namespace is needed, and a server that was started with
`--development`. Bodies and answers are JSON. What the switches do: store/faults.py,
broker/entity_faults.py.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bendybus import audit
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.entity_faults import EntityFaults, detach_links, lose_locks, switch
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.errors import ArgumentError, BrokerError, InvalidOperation
from bendybus.http_bodies import json_body
from bendybus.namespaces import Namespace
from bendybus.store.faults import Fault, FaultKind, StoreFaults

__all__ = ["fault_routes"]


def fault_routes(namespace: Namespace) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity."""
    api = _FaultApi(namespace)
    return [
        Route("/$faults/stores", api.show, methods=["GET"]),
        Route("/$faults/stores/{name}", api.switch, methods=["PUT", "DELETE"]),
        Route("/$faults/entities", api.show_entities, methods=["GET"]),
        Route("/$faults/entities/{path:path}", api.switch_entity, methods=["PUT", "DELETE", "POST"]),
    ]


class _FaultApi:
    def __init__(self, namespace: Namespace) -> None:
        self._broker = namespace.broker
        self._keys = namespace.keys
        self._faults = namespace.faults

    async def show(self, request: Request) -> Response:
        return await self._answer(request, self._show)

    async def switch(self, request: Request) -> Response:
        return await self._answer(request, self._switch)

    async def show_entities(self, request: Request) -> Response:
        return await self._answer(request, self._show_entities)

    async def switch_entity(self, request: Request) -> Response:
        act = self._act if request.method == "POST" else self._switch_entity
        return await self._answer(request, act)

    async def _answer(
        self, request: Request, operation: Callable[[Request, StoreFaults], Awaitable[object]]
    ) -> Response:
        try:
            authorise(request.headers, self._keys, "", Right.MANAGE, now())
            if self._faults is None:
                raise InvalidOperation(
                    "Faults can be switched on only on a server that was started with --development."
                )
            return JSONResponse(await operation(request, self._faults))
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            return JSONResponse({"error": refusal.description}, refusal.status)

    async def _show(self, request: Request, faults: StoreFaults) -> object:
        current = faults.current()
        return {
            "stores": [
                {
                    "name": store.name,
                    "state": store.state.value,
                    "reason": store.reason,
                    **_shown(current[store.name]),
                }
                for store in self._broker.stores
            ]
        }

    async def _switch(self, request: Request, faults: StoreFaults) -> object:
        name = request.path_params["name"]
        fault = Fault() if request.method == "DELETE" else _fault(await json_body(request))
        faults.switch(name, fault)
        audit.record("fault-switched", store=name, fault=fault.kind.value)
        return {"name": name, **_shown(fault)}

    async def _show_entities(self, request: Request, faults: StoreFaults) -> object:
        faulty = [entity for entity in self._broker.entities if entity.faults is not None]
        return {"entities": [_shown_entity(entity) for entity in faulty]}

    async def _switch_entity(self, request: Request, faults: StoreFaults) -> object:
        entity = self._broker.find_target(request.path_params["path"])
        wanted = EntityFaults() if request.method == "DELETE" else _entity_faults(await json_body(request))
        switch(entity, wanted)
        shown = _shown_entity(entity)
        audit.record("entity-fault-switched", entity=entity.path, fault=json.dumps(shown))
        return shown

    async def _act(self, request: Request, faults: StoreFaults) -> object:
        entity = self._broker.find_target(request.path_params["path"])
        body = await json_body(request)
        action = body.get("action") if isinstance(body, Mapping) and set(body) == {"action"} else None
        if action == "detach":
            detach_links(self._broker.entities, entity)
        elif action == "lose-locks" and isinstance(entity, Queue):
            await lose_locks(entity)
        elif action == "lose-locks":
            raise InvalidOperation(f"'{entity.path}' is a topic: locks are those of its subscriptions.")
        else:
            raise ArgumentError('The body must be {"action": "detach"} or {"action": "lose-locks"}.')
        audit.record("entity-fault-switched", entity=entity.path, fault=action)
        return {"entity": entity.path, "action": action}


def _entity_faults(body: object) -> EntityFaults:
    known = {"busyShare": float, "latencyMs": float, "throttledPartitions": list}
    if not isinstance(body, Mapping) or not set(body) <= set(known):
        raise ArgumentError(f"The body must be a JSON object; known are {', '.join(known)}.")
    numbers = [body.get(name, 0) for name in ("busyShare", "latencyMs")]
    throttled = body.get("throttledPartitions", [])
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
        raise ArgumentError("'busyShare' and 'latencyMs' must be numbers.")
    if not isinstance(throttled, list) or any(type(each) is not int for each in throttled):
        raise ArgumentError("'throttledPartitions' must be a list of numbers of partitions.")
    return EntityFaults(numbers[0], numbers[1] / 1000, frozenset(throttled))


def _shown_entity(entity: SendTarget) -> dict[str, object]:
    faults = entity.faults or EntityFaults()
    return {
        "entity": entity.path,
        "busyShare": faults.busy_share,
        "latencyMs": round(faults.latency_s * 1000),
        "throttledPartitions": sorted(faults.throttled),
    }


def _fault(body: object) -> Fault:
    if not isinstance(body, Mapping):
        raise ArgumentError('The body must be a JSON object such as {"fault": "pause"}.')
    try:
        kind = FaultKind(body.get("fault", ""))
    except ValueError:
        known = ", ".join(FaultKind)
        raise ArgumentError(
            f"'fault' is {str(body.get('fault'))[:60]!r}; it must be one of {known}."
        ) from None
    delay_ms, reason = body.get("delayMs", 0), body.get("reason", "")
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, int | float):
        raise ArgumentError("'delayMs' must be a number of milliseconds.")
    if not isinstance(reason, str):
        raise ArgumentError("'reason' must be text.")
    return Fault(kind, delay_ms / 1000, reason[:200])


def _shown(fault: Fault) -> dict[str, object]:
    shown: dict[str, object] = {"fault": "none" if fault.kind is FaultKind.HEAL else fault.kind.value}
    if fault.kind is FaultKind.SLOW:
        shown["delayMs"] = round(fault.delay_s * 1000)
    if fault.reason:
        shown["reason"] = fault.reason
    return shown
