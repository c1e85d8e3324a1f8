"""Azure Resource Manager for `Microsoft.ServiceBus`: which request means what.

The API that `azure-mgmt-servicebus` and `az servicebus` use, so that code for infrastructure can be tested.
`_table` has every kind of resource with its verbs. Features that a server of its own does not have, such as
network rules, are in `NOT_HERE`: they are refused with a reason, and never accepted without an effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bendybus import audit
from bendybus.admin.authorization_rules import AuthorizationRules
from bendybus.arm.access import bearer_of
from bendybus.arm.authorization_resources import AuthorizationResources
from bendybus.arm.calls import Call, Handler, check_api_version
from bendybus.arm.entity_resources import EntityResources
from bendybus.arm.errors import UnknownResource, refused
from bendybus.arm.members import json_object
from bendybus.arm.namespace_resources import NamespaceChanges, NamespaceResources, NoChanges
from bendybus.arm.resources import PROVIDER, Resource, Template
from bendybus.auth.key_ring import Issuer
from bendybus.errors import ArgumentError, BrokerError, MethodNotAllowed, NotSupported
from bendybus.http_bodies import RequestBody
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["ResourceManager", "ResourceManagerOptions"]

# The largest description, a rule with a long filter, is smaller.
BODY_BYTES_MAX: Final = 256 * 1024

# Every subscription has all namespaces. This is the one that a list of subscriptions shows.
SUBSCRIPTION_DEFAULT: Final = "00000000-0000-0000-0000-000000000000"

# What only Azure has, by the first word below a namespace.
NOT_HERE: Final[Mapping[str, str]] = {
    "networkrulesets": "Network rules are set in the firewall of the server's machine.",
    "privateendpointconnections": "A server of its own has no private endpoints.",
    "privatelinkresources": "A server of its own has no private links.",
    "networksecurityperimeterconfigurations": "A server of its own has no network security perimeter.",
    "disasterrecoveryconfigs": "Namespaces are not paired. `bendybus backup` and a cluster protect messages.",
    "migrationconfigurations": "The tier of a namespace is changed where the server is started: --tier.",
    "failover": "A namespace has no other region to fail over to.",
}


@dataclass(frozen=True, slots=True)
class ResourceManagerOptions:
    """What a server lets the resource manager do."""

    changes: NamespaceChanges = field(
        default_factory=lambda: NoChanges("This server does not create or delete namespaces.")
    )
    issuer: Issuer | None = None
    """The identity provider whose roles cover all namespaces."""
    any_token: bool = False
    """Whether requests of this machine may have any token."""
    tls_only: bool = False


class ResourceManager:
    """Answers the requests that are for it (`is_resource_request`)."""

    def __init__(self, namespaces: Namespaces, options: ResourceManagerOptions) -> None:
        self._namespaces = namespaces
        self._options = options
        self._rules: dict[Namespace, AuthorizationRules] = {}
        self._table = _table(
            NamespaceResources(namespaces, options.changes, options.issuer),
            EntityResources(namespaces),
            AuthorizationResources(namespaces, self._rules.__getitem__, tls_only=options.tls_only),
        )

    def admit(self, namespace: Namespace, rules: AuthorizationRules) -> None:
        self._rules[namespace] = rules

    def dismiss(self, namespace: Namespace) -> None:
        del self._rules[namespace]

    async def answer(self, request: Request) -> Response:
        body = RequestBody(request.receive, request.headers.get("content-length"))
        try:
            response = await self._answer(request, body)
        except BrokerError as refusal:
            audit.record_refused_change(request.method, request.url.path, refusal)
            response = refused(refusal)
        if not await body.discard():
            response.headers["connection"] = "close"
        return response

    async def _answer(self, request: Request, body: RequestBody) -> Response:
        resource = Resource.parse(request.scope["path"])
        caller = bearer_of(request, any_token=self._options.any_token)
        caller.require_known(self._namespaces)
        query = {name.lower(): value for name, value in request.query_params.items()}
        check_api_version(query)
        if resource.below is None:
            return JSONResponse(_subscriptions(resource.subscription))
        names, handlers = self._find(resource, resource.below)
        method = "GET" if request.method == "HEAD" else request.method
        if method not in handlers:
            raise MethodNotAllowed(
                f"{request.method[:60]} is not a request that '{resource.below[:200]}' answers."
            )
        if "if-none-match" in request.headers or request.headers.get("if-match", "*") != "*":
            raise NotSupported("Resources have no versions here: leave If-Match and If-None-Match out.")
        given = json_object(await body.read_document(BODY_BYTES_MAX))
        call = Call(resource, names, query, given, caller, _called_url(request))
        answer, status = await handlers[method](call)
        return Response(status_code=status) if answer is None else JSONResponse(answer, status)

    def _find(self, resource: Resource, below: str) -> tuple[Mapping[str, str], Mapping[str, Handler]]:
        """The names in the path, and what can be done there."""
        for template, handlers in self._table:
            names = template.match(below)
            # Only lists, and questions about names, are for a whole subscription.
            fits = resource.subscription and (resource.group or "{" not in template.text)
            if names is not None and fits:
                return names, handlers
        word = below.lower().split("/")[2:3]
        if word and word[0] in NOT_HERE:
            raise NotSupported(f"'{below[:200]}' cannot be used here. {NOT_HERE[word[0]]}")
        raise UnknownResource(f"The provider {PROVIDER} has no resource '{below[:200]}' at this path.")


def _subscriptions(named: str | None) -> dict[str, object]:
    """The subscription that a request names, or the list of one that `az login` is shown."""
    subscription = named or SUBSCRIPTION_DEFAULT
    shown: dict[str, object] = {
        "id": f"/subscriptions/{subscription}",
        "subscriptionId": subscription,
        "displayName": "Bendybus",
        "state": "Enabled",
    }
    return shown if named else {"value": [shown]}


def _called_url(request: Request) -> SplitResult:
    """The address that the client called, without its query; `ArgumentError` if it cannot be read."""
    scheme = request.scope.get("scheme", "http")
    try:
        url = urlsplit(f"{scheme}://{request.headers.get('host', '')}{quote(request.scope['path'])}")
        if url.hostname and url.port != 0:
            return url
    except ValueError:
        pass
    raise ArgumentError("The Host header has no host name that can be read.")


def _table(
    namespaces: NamespaceResources, entities: EntityResources, rules: AuthorizationResources
) -> Sequence[tuple[Template, Mapping[str, Handler]]]:
    """Every resource. The first template that fits counts, so longer ones come first."""
    one = "namespaces/{namespace}"
    table: list[tuple[str, Mapping[str, Handler]]] = [
        ("checkNameAvailability", {"POST": namespaces.check_name}),
        ("namespaces", {"GET": namespaces.list_all}),
        (
            one,
            {
                "GET": namespaces.get,
                "PUT": namespaces.put,
                "PATCH": namespaces.patch,
                "DELETE": namespaces.delete,
            },
        ),
    ]
    for owner in (one, f"{one}/queues/{{queue}}", f"{one}/topics/{{topic}}"):
        table += [
            (f"{owner}/authorizationRules/{{rule}}/listKeys", {"POST": rules.list_keys}),
            (f"{owner}/authorizationRules/{{rule}}/regenerateKeys", {"POST": rules.regenerate_keys}),
            (
                f"{owner}/authorizationRules/{{rule}}",
                {"GET": rules.get_rule, "PUT": rules.put_rule, "DELETE": rules.delete_rule},
            ),
            (f"{owner}/authorizationRules", {"GET": rules.list_rules}),
        ]
    subscription = f"{one}/topics/{{topic}}/subscriptions/{{subscription}}"
    table += [
        (
            f"{subscription}/rules/{{rule}}",
            {"GET": entities.get_rule, "PUT": entities.put_rule, "DELETE": entities.delete_rule},
        ),
        (f"{subscription}/rules", {"GET": entities.list_rules}),
        (
            subscription,
            {
                "GET": entities.get_subscription,
                "PUT": entities.put_subscription,
                "DELETE": entities.delete_subscription,
            },
        ),
        (f"{one}/topics/{{topic}}/subscriptions", {"GET": entities.list_subscriptions}),
        (
            f"{one}/topics/{{topic}}",
            {"GET": entities.topics.get, "PUT": entities.topics.put, "DELETE": entities.topics.delete},
        ),
        (f"{one}/topics", {"GET": entities.topics.list}),
        (
            f"{one}/queues/{{queue}}",
            {"GET": entities.queues.get, "PUT": entities.queues.put, "DELETE": entities.queues.delete},
        ),
        (f"{one}/queues", {"GET": entities.queues.list}),
    ]
    return [(Template(text), handlers) for text, handlers in table]
