"""Properties of entities as elements: texts become values, and values are shown.

Which properties there are: domain/properties.py. What a text says is decided here;
whether an entity may have the value, where it is described (domain/entities.py). An
element that is no property is read-only or unknown: clients send back the whole of
what they got, so it is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from bendybus.admin.documents import Element
from bendybus.admin.rules_xml import read_rules
from bendybus.atom import format_time
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.domain.durations import parse_duration
from bendybus.domain.entities import (
    STANDARD_PARTITIONS,
    Described,
    EntityStatus,
    QueueDescription,
    Tier,
)
from bendybus.domain.properties import Properties, Property, ValueType
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath

__all__ = ["Shown", "boolean", "left_out", "read_sendable", "read_values", "shown_properties", "shown_times"]

Shown: TypeAlias = tuple[str, object] | str
"""An element's name and value, or an element that is XML already."""

_WHOLE_NUMBER: Final = re.compile("[0-9]{1,18}")
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise ArgumentError("it must be true or false")
    return value


def _whole_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ArgumentError("it must be a whole number")
    return int(text)


def _duration(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ArgumentError:
        raise ArgumentError("it must be an ISO 8601 duration such as PT1M or P14D") from None


def _bounded_duration(text: str) -> float:
    seconds = _duration(text)
    if seconds is None:
        raise ArgumentError("this duration cannot be unlimited")
    return seconds


def _status(text: str) -> EntityStatus:
    try:
        return EntityStatus(text)
    except ValueError:
        raise ArgumentError(f"it must be one of {', '.join(EntityStatus)}") from None


def _entity_path(text: str) -> EntityPath:
    """Clients send a bare name, or the URL of the entity with any scheme and host."""
    _, separator, rest = text.partition("://")
    return EntityPath((rest.partition("/")[2] if separator else text).strip("/"))


_READERS: Final[Mapping[ValueType, Callable[[str], object]]] = {
    ValueType.BOOLEAN: boolean,
    ValueType.INTEGER: _whole_number,
    ValueType.DURATION: _bounded_duration,
    ValueType.DURATION_OR_UNLIMITED: _duration,
    ValueType.TEXT: str,
    ValueType.ENTITY: _entity_path,
    ValueType.STATUS: _status,
}


def read_values(label: str, elements: Mapping[str, Element], properties: Properties) -> dict[str, Any]:
    """Fields and values of those elements that say something."""
    values: dict[str, Any] = {}
    for row in properties:
        # An empty element, such as i:nil="true" has, says as much as none.
        text = elements[row.name].text.strip() if row.name in elements else ""
        if text:
            try:
                values[row.field] = _READERS[row.type](text)
            except ArgumentError as reason:
                raise ArgumentError(f"{label}: {row.name} is '{text[:60]}'; {reason}.") from None
    return values


def left_out(properties: Properties) -> dict[str, Any]:
    """What an update takes away by leaving it out."""
    return {row.field: None for row in properties if row.removable}


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


def shown_properties(
    description: Described,
    api_version: str,
    *,
    instead: Mapping[Property, object] | None = None,
    after: Mapping[Property, Sequence[Shown]],
) -> Iterator[Shown]:
    """The elements of a description, in the order of the real service.

    `instead` are values that differ from the description's; `after` are the elements that can only be
    read, each behind its neighbour.
    """
    for row in description.PROPERTIES:
        value = (instead or {}).get(row, getattr(description, row.field))
        said = value is not None or row.type is ValueType.DURATION_OR_UNLIMITED
        if said and api_version >= row.since:
            yield row.name, row.written(value)
        yield from after.get(row, ())


def shown_times(entity: Queue | Topic) -> tuple[Shown, ...]:
    """When it was created, changed and used."""
    return (
        ("CreatedAt", format_time(entity.created_at)),
        ("UpdatedAt", format_time(entity.updated_at)),
        ("AccessedAt", format_time(entity.accessed_at)),
    )


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
