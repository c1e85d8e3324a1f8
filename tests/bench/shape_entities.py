"""The queues and topics that the shapes of shape_rows.py are sent to, the same for every broker.

A broker without partitions, sessions or detection of duplicates makes plain queues of them: which rows may
use those, and what the report says then, is in shape_rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENTITIES", "Address", "Entity"]


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    partitioned: bool = True
    sessions: bool = False
    duplicates: bool = False
    subscriptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker takes an entity's messages, and where each source of them is."""

    target: str
    sources: tuple[str, ...]


ENTITIES = {
    entity.name: entity
    for entity in (
        Entity("queue16"),
        Entity("queue1", partitioned=False),
        Entity("onward16"),
        Entity("sessions16", sessions=True),
        Entity("duplicates16", duplicates=True),
        Entity("duplicates1", partitioned=False, duplicates=True),
        Entity("topic16", subscriptions=("one",)),
        Entity("topic1", partitioned=False, subscriptions=("one",)),
        Entity("fivefold16", subscriptions=("one", "two", "three", "four", "five")),
    )
}
