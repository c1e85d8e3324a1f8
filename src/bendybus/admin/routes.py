"""The management API over HTTP: which request means what.

    GET             /$namespaceinfo             the namespace
    GET             /$Resources/queues          queues, in pages
    PUT GET DELETE  /{queue}                    one queue; PUT with `If-Match: *` updates it
    POST            /$reset                     every message out of every entity: ours, for tests

Every path that nobody else serves ends here, so these routes come last. Whatever
is wrong with a request is answered with an Error document; access is checked
before anything else is looked at, so strangers learn nothing about what exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from bendybus.admin import atom
from bendybus.admin.access import authorise
from bendybus.admin.queues import FIRST_WITH_PARTITIONS, queue_elements, read_queue
from bendybus.admin.rest_bodies import RequestBody
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.domain.entities import QueueDescription, Tier, normalise_path
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    EntityNotFound,
    InvalidOperation,
    MethodNotAllowed,
    NotSupported,
    PreconditionFailed,
)
from bendybus.namespaces import Namespace

__all__ = ["management_routes"]

Unsupported: TypeAlias = Callable[[QueueDescription], list[str]]
"""What a queue asks for and the broker cannot do yet, by its names in the API."""

# "default 100 per page; cap 100"
PAGE_MAX: Final = 100

# Where the token for the entity that messages are forwarded to may be; else the request's own must do.
SUPPLEMENTARY: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_to": "ServiceBusDlqSupplementaryAuthorization",
}

METHODS: Final = ("GET", "HEAD", "PUT", "DELETE")

RESET: Final = "$reset"

_API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?(-preview)?")
# A topic's children; topics themselves are told from queues only by what is put.
_OF_A_TOPIC: Final = re.compile(r"(?P<topic>.+?)/subscriptions(/.*)?", re.IGNORECASE)
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,9}")


def management_routes(namespace: Namespace, unsupported: Unsupported) -> list[BaseRoute]:
    """To be put after all other routes of the namespace."""
    api = _ManagementApi(namespace, unsupported)
    # An object and not a function: every verb comes here, so that every refusal has the same shape.
    return [Route("/{path:path}", api)]


class _ManagementApi:
    def __init__(self, namespace: Namespace, unsupported: Unsupported) -> None:
        self._name = namespace.name
        self._broker = namespace.broker
        self._keys = namespace.keys
        self._unsupported = unsupported

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        body = RequestBody(receive, request.headers.get("content-length"))
        response = await self._serve(request, body)
        if not await body.discard():
            response.headers["connection"] = "close"
        await response(scope, receive, send)

    async def _serve(self, request: Request, body: RequestBody) -> Response:
        path = request.path_params["path"].strip("/")
        try:
            right = None if request.method in ("GET", "HEAD") else Right.MANAGE
            rights = authorise(request.headers, self._keys, path, right, now())
            request.state.manages = rights.allows(Right.MANAGE)
            return await self._answer(request, path, body)
        except BrokerError as refusal:
            return atom.error_response(refusal, path, now())

    async def _answer(self, request: Request, path: str, body: RequestBody) -> Response:
        if request.method == "POST" and path == RESET:
            await self._broker.empty()
            return Response(status_code=200)
        if request.method not in METHODS:
            raise MethodNotAllowed(f"{request.method[:60]} is not a request that '{path[:200]}' answers.")
        version = _api_version(request)
        method, well_known = request.method, path.lower()
        if well_known in ("$namespaceinfo", "$resources/queues", "$resources/topics"):
            if method not in ("GET", "HEAD"):
                raise InvalidOperation(f"'{path}' can be read and not changed.")
            if well_known == "$namespaceinfo":
                return self._namespace(request)
            # There are no topics yet, which is what their list says.
            listed = self._visible(version) if well_known == "$resources/queues" else []
            return await self._list(request, version, listed)
        if child := _OF_A_TOPIC.fullmatch(path):
            if method == "PUT":
                raise NotSupported("Subscriptions and rules are not supported yet.")
            raise EntityNotFound(child["topic"])
        match method:
            case "PUT":
                return await self._put(request, path, version, body)
            case "DELETE":
                await self._broker.delete_queue(self._find(path, version).path)
                return Response(status_code=200)
            case _:
                return await self._entry_response(request, self._find(path, version), version)

    # -- reading ------------------------------------------------------------------

    def _visible(self, version: str) -> list[Queue]:
        """The queues that this version of the API knows how to show, by name (P-10)."""
        queues = (queue for queue in self._broker.queues() if _shows(version, queue))
        return sorted(queues, key=lambda queue: normalise_path(queue.path))

    def _find(self, path: str, version: str) -> Queue:
        queue = self._broker.find(path)
        if not _shows(version, queue):
            raise EntityNotFound(path)
        return queue

    async def _entry_response(
        self, request: Request, queue: Queue, version: str, status: int = 200
    ) -> Response:
        body = atom.document(await self._entry(request, queue, version))
        return Response(body, status, media_type=atom.ENTRY_TYPE)

    async def _entry(self, request: Request, queue: Queue, version: str) -> str:
        # Just started or just created: a moment later the counts are known.
        await queue.loaded()
        return atom.entry(
            _url(request, queue.path, {"api-version": version}),
            queue.path,
            "QueueDescription",
            queue_elements(queue, self._broker.tier, version, with_rules=request.state.manages),
            queue.created_at,
            queue.updated_at,
            self._name,
        )

    async def _list(self, request: Request, version: str, queues: list[Queue]) -> Response:
        skip, top = _number(request, "$skip", 0), min(_number(request, "$top", PAGE_MAX), PAGE_MAX)
        page = queues[skip : skip + top]
        path = request.path_params["path"]
        here = _url(request, path, {"$skip": skip, "$top": top, "api-version": version})
        following = None
        if top and skip + top < len(queues):
            following = _url(request, path, {"$skip": skip + top, "$top": top, "api-version": version})
        entries = [await self._entry(request, queue, version) for queue in page]
        body = atom.document(atom.feed(here, path.rpartition("/")[2], now(), entries, following))
        return Response(body, media_type=atom.FEED_TYPE)

    def _namespace(self, request: Request) -> Response:
        tier, created_at = self._broker.tier, atom.format_time(self._broker.created_at)
        shown = [("Alias", ""), ("CreatedTime", created_at), ("MessagingSKU", tier.capitalize())]
        if tier is Tier.PREMIUM:
            # The JavaScript client needs it there. We have no units; one is the least there can be.
            shown.append(("MessagingUnits", "1"))
        shown += [
            ("ModifiedTime", created_at),
            ("Name", self._name),
            ("NamespaceType", "Messaging"),
        ]
        founded = self._broker.created_at
        body = atom.entry(
            _url(request, "$namespaceinfo", {}),
            self._name,
            "NamespaceInfo",
            "".join(atom.element(*one) for one in shown),
            founded,
            founded,
            self._name,
        )
        return Response(atom.document(body), media_type=atom.ENTRY_TYPE)

    # -- changing -----------------------------------------------------------------

    async def _put(self, request: Request, path: str, version: str, body: RequestBody) -> Response:
        described = atom.parse_entry(await body.read_document(atom.BODY_BYTES_MAX))
        if described.kind == "TopicDescription":
            raise NotSupported("Topics are not supported yet.")
        if described.kind != "QueueDescription":
            raise ArgumentError(f"The entry describes a {described.kind[:60]}; expected a QueueDescription.")
        condition = request.headers.get("if-match")
        if condition is None:
            description = read_queue(path, described.elements, self._broker.tier)
            self._refuse_unsupported(description)
            self._refuse_old_version(description, version)
            self._authorise_forwarding(request, description)
            queue = await self._broker.create_queue(description)
            return await self._entry_response(request, queue, version, 201)
        queue = self._find(path, version)
        if condition.strip() != "*":
            raise PreconditionFailed(
                f"If-Match is '{condition[:60]}'; entities have no tags, so only * matches."
            )
        description = read_queue(path, described.elements, self._broker.tier, queue.description)
        # Before what is unsupported: changing it is not allowed, supported or not (P-07).
        queue.description.refuse_immutable_changes(description)
        self._refuse_unsupported(description)
        self._authorise_forwarding(request, description, queue.description)
        await self._broker.update_queue(description)
        return await self._entry_response(request, queue, version)

    def _authorise_forwarding(
        self, request: Request, asked: QueueDescription, present: QueueDescription | None = None
    ) -> None:
        """Who sends messages on to another entity must be one who may send there."""
        for field, header in SUPPLEMENTARY.items():
            target = getattr(asked, field)
            if target is None or (present is not None and getattr(present, field) == target):
                continue
            given = request.headers.get(header) or request.headers.get("authorization", "")
            authorise({"authorization": given}, self._keys, target, Right.SEND, now())

    def _refuse_unsupported(self, description: QueueDescription) -> None:
        if features := self._unsupported(description):
            raise NotSupported(f"Queue '{description.path}': {', '.join(features)}: not supported yet.")

    def _refuse_old_version(self, description: QueueDescription, version: str) -> None:
        """Who could not see the queue afterwards must not create it (P-10)."""
        partitions = self._broker.tier.partition_count(
            enable_partitioning=description.enable_partitioning,
            premium_partitions=self._broker.premium_partitions,
        )
        if partitions > 1 and version < FIRST_WITH_PARTITIONS:
            raise ArgumentError(
                f"Queue '{description.path}' would be partitioned; that needs "
                f"api-version={FIRST_WITH_PARTITIONS} or later, and this request has "
                f"{version or 'none'}."
            )


def _shows(version: str, queue: Queue) -> bool:
    return len(queue.hosts) == 1 or version >= FIRST_WITH_PARTITIONS


def _api_version(request: Request) -> str:
    """Versions compare as texts: none at all is older than any, and one to come is newer."""
    version = request.query_params.get("api-version", "")
    if version and not _API_VERSION.fullmatch(version):
        raise ArgumentError(f"api-version is '{version[:60]}'; it must be a month such as 2021-05.")
    return version


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ArgumentError(f"{name} is '{text[:60]}'; it must be a whole number.")
    return int(text)


def _url(request: Request, path: str, query: dict[str, object]) -> str:
    """As the client sees this server: under the name it called, whatever that is."""
    host = request.headers.get("host", "localhost")
    shown = {name: value for name, value in query.items() if value != ""}
    return f"{request.scope['scheme']}://{host}/{quote(path)}" + (f"?{urlencode(shown)}" if shown else "")
