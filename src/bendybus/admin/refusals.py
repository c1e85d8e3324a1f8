"""Refusals of management requests, in the words of Azure.

Clients distinguish refusals by these sentences, so they come first. The text of our own error follows: it
names the entity, the state and the input. Status and our own text: errors.py. The document
around them: documents.py.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from bendybus.admin.answers import READING
from bendybus.admin.documents import error_document, format_timestamp
from bendybus.admin.paths import Child
from bendybus.atom import ERROR_TYPE
from bendybus.domain.entities import split_subqueue
from bendybus.domain.messages import SubQueue
from bendybus.errors import HELP_LINK, BrokerError, EntityExists, EntityNotFound, RequestError
from bendybus.names import Instant

__all__ = ["RefusedRequest", "not_allowed", "refuse"]

CONFLICT: Final = (
    "Conflict. You're requesting an operation that isn't allowed in the resource's current state. "
    f"{HELP_LINK} ."
)
NOT_FOUND: Final = f"Not Found. The Operation doesn't exist. {HELP_LINK} ."
NOT_HOSTED: Final = "No service is hosted at the specified address."
NO_POLICY: Final = f"The incoming request is not recognized as a namespace policy put request. {HELP_LINK}"

# Stands behind the tracking id of answers of the management gateway.
GATEWAY: Final = "_G0"
NO_TRACKER: Final = "NoSystemTracker"


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The request that is refused."""

    method: str
    host: str
    namespace: str
    path: str
    topic_exists: bool
    """Whether the path is that of a topic that exists, or below one."""

    @property
    def child(self) -> Child | None:
        """None where the path is that of a queue or a topic, or of no entity."""
        return Child.parse(self.path)

    @property
    def resource(self) -> str:
        return f"{self.host}:{self.path[:200]}"


def refuse(refusal: BrokerError, request: RefusedRequest, now: Instant) -> Response:
    """The answer to a management request that is refused."""
    said = _azure_says(refusal, request).replace("{namespace}", request.namespace)
    detail = f"{said} {refusal.description}" if said else refusal.description
    if request.method == "PUT" and request.child is None and refusal.status != 401:
        detail = f"SubCode={refusal.sub_code}. {detail}"
    tracking_id = f"{uuid.uuid4()}{'' if refusal.status == 401 else GATEWAY}"
    detail += (
        f" TrackingId:{tracking_id}, SystemTracker:{_tracker(refusal, request)}, "
        f"Timestamp:{format_timestamp(now)}"
    )
    return Response(error_document(refusal.status, detail), refusal.status, media_type=ERROR_TYPE)


def not_allowed(request: RefusedRequest, now: Instant) -> Response:
    """The answer to a good token without the Manage right.

    What is missing stands where HTTP has it too [RFC 9110 11.6.1].
    """
    reason = f"The right Manage is required for /{quote(request.path[:200], safe='/$')}"
    challenge = f'SharedAccessSignature error="insufficient_scope", error_description="{reason}"'
    detail = (
        f"{_claims_required(request)} TrackingId:{uuid.uuid4()}{GATEWAY}, SystemTracker:{request.resource}, "
        f"Timestamp:{format_timestamp(now)}"
    )
    document = error_document(401, detail)
    return Response(document, 401, headers={"www-authenticate": challenge}, media_type=ERROR_TYPE)


def _claims_required(request: RefusedRequest) -> str:
    """Azure's sentence. Below a topic it names the operation, elsewhere the claims."""
    child, reads = request.child, request.method in READING
    if child is not None:
        kind = "Subscription" if child.rule is None and not (child.is_list and child.subscription) else "Rule"
        if reads:
            operation = f"Enumerate{kind}s" if child.is_list else f"Get{kind}"
        else:
            operation = f"{'Delete' if request.method == 'DELETE' else 'CreateOrUpdate'}{kind}"
        return (
            f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation on endpoint "
            f"'sb://{request.host}/{request.path[:200]}'."
        )
    if reads:
        return "Manage,EntityRead claims required for this operation."
    action = "EntityDelete" if request.method == "DELETE" else "EntityWrite"
    return f"Authorization failed for specified action: Manage,{action}."


def _azure_says(refusal: BrokerError, request: RefusedRequest) -> str:
    """Azure's sentence; empty where none is known."""
    child, method = request.child, request.method
    if child is None or not request.topic_exists:
        match refusal:
            case EntityExists():
                return CONFLICT
            case EntityNotFound() if method == "DELETE":
                return NOT_HOSTED
            case EntityNotFound() if method == "PUT":
                return NOT_FOUND if child is None else NO_POLICY
    elif isinstance(refusal, EntityExists | EntityNotFound):
        name = child.name_in(request.namespace)
        if isinstance(refusal, EntityExists):
            return f"The messaging entity '{name}' already exists. {HELP_LINK} "
        if method == "DELETE":
            return f"The messaging entity '{name}' could not be found. {HELP_LINK} "
        return f"Entity '{name}' was not found. {HELP_LINK} "
    return refusal.azure if isinstance(refusal, RequestError) else ""


def _tracker(refusal: BrokerError, request: RefusedRequest) -> str:
    child = request.child
    if refusal.status == 401:
        return NO_TRACKER
    if child is not None and request.topic_exists:
        if isinstance(refusal, EntityExists | EntityNotFound):
            return NO_TRACKER
        return f"{request.namespace}:Topic:{child.topic}"
    entity, subqueue = split_subqueue(request.path)
    if subqueue is not SubQueue.MAIN:
        return f"{request.namespace}:{'Topic' if request.topic_exists else 'Queue'}:{entity}"
    return request.resource
