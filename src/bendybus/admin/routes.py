"""The management API over HTTP: which request means what.

    GET             /$namespaceinfo                     the namespace
    GET             /$Resources/queues, .../topics      queues or topics, in pages
    PUT GET DELETE  /{queue or topic}                   one of them; PUT with `If-Match` updates it
                    /{topic}/Subscriptions...           topic_routes.py
    POST            /$reset                             every message out of every entity: ours, for tests,
                                                        on a server that was started with `--development`

These routes come last, because they take every path that no other route serves. An invalid
request is answered with an Error document. Access is checked first, so a client without
rights learns nothing about what exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from bendybus import audit
from bendybus.admin import documents
from bendybus.admin.answers import (
    READING,
    Answers,
    api_version,
    called_host,
    entity_tag,
    invalid_verb,
    is_update,
    read_body,
    refuse_old_version,
    unchanged_since,
)
from bendybus.admin.fields import check_elements
from bendybus.admin.paths import Child
from bendybus.admin.queues import queue_elements, read_queue
from bendybus.admin.refusals import RefusedRequest, not_allowed, refuse
from bendybus.admin.topic_routes import TopicRequests
from bendybus.atom import QUEUE_DESCRIPTION, TOPIC_DESCRIPTION, element, format_time
from bendybus.auth.http import authorise
from bendybus.auth.rights import Right
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.domain.entities import EntityDescription, Tier, normalise_path, split_subqueue
from bendybus.domain.messages import SubQueue
from bendybus.domain.properties import FIRST_WITH_PARTITIONS, QUEUE
from bendybus.errors import (
    BrokerError,
    EntityNotFound,
    InvalidOperation,
    MethodNotAllowed,
)
from bendybus.http_bodies import RequestBody
from bendybus.namespaces import Namespace

__all__ = ["management_routes"]


# The header that may have a token for the forwarding destination; otherwise the request's own is used.
SUPPLEMENTARY: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_to": "ServiceBusDlqSupplementaryAuthorization",
}

METHODS: Final = (*READING, "PUT", "DELETE")

RESET: Final = "$reset"


def management_routes(namespace: Namespace) -> list[BaseRoute]:
    """To be put after all other routes of the namespace."""
    api = _ManagementApi(namespace)
    # An object and not a function: every verb comes here, so that every refusal has the same shape.
    return [Route("/{path:path}", api)]


class _ManagementApi:
    def __init__(self, namespace: Namespace) -> None:
        self._name = namespace.name
        self._for_development = namespace.for_development
        self._broker = namespace.broker
        self._keys = namespace.keys
        self._topics = TopicRequests(self._broker, self._refuse_old_version, self._authorise_forwarding)

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
            rights = authorise(request.headers, self._keys, path, None, now())
        except BrokerError as refusal:
            return self._refused(refusal, request, path)
        if not rights.allows(Right.MANAGE):
            audit.record("operation-refused", reason="no-right", resource=path, right=Right.MANAGE.label)
            if self._is_read(request, path) and self._broker.entities.look_up(_first_entity(path)) is None:
                return Answers.nothing()
            return not_allowed(self._refused_request(request, path), now())
        tag = entity_tag(self._broker.entities.look_up(_first_entity(path)))
        try:
            request.state.body = body
            response = await self._answer(request, path)
        except BrokerError as refusal:
            response = self._refused(refusal, request, path)
        if tag:
            response.headers["etag"] = tag
        return response

    def _refused(self, refusal: BrokerError, request: Request, path: str) -> Response:
        audit.record_refused_change(request.method, path, refusal)
        refused = self._refused_request(request, path)
        if isinstance(refusal, EntityNotFound) and self._is_read(request, path) and not refused.topic_exists:
            return Answers.nothing()
        return refuse(refusal, refused, now())

    def _refused_request(self, request: Request, path: str) -> RefusedRequest:
        topic_exists = isinstance(self._broker.entities.look_up(_first_entity(path)), Topic)
        return RefusedRequest(request.method, called_host(request), self._name, path, topic_exists)

    @staticmethod
    def _is_read(request: Request, path: str) -> bool:
        """Whether a description is read. One that does not exist is answered with an empty feed."""
        return request.method in READING and not path.startswith("$")

    async def _answer(self, request: Request, path: str) -> Response:
        if request.method == "POST" and path == RESET:
            if not self._for_development:
                raise InvalidOperation(
                    "A namespace can be emptied only on a server that was started with --development."
                )
            await self._broker.empty()
            return Response(status_code=200)
        if request.method not in METHODS:
            raise MethodNotAllowed(f"{request.method[:60]} is not a request that '{path[:200]}' answers.")
        answers = Answers(request, api_version(request), self._name)
        method, well_known = request.method, path.lower()
        if well_known in ("$namespaceinfo", "$resources/queues", "$resources/topics"):
            if method not in READING:
                raise InvalidOperation(f"'{path}' can be read and not changed.")
            if well_known == "$namespaceinfo":
                return self._namespace(answers)
            everything = self._broker.queues if well_known == "$resources/queues" else self._broker.topics
            return await answers.page(
                self._visible(everything, answers.version), lambda each: self._entry(each, answers)
            )
        if child := Child.parse(path):
            return await self._topics.answer(request, child, answers)
        entity_path, subqueue = split_subqueue(path)
        if subqueue is not SubQueue.MAIN:
            self._find(entity_path, answers.version)
            raise invalid_verb(method, f"'{path[:200]}' is a part of an entity and has no description.")
        match method:
            case "PUT":
                return await self._put(request, path, answers)
            case "DELETE":
                entity = self._find(path, answers.version)
                force = answers.forced()
                if isinstance(entity, Topic):
                    await self._broker.topics.delete(entity.path, force=force)
                else:
                    await self._broker.queues.delete(entity.path, force=force)
                return Response(status_code=200)
            case _:
                return answers.one(await self._entry(self._find(path, answers.version), answers))

    # -- reading ------------------------------------------------------------------

    @staticmethod
    def _visible(entities: Iterable[Queue] | Iterable[Topic], version: str) -> list[Queue | Topic]:
        """Those that this version of the API knows how to show, by name (P-10)."""
        shown = [entity for entity in entities if _shows(version, entity)]
        return sorted(shown, key=lambda entity: normalise_path(entity.path))

    def _find(self, path: str, version: str) -> Queue | Topic:
        entity = self._broker.find_target(path)
        if len(entity.hosts) > 1:
            refuse_old_version(f"{entity.description.label} is partitioned", version)
        return entity

    async def _entry(self, entity: Queue | Topic, answers: Answers, *, new: bool = False) -> str:
        if isinstance(entity, Topic):
            return await self._topics.topic_entry(entity, answers, new=new)
        # Just started or just created: a moment later the counts are known.
        await entity.loaded()
        await entity.refresh(access=True)
        content = queue_elements(entity, answers.version, new=new)
        return answers.entry(
            entity.path, entity.path, QUEUE_DESCRIPTION, content, entity.created_at, entity.updated_at
        )

    def _namespace(self, answers: Answers) -> Response:
        tier, created_at = self._broker.tier, format_time(self._broker.created_at)
        shown = [("CreatedTime", created_at), ("MessagingSKU", tier.capitalize())]
        if tier is Tier.PREMIUM:
            # The JavaScript client needs it there. We have no units; one is the least there can be.
            shown.append(("MessagingUnits", "1"))
        shown += [
            ("ModifiedTime", created_at),
            ("Name", self._name),
            ("NamespaceType", "Messaging"),
        ]
        if tier is Tier.PREMIUM:
            shown.append(("PremiumMessagingPartitions", str(self._broker.premium_partitions)))
        if not self._keys.local_auth:
            shown.append(("DisableLocalAuth", "true"))
        founded = self._broker.created_at
        body = documents.entry(
            documents.EntryAddress.alone(answers.url("$namespaceinfo", "")),
            self._name,
            "NamespaceInfo",
            "".join(element(*one) for one in shown),
            founded,
            founded,
            self._name,
        )
        return answers.one(body)

    # -- changing -----------------------------------------------------------------

    async def _put(self, request: Request, path: str, answers: Answers) -> Response:
        described = await read_body(request, QUEUE_DESCRIPTION, TOPIC_DESCRIPTION)
        if described.kind == TOPIC_DESCRIPTION:
            return await self._topics.put_topic(request, path, described, answers)
        check_elements(f"Queue '{path}'", described, QUEUE, answers.version)
        if not is_update(request, self._broker.entities.look_up(path)):
            description = read_queue(path, described.elements, self._broker.tier)
            self._refuse_old_version(description, answers.version)
            self._authorise_forwarding(request, description)
            queue = await self._broker.queues.create(description)
            return answers.one(await self._entry(queue, answers, new=True), 201)
        found = self._find(path, answers.version)
        if isinstance(found, Topic):
            raise EntityNotFound(path)
        description = read_queue(path, described.elements, self._broker.tier, found)
        self._authorise_forwarding(request, description, found.description)
        await self._broker.queues.update(
            description, based_on=found.description, unchanged_since=unchanged_since(request, found)
        )
        return answers.one(await self._entry(found, answers))

    def _authorise_forwarding(
        self, request: Request, asked: EntityDescription, present: EntityDescription | None = None
    ) -> None:
        """A client that sets up forwarding must have the right to send to the destination."""
        for field, header in SUPPLEMENTARY.items():
            target = getattr(asked, field)
            if target is None or (present is not None and getattr(present, field) == target):
                continue
            given = request.headers.get(header) or request.headers.get("authorization", "")
            # The request stays the one of its own token's holder.
            with audit.acting(audit.current_actor()):
                authorise({"authorization": given}, self._keys, target, Right.SEND, now())

    def _refuse_old_version(self, description: EntityDescription, version: str) -> None:
        """A client that could not see the entity afterwards must not create it (P-10)."""
        self._broker.entities.refuse_taken(description.path)
        partitions = self._broker.tier.partition_count(
            enable_partitioning=description.enable_partitioning,
            premium_partitions=self._broker.premium_partitions,
        )
        if partitions > 1:
            refuse_old_version(f"{description.label} would be partitioned", version)


def _first_entity(path: str) -> str:
    """The queue or topic that a path names, or that it names a part of."""
    entity, _ = split_subqueue(path)
    child = Child.parse(entity)
    return entity if child is None else child.topic


def _shows(version: str, entity: Queue | Topic) -> bool:
    return len(entity.hosts) == 1 or version >= FIRST_WITH_PARTITIONS
