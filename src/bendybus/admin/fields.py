"""Properties of entities as XML elements: reading values from text, and writing them.

Which properties there are: domain/properties.py. Texts are parsed here; the description checks
whether an entity may have the value (domain/entities.py). An element that is not a property is
read-only or unknown. Clients send back everything they received, so it is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from bendybus.admin.authorization_rules_xml import read_rules
from bendybus.admin.documents import Element, EntryContent
from bendybus.atom import format_time
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.durations import parse_duration
from bendybus.domain.entities import (
    STANDARD_PARTITIONS,
    EntityDescription,
    EntityStatus,
    QueueDescription,
    Tier,
)
from bendybus.domain.properties import (
    AUTO_DELETE_ON_IDLE,
    ENABLE_PARTITIONING,
    FORWARD_TO,
    MAX_SIZE,
    Properties,
    Property,
    ValueType,
)
from bendybus.domain.topic_entities import TopicDescription
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath, Instant

__all__ = [
    "READERS",
    "Shown",
    "boolean",
    "check_elements",
    "divide_size",
    "left_out",
    "read_as_sent",
    "read_new",
    "read_update",
    "read_values",
    "shown_access",
    "shown_as_sent",
    "shown_properties",
    "shown_times",
]

D = TypeVar("D", QueueDescription, TopicDescription)

Shown: TypeAlias = tuple[str, object] | str
"""An element's name and value, or an element that is XML already."""

# The part of a URL in which case does not matter. Azure writes it in lower case.
_URL_START: Final = re.compile(r"^[A-Za-z]+://[^/]*")
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,18}")
NEVER_USED: Final = Instant(0)

# Elements without effect. Azure keeps and shows them, so that clients that compare see no change.
KEPT: Final = ("SupportOrdering", "IsAnonymousAccessible")
# A duration or an entity can be written in many ways. Azure shows it as the client wrote it.
_SPELLED_BY_CLIENTS: Final = (ValueType.DURATION, ValueType.DURATION_OR_UNLIMITED, ValueType.ENTITY)

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


# A value from its text.
READERS: Final[Mapping[ValueType, Callable[[str], object]]] = {
    ValueType.BOOLEAN: boolean,
    ValueType.INTEGER: _whole_number,
    ValueType.DURATION: _bounded_duration,
    ValueType.DURATION_OR_UNLIMITED: _duration,
    ValueType.TEXT: str,
    ValueType.ENTITY: _entity_path,
    ValueType.STATUS: _status,
}


def read_values(label: str, elements: Mapping[str, Element], properties: Properties) -> dict[str, Any]:
    """Fields and values of the elements that are not empty."""
    values: dict[str, Any] = {}
    for row in properties:
        # An empty element, such as one with i:nil="true", counts as absent.
        text = elements[row.name].text.strip() if row.name in elements else ""
        if text:
            try:
                values[row.field] = READERS[row.type](text)
            except ArgumentError as reason:
                raise ArgumentError(f"{label}: {row.name} is '{text[:60]}'; {reason}.") from None
    return values


def check_elements(label: str, described: EntryContent, properties: Properties, api_version: str) -> None:
    """Refuse values that no entity may have, and elements that this version of the API does not know.

    Called before anything is looked up: a wrong value is reported even if the entity does not exist.
    """
    for name, value in read_values(label, described.elements, properties).items():
        row = next(row for row in properties if row.field == name)
        # Clients with old API versions may say that an entity is not partitioned.
        if api_version < row.since and value is not False and row is not ENABLE_PARTITIONING:
            raise ArgumentError(
                f"{label}: {row.name} needs api-version={row.since} or later, and this request has "
                f"{api_version or 'none'}.",
                azure=f"The entity description of type '{described.kind}' has unsupported properties for "
                f"api-version '{api_version}' in the request. Try including the correct api-version query "
                "string in the request.",
            )
        # What a size means depends on whether the entity is partitioned (P-08).
        if row is not MAX_SIZE:
            row.check(label, value)


def read_as_sent(elements: Mapping[str, Element], properties: Properties) -> dict[str, str]:
    """Texts that are shown again as they were sent, by the name of the element."""
    names = [row.name for row in properties if row.type in _SPELLED_BY_CLIENTS]
    texts = {name: elements[name].text.strip() for name in (*names, *KEPT) if name in elements}
    for name in KEPT:
        if texts.get(name):
            boolean(texts[name])
    for row in properties:
        if row.type is ValueType.ENTITY and row.name in texts:
            texts[row.name] = _URL_START.sub(lambda start: start[0].lower(), texts[row.name])
    texts = {name: text for name, text in texts.items() if text}
    if _forwards_first(elements):
        texts[AUTO_DELETE_ON_IDLE.name] = ""
    return texts


def _forwards_first(elements: Mapping[str, Element]) -> bool:
    """Whether `ForwardTo` comes before `AutoDeleteOnIdle`, as in all clients but Python's for queues.

    An entity that forwards is never idle. Azure shows that, but not if it reads `ForwardTo` too late.
    """
    names = [name for name in elements if name in (FORWARD_TO.name, AUTO_DELETE_ON_IDLE.name)]
    return names[:1] == [FORWARD_TO.name]


def shown_as_sent(description: QueueDescription | TopicDescription, name: str, default: bool) -> Shown:
    """One of `KEPT`."""
    return name, description.as_sent.get(name, default)


def left_out(properties: Properties) -> dict[str, Any]:
    """The properties that an update removes when it leaves them out."""
    return {row.field: None for row in properties if row.removable}


def read_new(kind: type[D], path: str, elements: Mapping[str, Element], tier: Tier) -> D:
    """The queue or topic that a client asks for."""
    values = _read_sendable(_label(kind, path), elements, kind.PROPERTIES)
    values["as_sent"] = read_as_sent(elements, kind.PROPERTIES)
    if tier is not Tier.PREMIUM and values.get(ENABLE_PARTITIONING.field):
        divide_size(values)
    return kind(EntityPath(path), **values)


def read_update(current: D, elements: Mapping[str, Element], partitions: int) -> D:
    """What an update makes of a queue or topic that has this many partitions."""
    properties = current.PROPERTIES
    values = _read_sendable(current.label, elements, properties, current.authorization_rules)
    values["as_sent"] = {**current.as_sent, **read_as_sent(elements, properties)}
    if partitions == STANDARD_PARTITIONS:
        divide_size(values)
    return replace(current, **(left_out(properties) | values))


def _label(kind: type[D], path: str) -> str:
    return f"{kind.__name__.removesuffix('Description')} '{path}'"


def _read_sendable(
    label: str,
    elements: Mapping[str, Element],
    properties: Properties,
    present_rules: Sequence[AuthorizationRule] = (),
) -> dict[str, Any]:
    values = read_values(label, elements, properties)
    if (rules := elements.get("AuthorizationRules")) is not None:
        values["authorization_rules"] = read_rules(rules, present_rules)
    return values


def divide_size(values: dict[str, Any]) -> None:
    """A size may be that of all 16 partitions together, or that of one (P-08)."""
    if MAX_SIZE.field in values:
        one_mb, rest = divmod(values[MAX_SIZE.field], STANDARD_PARTITIONS)
        if not rest and one_mb in MAX_SIZE.standard:
            values[MAX_SIZE.field] = one_mb


def shown_properties(
    description: EntityDescription,
    api_version: str,
    *,
    instead: Mapping[Property, object] | None = None,
    after: Mapping[Property, Sequence[Shown]],
) -> Iterator[Shown]:
    """The elements of a description, in the order of the real service.

    `instead` replaces values of the description; `after` has the read-only elements, by the property that
    they follow.
    """
    for row in description.PROPERTIES:
        value = (instead or {}).get(row, getattr(description, row.field))
        said = value is not None or row.type is ValueType.DURATION_OR_UNLIMITED
        if row.ours:
            said = value != row.default
        if said and api_version >= row.since:
            yield row.name, _as_sent(description, row, value) or row.written(value)
        yield from after.get(row, ())


def _as_sent(description: EntityDescription, row: Property, value: object) -> str | None:
    """What the client wrote, if it still has the same value."""
    text = description.as_sent.get(row.name)
    if not text:
        return None
    if row is AUTO_DELETE_ON_IDLE and getattr(description, FORWARD_TO.field, None) is not None:
        return text
    return text if READERS[row.type](text) == value else None


def shown_times(entity: Queue | Topic) -> tuple[Shown, ...]:
    """When it was created and changed."""
    return (
        ("CreatedAt", format_time(entity.created_at)),
        ("UpdatedAt", format_time(entity.updated_at)),
    )


def shown_access(entity: Queue | Topic, unused: Instant = NEVER_USED) -> tuple[Shown, ...]:
    """When it was last used; `unused` is shown until it is used."""
    return (("AccessedAt", format_time(entity.accessed_at or unused)),)
