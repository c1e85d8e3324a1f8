"""The namespaces of a running server over HTTP, only for the operator.

    GET     /$namespaces           all of them, with their connection strings
    PUT     /$namespaces/{name}    {"tier": "premium", "premiumMessagingPartitions": 2}    create one
    DELETE  /$namespaces/{name}    delete one, with all its entities and messages

The work: namespace_keeper.py.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute

from bendybus.domain.entities import PREMIUM_PARTITIONS, Tier
from bendybus.errors import ArgumentError
from bendybus.http_bodies import json_body
from bendybus.namespaces import NewNamespace
from bendybus.server.namespace_keeper import NamespaceKeeper
from bendybus.server.operator import Answer, operator_route, refused_route

__all__ = ["ONE_NAMESPACE", "namespace_routes", "refused_namespace_routes"]

ONE_NAMESPACE: Final = (
    "This server has several brokers, and those serve one namespace. Start it with one broker."
)

ALL: Final = "/$namespaces"
ONE: Final = "/$namespaces/{name}"


def namespace_routes(keeper: NamespaceKeeper, operator_key: str) -> list[BaseRoute]:
    """To be tried before the routes of namespaces."""

    async def list_all(request: Request) -> Answer:
        return {"namespaces": keeper.shown()}, HTTPStatus.OK

    async def change(request: Request) -> Answer:
        name = request.path_params["name"]
        if request.method == "DELETE":
            await keeper.delete(name)
            return {"name": name, "deleted": True}, HTTPStatus.OK
        await keeper.create(_new_namespace(name, await json_body(request)))
        made = next(each for each in keeper.shown() if each["name"] == name)
        return made, HTTPStatus.CREATED

    return [
        operator_route(ALL, ["GET"], operator_key, list_all),
        operator_route(ONE, ["PUT", "DELETE"], operator_key, change),
    ]


def refused_namespace_routes() -> list[BaseRoute]:
    """For one broker of several."""
    return [refused_route(ALL, ["GET"], ONE_NAMESPACE), refused_route(ONE, ["PUT", "DELETE"], ONE_NAMESPACE)]


def _new_namespace(name: str, body: object) -> NewNamespace:
    known = ("tier", "premiumMessagingPartitions")
    if not isinstance(body, dict) or not set(body) <= set(known):
        raise ArgumentError(f"The body must be an object; known are {', '.join(known)}.")
    tier, partitions = (body.get(each) for each in known)
    if tier is not None and tier not in list(Tier):
        raise ArgumentError(f"'tier' must be one of {', '.join(Tier)}.")
    if partitions is not None and partitions not in PREMIUM_PARTITIONS:
        raise ArgumentError("'premiumMessagingPartitions' must be 1, 2 or 4.")
    return NewNamespace(name, None if tier is None else Tier(tier), partitions)
