"""What requests do to namespaces.

A namespace belongs to every subscription and resource group. Its location and tags, and the capacity of its
SKU, are stored and returned without any effect. Any other member must describe how the namespace is, or the
request is refused: nothing is accepted that would have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, Protocol

from bendybus.arm.calls import NOTHING, Answer, Call, listed
from bendybus.arm.errors import LocationChanged
from bendybus.arm.members import SHOWN_ONLY, member, refuse_unknown
from bendybus.atom import format_time
from bendybus.auth.key_ring import Issuer
from bendybus.domain.entities import PREMIUM_PARTITIONS, Tier
from bendybus.errors import ArgumentError, InvalidOperation, NotSupported
from bendybus.namespaces import Namespace, Namespaces, NewNamespace, check_namespace_name

__all__ = ["AskedNamespace", "NamespaceChanges", "NamespaceResources", "NoChanges", "read_namespace"]

# Where a namespace is that nobody has given a location.
LOCATION_DEFAULT: Final = "local"
# Azure's, of a namespace that is created without a number.
PREMIUM_PARTITIONS_DEFAULT: Final = 1
CAPACITIES: Final = (1, 2, 4, 8, 16)
# Azure's limits.
TAGS_MAX: Final = 50
TAG_NAME_LENGTH_MAX, TAG_LENGTH_MAX = 512, 256

_SHOWN_ONLY: Final = (
    *("provisioningState", "status", "createdAt", "updatedAt", "serviceBusEndpoint", "metricId"),
)
# What a description may say, because it is so here.
_AS_IT_IS: Final[Mapping[str, tuple[object, ...]]] = {
    "minimumTlsVersion": ("1.2",),
    "zoneRedundant": (False,),
    "publicNetworkAccess": ("Enabled",),
    "ipAddressType": ("IPv4",),
    "privateEndpointConnections": ([],),
    "alternateName": ("",),
    "encryption": (),
    "geoDataReplication": (),
    "platformCapabilities": ({}, {"confidentialCompute": {"mode": "Disabled"}}),
}


class NamespaceChanges(Protocol):
    """Creates and deletes namespaces while the server runs."""

    async def create(self, new: NewNamespace) -> None: ...

    async def delete(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class NoChanges:
    """For a server that cannot."""

    why: str

    async def create(self, new: NewNamespace) -> None:
        raise NotSupported(self.why)

    async def delete(self, name: str) -> None:
        raise NotSupported(self.why)


@dataclass(frozen=True, slots=True)
class AskedNamespace:
    """A namespace as a request describes it; None for what it does not say."""

    location: str | None
    tags: dict[str, str] | None
    tier: Tier | None
    capacity: int | None
    premium_partitions: int | None
    disable_local_auth: bool | None


class NamespaceResources:
    def __init__(self, namespaces: Namespaces, changes: NamespaceChanges, issuer: Issuer | None) -> None:
        """`issuer`: the provider whose roles cover all namespaces."""
        self._namespaces = namespaces
        self._changes = changes
        self._issuer = issuer

    async def list_all(self, call: Call) -> Answer:
        """Those that the caller may manage."""
        managed = [each for each in self._namespaces if call.caller.manages(each)]

        async def show(namespace: Namespace) -> Mapping[str, object]:
            return _shown(call, namespace)

        return await listed(call, managed, show)

    async def get(self, call: Call) -> Answer:
        return _shown(call, self._managed(call)), HTTPStatus.OK

    async def put(self, call: Call) -> Answer:
        name = call.names["namespace"]
        if self._namespaces.find(name) is not None:
            return await self._change(call, whole=True)
        call.caller.require_all(self._issuer)
        asked = read_namespace(name, call.body)
        if asked.location is None:
            raise ArgumentError(f"Namespace '{name}': 'location' is missing. Any text will do.")
        tier = asked.tier or Tier.STANDARD
        partitions = asked.premium_partitions or None
        if tier is Tier.PREMIUM and partitions is None:
            partitions = PREMIUM_PARTITIONS_DEFAULT
        await self._changes.create(NewNamespace(name, tier, partitions, asked.disable_local_auth))
        namespace = call.namespace(self._namespaces)
        await _keep(namespace, asked)
        return _shown(call, namespace), HTTPStatus.CREATED

    async def patch(self, call: Call) -> Answer:
        return await self._change(call, whole=False)

    async def _change(self, call: Call, *, whole: bool) -> Answer:
        """Change what may change: tags and capacity. A whole description without tags removes them."""
        namespace = self._managed(call)
        asked = read_namespace(namespace.name, call.body)
        if whole:
            asked = replace(asked, tags=asked.tags or {})
        _refuse_changes(namespace, asked)
        await _keep(namespace, asked)
        return _shown(call, namespace), HTTPStatus.OK

    async def delete(self, call: Call) -> Answer:
        call.caller.require_all(self._issuer)
        if self._namespaces.find(call.names["namespace"]) is None:
            return NOTHING
        await self._changes.delete(call.names["namespace"])
        return None, HTTPStatus.OK

    async def check_name(self, call: Call) -> Answer:
        refuse_unknown("The body", call.body, ("name", "type"))
        name = member(call.body, "name", str)
        if name is None:
            raise ArgumentError("'name' is missing.")
        reason, message = "None", ""
        if self._namespaces.find(name) is not None:
            reason, message = "NameInUse", f"The namespace '{name}' already exists."
        else:
            try:
                check_namespace_name(name)
            except ArgumentError as refusal:
                reason, message = "InvalidName", str(refusal)
        return {"nameAvailable": reason == "None", "reason": reason, "message": message}, HTTPStatus.OK

    def _managed(self, call: Call) -> Namespace:
        namespace = call.namespace(self._namespaces)
        call.caller.require(namespace, "")
        return namespace


# -- reading ------------------------------------------------------------------------


def read_namespace(name: str, body: Mapping[str, Any]) -> AskedNamespace:
    """The namespace that a body describes; what it cannot be here is refused."""
    where = f"Namespace '{name}'"
    refuse_unknown(where, body, (*SHOWN_ONLY, "location", "tags", "sku", "identity", "properties"))
    identity = member(body, "identity", dict) or {}
    if (member(identity, "type", str) or "None").lower() != "none":
        raise NotSupported(f"{where}: a namespace cannot have a managed identity here.")
    properties = member(body, "properties", dict) or {}
    own = ("premiumMessagingPartitions", "disableLocalAuth")
    refuse_unknown(where, properties, (*_SHOWN_ONLY, *_AS_IT_IS, *own))
    for known, allowed in _AS_IT_IS.items():
        value = next((value for each, value in properties.items() if each.lower() == known.lower()), None)
        if value is not None and value not in allowed:
            only = f"; it is {allowed[0]}" if allowed and allowed[0] else ""
            raise NotSupported(f"{where}: '{known}' cannot be {str(value)[:60]} here{only}.")
    partitions = member(properties, own[0], int)
    if partitions not in (None, 0, *PREMIUM_PARTITIONS):
        raise ArgumentError(f"{where}: {own[0]} is {partitions}; allowed are 1, 2, 4.")
    sku = member(body, "sku", dict) or {}
    return AskedNamespace(
        member(body, "location", str),
        _read_tags(where, member(body, "tags", dict)),
        _read_tier(where, sku),
        _read_capacity(where, sku),
        partitions,
        member(properties, own[1], bool),
    )


def _read_tier(where: str, sku: Mapping[str, Any]) -> Tier | None:
    refuse_unknown(f"The sku of {where}", sku, ("name", "tier", "capacity"))
    named = {(member(sku, each, str) or "").lower() for each in ("name", "tier")} - {""}
    if len(named) > 1 or not named <= set(Tier):
        raise ArgumentError(f"{where}: the sku must be Basic, Standard or Premium, in 'name' and in 'tier'.")
    return Tier(named.pop()) if named else None


def _read_capacity(where: str, sku: Mapping[str, Any]) -> int | None:
    capacity = member(sku, "capacity", int)
    if capacity not in (None, 0, *CAPACITIES):
        raise ArgumentError(f"{where}: capacity is {capacity}; allowed are 1, 2, 4, 8, 16.")
    return capacity or None


def _read_tags(where: str, given: Mapping[str, Any] | None) -> dict[str, str] | None:
    if given is None:
        return None
    for name, value in given.items():
        fits = isinstance(value, str) and len(name) <= TAG_NAME_LENGTH_MAX and len(value) <= TAG_LENGTH_MAX
        if not fits or len(given) > TAGS_MAX:
            raise ArgumentError(
                f"{where}: a namespace has at most {TAGS_MAX} tags, texts with names of at most "
                f"{TAG_NAME_LENGTH_MAX} characters and values of at most {TAG_LENGTH_MAX}."
            )
    return dict(given)


def _refuse_changes(namespace: Namespace, asked: AskedNamespace) -> None:
    broker, where = namespace.broker, f"Namespace '{namespace.name}'"
    kept = broker.kept_resource().get("location")
    if asked.location is not None and kept is not None and _place(asked.location) != _place(str(kept)):
        raise LocationChanged(f"{where} is in '{kept}' and cannot move to '{asked.location[:60]}'.")
    if asked.tier not in (None, broker.tier):
        raise InvalidOperation(
            f"{where} is in the {broker.tier} tier. It is changed where the server is started: --tier."
        )
    present = broker.premium_partitions if broker.tier is Tier.PREMIUM else 0
    if asked.premium_partitions not in (None, present):
        raise InvalidOperation(f"{where} has premiumMessagingPartitions {present}, which cannot be changed.")
    if asked.disable_local_auth not in (None, not namespace.keys.local_auth):
        raise InvalidOperation(
            f"{where}: disableLocalAuth is changed where the server is started: --disable-local-auth."
        )


def _place(location: str) -> str:
    """`West Europe` and `westeurope` are one place."""
    return location.replace(" ", "").lower()


async def _keep(namespace: Namespace, asked: AskedNamespace) -> None:
    kept = namespace.broker.kept_resource()
    said = {"location": asked.location, "tags": asked.tags, "capacity": asked.capacity}
    wanted = {**kept, **{name: value for name, value in said.items() if value is not None}}
    if wanted != kept and (kept or wanted != {"tags": {}}):
        await namespace.broker.keep_resource(wanted)


# -- writing ------------------------------------------------------------------------


def _shown(call: Call, namespace: Namespace) -> dict[str, object]:
    broker, kept = namespace.broker, namespace.broker.kept_resource()
    premium = broker.tier is Tier.PREMIUM
    sku: dict[str, object] = {"name": broker.tier.capitalize(), "tier": broker.tier.capitalize()}
    if premium or "capacity" in kept:
        sku["capacity"] = kept.get("capacity", 1)
    created_at = format_time(broker.created_at)
    properties = {
        "provisioningState": "Succeeded",
        "status": "Active",
        "createdAt": created_at,
        "updatedAt": created_at,
        "serviceBusEndpoint": f"{call.url.scheme}://{call.url.netloc}/",
        "minimumTlsVersion": "1.2",
        "publicNetworkAccess": "Enabled",
        "disableLocalAuth": not namespace.keys.local_auth,
        "zoneRedundant": False,
        "premiumMessagingPartitions": broker.premium_partitions if premium else 0,
    }
    return {
        **call.shown(namespace.name, properties, "namespaces", namespace.name),
        "location": kept.get("location", LOCATION_DEFAULT),
        "tags": kept.get("tags", {}),
        "sku": sku,
    }
