"""What the portal shows of a namespace and cannot read from Service Bus's own API: our routes, in JSON.

    GET  /[{entity}/]$rights        what the request's key may do, in the namespace or on an entity
    GET  /$overview                 queues and topics with counts, sizes and availability: a page of them
                                    ?search=TEXT&sort=FIELD&descending=true&skip=0&top=50
    GET  /{entity}/$partitions      each partition's store, state, counts and oldest message; for a topic also
                                    a page of its subscriptions with their counts: ?skip=0&top=50

`/$rights` needs a key of the namespace, and the others Listen, as metrics do: they show how many messages
wait, and no key or message. Rates are differences of `arrived`, which counts the numbers that a partition
has given. All partitions of all entities are visited for an overview, in turns (broker/turns.py). On a server
with several brokers, the one that has the catalog answers and asks the others for their parts.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from bendybus.admin.entity_parts import ShownPartition, own_part, own_partitions
from bendybus.admin.other_brokers import OtherBrokers
from bendybus.admin.pages import page_of
from bendybus.admin.totals import Totals
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription, Topic
from bendybus.broker.turns import Turns
from bendybus.domain.entities import effective_max_size_mb, normalise_path
from bendybus.errors import ArgumentError, BrokerError, EntityNotFound
from bendybus.namespaces import Namespace

__all__ = ["overview_routes"]

# A topic's totals visit all partitions of all its subscriptions. Of a topic with more they are left out.
TOTALLED_MAX: Final = 200

SORTS: Final = ("name", "active", "deadLetters", "scheduled", "sizeBytes", "arrived")

# Questions to the other brokers.
PARTS: Final = "entity-parts"
PARTITIONS: Final = "partitions"
# Entities in one question.
ASKED_TOGETHER: Final = 500

_OF_ENTITY: Final = re.compile(r"/(?P<entity>[^$]+)/\$(?P<what>partitions|rights)", re.IGNORECASE)


def overview_routes(namespace: Namespace, others: OtherBrokers | None = None) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity.

    `others`: None for a server with one broker.
    """
    api = _OverviewApi(namespace, others)
    return [
        Route("/$rights", api.rights, methods=["GET"]),
        Route("/$overview", api.overview, methods=["GET"]),
        _EntityRoute(api),
    ]


class _EntityRoute(BaseRoute):
    """An entity's path may have slashes in it."""

    def __init__(self, api: _OverviewApi) -> None:
        self._api = api

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found = _OF_ENTITY.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "GET":
            return Match.NONE, {}
        return Match.FULL, {"path_params": {"entity": found["entity"], "what": found["what"].lower()}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = self._api.rights if scope["path_params"]["what"] == "rights" else self._api.partitions
        response = await asked(request)
        await response(scope, receive, send)


class _OverviewApi:
    def __init__(self, namespace: Namespace, others: OtherBrokers | None) -> None:
        self._namespace = namespace
        self._broker = namespace.broker
        self._others = others
        if others is not None:
            others.answer(PARTS, list[str], self._own_parts)
            others.answer(PARTITIONS, str, self._own_partitions)

    async def rights(self, request: Request) -> Response:
        path = request.url.path.strip("/") if "entity" in request.path_params else ""
        return await self._answer(request, path, None, self._rights)

    async def overview(self, request: Request) -> Response:
        return await self._answer(request, "", Right.LISTEN, self._overview)

    async def partitions(self, request: Request) -> Response:
        # A client may have signed the entity or the URL that it calls.
        path = request.url.path.strip("/")
        return await self._answer(request, path, Right.LISTEN, self._partitions)

    async def _answer(
        self,
        request: Request,
        path: str,
        right: Right | None,
        operation: Callable[[Request, Right], Awaitable[object]],
    ) -> Response:
        try:
            rights = authorise(request.headers, self._namespace.keys, path, right, now())
            return JSONResponse(await operation(request, rights))
        except BrokerError as refusal:
            return JSONResponse({"error": refusal.description}, refusal.status)

    async def _rights(self, request: Request, rights: Right) -> object:
        return {
            "namespace": self._namespace.name,
            "tier": str(self._broker.tier),
            "rights": [each.label for each in Right if rights.allows(each)],
            "development": self._namespace.for_development,
            "severalBrokers": self._others is not None,
        }

    # -- entities -----------------------------------------------------------------

    async def _overview(self, request: Request, rights: Right) -> object:
        asked = request.query_params
        search = normalise_path(asked.get("search", ""))
        sort = asked.get("sort", "name")
        if sort not in SORTS:
            raise ArgumentError(f"'sort' is '{sort[:60]}'; it must be one of {', '.join(SORTS)}.")
        skip, top = page_of(asked)
        found = [
            entity
            for entity in (*self._broker.queues, *self._broker.topics)
            if search in normalise_path(entity.path)
        ]
        found.sort(key=lambda entity: normalise_path(entity.path))
        # What is not shown need not be counted, unless it decides the order.
        if sort == "name":
            if asked.get("descending") == "true":
                found.reverse()
            chosen = found[skip : skip + top]
        else:
            chosen = found
        shown = [
            _shown_entity(entity, part)
            for entity, part in zip(chosen, await self._whole(chosen), strict=True)
        ]
        if sort != "name":
            shown.sort(key=lambda each: int(str(each[sort])), reverse=asked.get("descending") == "true")
            shown = shown[skip : skip + top]
        return {
            "namespace": self._namespace.name,
            "queues": len(list(self._broker.queues)),
            "topics": len(list(self._broker.topics)),
            "matching": len(found),
            "entities": shown,
        }

    # -- partitions ---------------------------------------------------------------

    async def _partitions(self, request: Request, rights: Right) -> object:
        path = request.path_params["entity"]
        entity = self._broker.entities.look_up(path)
        if entity is None:
            raise EntityNotFound(path)
        partitions = own_partitions(entity) if self._others is None else await self._everywhere(entity)
        shown = {"name": entity.path, "kind": _kind(entity), "at": entity.now(), "partitions": partitions}
        if not isinstance(entity, Topic):
            return shown
        skip, top = page_of(request.query_params)
        found = entity.subscriptions
        page = found[skip : skip + top]
        subscriptions = [
            _shown_subscription(each, part) for each, part in zip(page, await self._whole(page), strict=True)
        ]
        shown |= {"subscriptions": subscriptions, "subscriptionCount": len(found)}
        if len(found) <= TOTALLED_MAX:
            (part,) = await self._whole([entity])
            shown |= {
                "active": part.active,
                "deadLetters": part.dead_letters,
                "sizeBytes": part.size_bytes,
            }
        return shown

    # -- several brokers ----------------------------------------------------------

    async def _whole(self, entities: Sequence[Queue | Topic]) -> list[Totals]:
        """Counts and sizes over all brokers that answer."""
        turns = Turns()
        parts: list[Totals] = []
        for entity in entities:
            parts.append(own_part(entity))
            await turns.next()
        for start in range(0, len(entities) if self._others is not None else 0, ASKED_TOGETHER):
            asked = slice(start, start + ASKED_TOGETHER)
            paths = [entity.path for entity in entities[asked]]
            assert self._others is not None
            for answer in (await self._others.ask_all(PARTS, paths, list[Totals])).values():
                for part, more in zip(parts[asked], answer, strict=True):
                    part.add(more)
        return parts

    async def _own_parts(self, paths: list[str]) -> list[Totals]:
        turns = Turns()
        parts: list[Totals] = []
        for path in paths:
            entity = self._broker.entities.look_up(path)
            # One that was created or deleted just now is not known to all.
            parts.append(Totals() if entity is None else own_part(entity))
            await turns.next()
        return parts

    async def _everywhere(self, entity: Queue | Topic) -> list[ShownPartition]:
        """All partitions, whichever broker owns them, each with its broker."""
        assert self._others is not None
        answers = await self._others.ask_all(PARTITIONS, entity.path, list[ShownPartition])
        answers[self._others.name] = own_partitions(entity)
        found = {
            each["partition"]: each | {"broker": broker}
            for broker, partitions in answers.items()
            for each in partitions
        }
        owners = self._others.owners
        return [
            found.get(host.number) or _unknown_partition(host, owners.get(host.store.name, ""), answers)
            for host in entity.hosts
        ]

    async def _own_partitions(self, path: str) -> list[ShownPartition]:
        entity = self._broker.entities.look_up(path)
        return [] if entity is None else own_partitions(entity)


def _kind(entity: object) -> str:
    if isinstance(entity, Topic):
        return "topic"
    return "subscription" if isinstance(entity, Subscription) else "queue"


def _unknown_partition(host: PartitionPort, broker: str, answered: Container[str]) -> ShownPartition:
    """Its owner does not answer, or does not have it yet, or not any more."""
    return {
        "partition": int(host.number),
        "store": host.store.name,
        "storeState": "unknown",
        "state": "moving" if broker in answered else "unreachable",
        "available": False,
        "broker": broker,
    }


def _shown_entity(entity: Queue | Topic, part: Totals) -> dict[str, object]:
    description = entity.description
    shown: dict[str, object] = {
        "name": entity.path,
        "kind": _kind(entity),
        "status": str(description.status),
        "partitions": len(entity.hosts),
        "available": sum(host.availability is Availability.AVAILABLE for host in entity.hosts),
        "limited": part.limited,
        "active": part.active,
        "scheduled": part.scheduled,
        "deadLetters": part.dead_letters,
        # Kept after their completion, and counted nowhere else.
        "completed": part.completed,
        "completedBytes": part.completed_bytes,
        "sizeBytes": part.size_bytes,
        "maxSizeBytes": effective_max_size_mb(description, len(entity.hosts)) * 1024 * 1024,
        "arrived": part.arrived,
    }
    if isinstance(entity, Topic):
        shown["subscriptions"] = len(entity.subscriptions)
    else:
        shown["sessions"] = entity.description.requires_session
    return shown


def _shown_subscription(subscription: Subscription, part: Totals) -> dict[str, object]:
    description = subscription.description
    return {
        "name": subscription.name,
        "status": str(description.status),
        "limited": part.limited,
        "active": part.active,
        "deadLetters": part.dead_letters,
        "completed": part.completed,
        "completedBytes": part.completed_bytes,
        "sessions": description.requires_session,
        "maxDeliveryCount": description.max_delivery_count,
        "forwardTo": description.forward_to,
    }
