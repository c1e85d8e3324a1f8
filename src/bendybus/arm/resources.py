"""Paths of Azure Resource Manager: which resource of `Microsoft.ServiceBus` a path names.

    /subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ServiceBus/namespaces/{name}/...

`az login` also asks for the subscriptions themselves:

    /subscriptions[/{subscription}]

A queue could be called so. The resource manager's versions of the API are dates with a day, and those of the
management API are months, so the version says which of the two is meant.

The fixed words are found in any case. A namespace is found by its name alone: every subscription and every
resource group has all namespaces, and a resource's id has those that the request named. An entity whose path
has slashes is written with `~`, as Azure's tools do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

__all__ = [
    "API_VERSION",
    "GROUP_DEFAULT",
    "PROVIDER",
    "Resource",
    "Template",
    "is_resource_path",
    "is_resource_request",
]

PROVIDER: Final = "Microsoft.ServiceBus"

# Where a list of a whole subscription says that its namespaces are.
GROUP_DEFAULT: Final = "bendybus"

_PATH: Final = re.compile(
    r"/?(?:subscriptions/(?P<subscription>[^/]+)/(?:resourcegroups/(?P<group>[^/]+)/)?)?"
    r"providers/microsoft\.servicebus(?:/(?P<below>.*?))?/?",
    re.IGNORECASE | re.DOTALL,
)
_SUBSCRIPTIONS: Final = re.compile(r"/?subscriptions(?:/(?P<subscription>[^/]+))?/?", re.IGNORECASE)

API_VERSION: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?")

# Names that may have slashes.
_LONG: Final = ("queue", "topic")


def is_resource_path(path: str) -> bool:
    """Whether the resource manager answers at this path, and nothing else does."""
    return _PATH.fullmatch(path) is not None


def is_resource_request(path: str, query: str) -> bool:
    """Whether a request is for the resource manager."""
    if _SUBSCRIPTIONS.fullmatch(path) is None:
        return is_resource_path(path)
    version = next((value for name, value in parse_qsl(query) if name.lower() == "api-version"), "")
    return API_VERSION.fullmatch(version) is not None


@dataclass(frozen=True, slots=True)
class Resource:
    """What a path names."""

    subscription: str | None
    group: str | None
    below: str | None
    """The path after the provider; None for a path without one."""

    @classmethod
    def parse(cls, path: str) -> Resource:
        found = _PATH.fullmatch(path)
        if found is not None:
            return cls(found["subscription"], found["group"], found["below"] or "")
        found = _SUBSCRIPTIONS.fullmatch(path)
        assert found is not None, "other paths do not lead here"
        return cls(found["subscription"], None, None)

    def id_of(self, *parts: str) -> str:
        """The id of a resource: `id_of("namespaces", "n", "queues", "orders/new")`."""
        group = self.group or GROUP_DEFAULT
        below = "/".join(part.replace("/", "~") for part in parts)
        return f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{PROVIDER}/{below}"


class Template:
    """The form of the paths of one kind of resource: `namespaces/{namespace}/queues/{queue}`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._pattern = re.compile(re.sub(r"\{(\w+)\}", _named, text), re.IGNORECASE)

    def match(self, below: str) -> Mapping[str, str] | None:
        """The names in such a path; None for other paths."""
        found = self._pattern.fullmatch(below)
        if found is None:
            return None
        return {
            name: text.replace("~", "/") if name in _LONG else text
            for name, text in found.groupdict().items()
        }


def _named(found: re.Match[str]) -> str:
    return f"(?P<{found[1]}>{'.+?' if found[1] in _LONG else '[^/]+'})"
