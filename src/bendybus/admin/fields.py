"""The texts of a description's elements as values, and which element is which property.

What a text says is decided here; whether an entity may have the value, where it
is described (domain/entities.py). An element that nobody asks for is read-only or
unknown: clients send back the whole of what they got, so it is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from bendybus.admin.documents import Element
from bendybus.admin.rules_xml import read_rules
from bendybus.domain.durations import parse_duration
from bendybus.domain.entities import STANDARD_PARTITIONS, EntityStatus, QueueDescription, Tier
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath

__all__ = [
    "Properties",
    "boolean",
    "bounded_duration",
    "duration",
    "entity_path",
    "plain_text",
    "read_sendable",
    "read_values",
    "status",
    "whole_number",
]

Properties: TypeAlias = Mapping[str, tuple[str, Callable[[str], object]]]
"""Element -> field of the description, and how its text is read."""

_WHOLE_NUMBER: Final = re.compile("[0-9]{1,18}")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


# -- reading ------------------------------------------------------------------------


def boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ArgumentError("it must be true or false")
    return value


def whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ArgumentError("it must be a whole number")
    return int(text)


def duration(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ArgumentError:
        raise ArgumentError("it must be an ISO 8601 duration such as PT1M or P14D") from None


def bounded_duration(text: str) -> float:
    seconds = duration(text)
    if seconds is None:
        raise ArgumentError("this duration cannot be unlimited")
    return seconds


def status(text: str) -> EntityStatus:
    try:
        return EntityStatus(text)
    except ValueError:
        raise ArgumentError(f"it must be one of {', '.join(EntityStatus)}") from None


def entity_path(text: str) -> EntityPath:
    """Clients send a bare name, or the URL of the entity with any scheme and host."""
    _, separator, rest = text.partition("://")
    return EntityPath((rest.partition("/")[2] if separator else text).strip("/"))


def plain_text(text: str) -> str:
    return text


def read_values(label: str, elements: Mapping[str, Element], properties: Properties) -> dict[str, Any]:
    """Fields and values of those elements that say something."""
    values: dict[str, Any] = {}
    for name, (field, read) in properties.items():
        # An empty element, such as i:nil="true" has, says as much as none.
        text = elements[name].text.strip() if name in elements else ""
        if text:
            try:
                values[field] = read(text)
            except ArgumentError as reason:
                raise ArgumentError(f"{label}: {name} is '{text[:60]}'; {reason}.") from None
    return values


def read_sendable(
    label: str,
    elements: Mapping[str, Element],
    properties: Properties,
    tier: Tier,
    current: QueueDescription | TopicDescription | None,
) -> dict[str, Any]:
    """The values of a queue or a topic: as `read_values`, with its rules and what partitions make of them."""
    values = read_values(label, elements, properties)
    if (rules := elements.get("AuthorizationRules")) is not None:
        values["authorization_rules"] = read_rules(rules, current.authorization_rules if current else ())
    _fit_to_tier(values, tier, None if current is None else current.enable_partitioning)
    return values


def _fit_to_tier(values: dict[str, Any], tier: Tier, was_partitioned: bool | None) -> None:
    """What the tier makes of the values read; `was_partitioned` is None for an entity to be created."""
    if was_partitioned is None:
        values.setdefault("max_message_size_kb", tier.message_size_kb)
    partitioned = bool(values.get("enable_partitioning")) if was_partitioned is None else was_partitioned
    if tier is Tier.PREMIUM:
        if was_partitioned is not None:
            # There the namespace decides about partitions, and the flag has no effect (P-09).
            values.pop("enable_partitioning", None)
    elif partitioned and "max_size_mb" in values:
        values["max_size_mb"] = _size_of_one(values["max_size_mb"], tier)


def _size_of_one(shown_mb: int, tier: Tier) -> int:
    """The size of one of the 16 partitions, from a size that may be all partitions' (P-08)."""
    one_mb, rest = divmod(shown_mb, STANDARD_PARTITIONS)
    return one_mb if not rest and one_mb in tier.sizes_mb else shown_mb
