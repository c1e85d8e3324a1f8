"""What pages read of a server: entities with their counts, partitions, stores, connections.

A Bendybus answers in one request each (its own API). Other servers are read through the ATOM API, which has
no partitions, no rates and no search: entities are then filtered and sorted here. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bendybus.errors import ArgumentError, EntityNotFound
from bendybus.management.client import QUEUES, TOPICS
from bendybus.management.entries import Entry
from bendybus.management.properties import shown_values
from bendybus_portal.access import Access, Rights

__all__ = [
    "PAGE",
    "EntityInfo",
    "Overview",
    "describe",
    "overview",
    "partitions",
    "refuse_duplicates",
    "split_entity",
]

PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class Overview:
    queues: int
    topics: int
    matching: int
    entities: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class EntityInfo:
    """An entity's description; `values` under the names of `az servicebus`."""

    path: str
    kind: str
    entry: Entry | None
    """None if the key may not manage."""
    values: Mapping[str, Any]

    @property
    def counts(self) -> Mapping[str, int]:
        found = self.values.get("countDetails")
        return found if isinstance(found, Mapping) else {}

    @property
    def sessions(self) -> bool:
        return self.values.get("requiresSession") is True


def overview(access: Access, rights: Rights, search: str, sort: str, descending: bool, skip: int) -> Overview:
    if rights.extensions:
        asked: dict[str, object] = {"search": search, "sort": sort, "skip": skip, "top": PAGE}
        if descending:
            asked["descending"] = "true"
        told = access.ask("GET", "/$overview", asked)
        return Overview(told["queues"], told["topics"], told["matching"], told["entities"])
    with access.management() as management:
        queues = [_row(entry, "queue") for entry in management.list(QUEUES)]
        topics = [_row(entry, "topic") for entry in management.list(TOPICS)]
    found = [each for each in (*queues, *topics) if search.lower() in str(each["name"]).lower()]
    found.sort(key=lambda each: each[sort] if sort != "name" else str(each["name"]).lower())
    if descending:
        found.reverse()
    return Overview(len(queues), len(topics), len(found), found[skip : skip + PAGE])


def _row(entry: Entry, kind: str) -> dict[str, Any]:
    values = shown_values(entry)
    counts = values.get("countDetails")
    counted = counts if isinstance(counts, dict) else {}
    return {
        "name": entry.name,
        "kind": kind,
        "status": str(values.get("status", "Active")),
        "partitions": None,
        "available": None,
        "limited": values.get("entityAvailabilityStatus") == "Limited",
        "active": counted.get("activeMessageCount", 0),
        "scheduled": counted.get("scheduledMessageCount", 0),
        "deadLetters": counted.get("deadLetterMessageCount", 0),
        "sizeBytes": values.get("sizeInBytes", 0),
        "maxSizeBytes": int(str(values.get("maxSizeInMegabytes", 0))) * 1024 * 1024,
        "arrived": 0,
        "subscriptions": values.get("subscriptionCount"),
        "sessions": values.get("requiresSession", False),
    }


def split_entity(path: str) -> tuple[str, str | None]:
    """A topic and the name of its subscription; the path and None for a queue or a topic."""
    at = path.lower().find("/subscriptions/")
    return (path, None) if at < 0 else (path[:at], path[at + len("/subscriptions/") :])


def describe(access: Access, rights: Rights, path: str) -> EntityInfo:
    """`EntityNotFound` if there is none."""
    if rights.manage:
        with access.management() as management:
            entry = management.get(path)
        kind = entry.kind.removesuffix("Description").lower()
        return EntityInfo(path, kind, entry, shown_values(entry))
    if rights.extensions and rights.listen:
        told = access.ask("GET", f"/{path}/$partitions")
        return EntityInfo(str(told["name"]), str(told["kind"]), None, {})
    return EntityInfo(path, "subscription" if split_entity(path)[1] else "queue", None, {})


def refuse_duplicates(access: Access, rights: Rights, target: str) -> None:
    """`ArgumentError` if messages that are sent again could be dropped there. Needs Manage."""
    if describe(access, rights, target).values.get("requiresDuplicateDetection") is True:
        raise ArgumentError(
            f"{target} has duplicate detection and would drop messages whose ids it remembers. "
            "Give each a new message id."
        )


def partitions(access: Access, path: str, skip: int = 0) -> dict[str, Any]:
    """With a page of the subscriptions, if it is a topic."""
    try:
        return access.ask("GET", f"/{path}/$partitions", {"skip": skip, "top": PAGE} if skip else None)
    except LookupError:
        raise EntityNotFound(path) from None
