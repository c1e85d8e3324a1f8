"""One request to the resource manager, and what it is answered with.

Lists come in pages: `nextLink` is the address of the next one. `$skip` leaves some out, and `$top` limits how
many come, over all pages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlencode, urlunsplit

from bendybus.arm.access import Caller
from bendybus.arm.errors import InvalidApiVersion, MissingApiVersion, ParentNotFound, ResourceNotFound
from bendybus.arm.members import SHOWN_ONLY, member, refuse_unknown
from bendybus.arm.resources import API_VERSION, PROVIDER, Resource
from bendybus.atom import PAGE_MAX
from bendybus.errors import ArgumentError
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["Answer", "Call", "Handler", "NOTHING", "check_api_version", "listed"]

T = TypeVar("T")

Answer: TypeAlias = tuple[dict[str, object] | None, HTTPStatus]
NOTHING: Final[Answer] = (None, HTTPStatus.NO_CONTENT)

# The first version whose resources have the form that they have today.
API_VERSION_MIN: Final = "2017-04-01"


@dataclass(frozen=True, slots=True)
class Call:
    resource: Resource
    names: Mapping[str, str]
    """What the path names, by the words of its template."""
    query: Mapping[str, str]
    body: Mapping[str, Any]
    caller: Caller
    url: SplitResult
    """As the client called it."""

    def namespace(self, namespaces: Namespaces) -> Namespace:
        """The namespace that the path names, or that the resource is in."""
        name = self.names["namespace"]
        found = namespaces.find(name)
        if found is not None:
            return found
        text = f"'{PROVIDER}/namespaces/{name[:80]}' was not found: this server has no such namespace."
        if len(self.names) == 1 and (self.resource.below or "").count("/") == 1:
            raise ResourceNotFound(f"The Resource {text}")
        raise ParentNotFound(f"The parent resource {text}")

    def properties(self) -> Mapping[str, Any]:
        """The `properties` of the body, which has nothing else to say."""
        refuse_unknown("The body", self.body, (*SHOWN_ONLY, "location", "properties"))
        return member(self.body, "properties", dict) or {}

    def shown(self, name: str, properties: Mapping[str, object], *path: str) -> dict[str, object]:
        """A resource; `path` is its id below the provider, in parts."""
        kind = "/".join((PROVIDER, *path[::2]))
        return {
            "id": self.resource.id_of(*path),
            "name": name.replace("/", "~"),
            "type": kind,
            "properties": properties,
        }


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


def check_api_version(query: Mapping[str, str]) -> None:
    version = query.get("api-version")
    if not version:
        raise MissingApiVersion(
            "The api-version query parameter (?api-version=) is required for all requests."
        )
    if not API_VERSION.fullmatch(version) or version < API_VERSION_MIN:
        raise InvalidApiVersion(
            f"The api-version '{version[:60]}' is invalid: {API_VERSION_MIN} and later versions are answered."
        )


async def listed(
    call: Call, resources: Sequence[T], show: Callable[[T], Awaitable[Mapping[str, object]]]
) -> Answer:
    """One page of a list."""
    skip = _number(call.query, "$skip") or 0
    top = _number(call.query, "$top")
    count = PAGE_MAX if top is None else min(top, PAGE_MAX)
    answer: dict[str, object] = {"value": [await show(each) for each in resources[skip : skip + count]]}
    if skip + count < len(resources) and (top is None or top > count):
        query = {**call.query, "$skip": skip + count}
        if top is not None:
            query["$top"] = top - count
        answer["nextLink"] = urlunsplit(call.url._replace(query=urlencode(query)))
    return answer, HTTPStatus.OK


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentError(f"'{name}' must be a number, not '{text[:60]}'.")
    return int(text)
