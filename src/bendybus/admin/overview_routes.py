"""What the portal shows of a namespace and cannot read from Service Bus's own API: our routes, in JSON.

    GET  /[{entity}/]$rights        what the request's key may do, in the namespace or on an entity
    GET  /$overview                 queues and topics with counts, sizes and availability: a page of them
                                    ?search=TEXT&sort=FIELD&descending=true&skip=0&top=50
    GET  /{entity}/$partitions      each partition's store, state, counts and oldest message; for a topic also
                                    a page of its subscriptions with their counts: ?skip=0&top=50

`/$rights` needs a key of the namespace, and the others Listen, as metrics do: they show how many messages
wait, and no key or message. Rates are differences of `arrived`, which counts the numbers that a partition
has given. All partitions of all entities are visited for an overview, in turns (broker/turns.py).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from bendybus.admin.pages import page_of
from bendybus.admin.totals import Totals
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Subscription, Topic
from bendybus.broker.topic_host import TopicHost
from bendybus.broker.turns import Turns
from bendybus.domain.entities import effective_max_size_mb, normalise_path
from bendybus.domain.messages import SubQueue
from bendybus.errors import ArgumentError, BrokerError, EntityNotFound, NotSupported
from bendybus.names import PARTITION_SHIFT, SequenceNumber
from bendybus.namespaces import Namespace

__all__ = ["overview_routes"]

# A topic's totals visit all partitions of all its subscriptions. Of a topic with more they are left out.
TOTALLED_MAX: Final = 200

SORTS: Final = ("name", "active", "deadLetters", "scheduled", "sizeBytes", "arrived")

_COUNTER: Final = (1 << PARTITION_SHIFT) - 1

_OF_ENTITY: Final = re.compile(r"/(?P<entity>[^$]+)/\$(?P<what>partitions|rights)", re.IGNORECASE)


def overview_routes(namespace: Namespace) -> list[BaseRoute]:
    """Must come before the management API, for which every path may be an entity."""
    api = _OverviewApi(namespace)
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
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._broker = namespace.broker

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
        turns = Turns()
        # What is not shown need not be counted, unless it decides the order.
        if sort == "name":
            if asked.get("descending") == "true":
                found.reverse()
            chosen = found[skip : skip + top]
        else:
            chosen = found
        shown: list[dict[str, object]] = []
        for entity in chosen:
            shown.append(_shown_entity(entity))
            await turns.next()
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
        if isinstance(entity, Topic):
            _refuse_several_brokers(entity)
            partitions = [_shown_topic_partition(host) for host in entity.own.values()]
        else:
            _refuse_several_brokers(entity)
            partitions = [_shown_partition(host) for host in entity.own.values()]
        shown = {"name": entity.path, "kind": _kind(entity), "at": entity.now(), "partitions": partitions}
        if not isinstance(entity, Topic):
            return shown
        skip, top = page_of(request.query_params)
        found = entity.subscriptions
        turns = Turns()
        subscriptions: list[dict[str, object]] = []
        for subscription in found[skip : skip + top]:
            subscriptions.append(_shown_subscription(subscription))
            await turns.next()
        shown |= {"subscriptions": subscriptions, "subscriptionCount": len(found)}
        if len(found) <= TOTALLED_MAX:
            totals = Totals.of_topic(entity)
            for subscription in found:
                of_subscription = Totals.of(subscription)
                totals.active += of_subscription.active
                totals.dead_letters += of_subscription.dead_letters
                await turns.next()
            shown |= {
                "active": totals.active,
                "deadLetters": totals.dead_letters,
                "sizeBytes": totals.size_bytes,
            }
        return shown


def _kind(entity: object) -> str:
    if isinstance(entity, Topic):
        return "topic"
    return "subscription" if isinstance(entity, Subscription) else "queue"


def _refuse_several_brokers(entity: Queue | Topic) -> None:
    if len(entity.own) < len(entity.hosts):
        raise NotSupported(
            "This server has several brokers, and a broker cannot show the partitions of others yet."
        )


def _shown_entity(entity: Queue | Topic) -> dict[str, object]:
    _refuse_several_brokers(entity)
    description = entity.description
    totals = Totals.of_topic(entity) if isinstance(entity, Topic) else Totals.of(entity)
    if isinstance(entity, Topic):
        for subscription in entity.subscriptions:
            of_subscription = Totals.of(subscription)
            totals.active += of_subscription.active
            totals.dead_letters += of_subscription.dead_letters
            totals.limited = totals.limited or of_subscription.limited
    shown: dict[str, object] = {
        "name": entity.path,
        "kind": _kind(entity),
        "status": str(description.status),
        "partitions": len(entity.hosts),
        "available": sum(host.availability is Availability.AVAILABLE for host in entity.hosts),
        "limited": totals.limited,
        "active": totals.active,
        "scheduled": totals.scheduled,
        "deadLetters": totals.dead_letters,
        # Kept after their completion, and counted nowhere else.
        "completed": totals.completed,
        "completedBytes": totals.completed_bytes,
        "sizeBytes": totals.size_bytes,
        "maxSizeBytes": effective_max_size_mb(description, len(entity.hosts)) * 1024 * 1024,
        "arrived": sum(
            _arrived(host.partition.next_sequence_number)
            for host in entity.own.values()
            if host.partition is not None
        ),
    }
    if isinstance(entity, Topic):
        shown["subscriptions"] = len(entity.subscriptions)
    else:
        shown["sessions"] = entity.description.requires_session
    return shown


def _shown_subscription(subscription: Subscription) -> dict[str, object]:
    totals, description = Totals.of(subscription), subscription.description
    return {
        "name": subscription.name,
        "status": str(description.status),
        "limited": totals.limited,
        "active": totals.active,
        "deadLetters": totals.dead_letters,
        "completed": totals.completed,
        "completedBytes": totals.completed_bytes,
        "sessions": description.requires_session,
        "maxDeliveryCount": description.max_delivery_count,
        "forwardTo": description.forward_to,
    }


def _shown_topic_partition(host: TopicHost) -> dict[str, object]:
    partition = host.partition
    if partition is None:
        return _located(host)
    return _located(host) | {
        "scheduled": partition.scheduled_count,
        "sizeBytes": partition.size_bytes,
        "arrived": _arrived(partition.next_sequence_number),
    }


def _shown_partition(host: PartitionHost) -> dict[str, object]:
    partition = host.partition
    shown = _located(host)
    if partition is None:
        return shown
    counts, letters = partition.counts(SubQueue.MAIN), partition.counts(SubQueue.DEAD_LETTER)
    oldest = partition.waiting(SequenceNumber(0), 1, 0)
    return shown | {
        "active": counts.active,
        "deferred": counts.deferred,
        "scheduled": counts.scheduled,
        "locked": counts.locked,
        "deadLetters": letters.active + letters.deferred,
        "completed": partition.counts(SubQueue.COMPLETED).active,
        "sizeBytes": partition.size_bytes,
        "arrived": _arrived(partition.next_sequence_number),
        # Of those that can be received; None if there is none.
        "oldestEnqueuedAt": oldest[0].enqueued_at if oldest else None,
    }


def _located(host: Host[Any]) -> dict[str, object]:
    return {
        "partition": int(host.number),
        "store": host.store.name,
        "storeState": host.store.state.value,
        "state": host.state.value,
        "available": host.availability is Availability.AVAILABLE,
    }


def _arrived(following: SequenceNumber) -> int:
    """How many numbers the partition has given: to messages that arrived and to scheduled ones twice."""
    return max(0, (following & _COUNTER) - 1)
