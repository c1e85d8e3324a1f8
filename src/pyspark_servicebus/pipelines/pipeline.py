"""What all pipelines share: the namespace, watching and stopping a run, and its summary.

A pipeline is a value that describes the work. `check()` refuses what cannot work,
without starting Spark and without changing a message. `run(spark, run)` does the work, and may
be called again after any interruption. Where a run keeps its position: checkpoint.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from pyspark.sql import SparkSession

from bendybus.client import BusClient, ClientSettings
from bendybus.errors import ArgumentError, InvalidOperation, NotSupported

__all__ = [
    "Bus",
    "EntityState",
    "Pipeline",
    "Progress",
    "Run",
    "Summary",
    "at_least_one",
    "dead_letters_of",
    "is_dead_letters",
    "origin_of",
    "timed",
]

DEAD_LETTERS: Final = "$deadletterqueue"

# The time limit of a check, for which somebody waits. Queries have their own, larger limit.
CHECK_RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    phase: str
    messages: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The mode of a run: until everything present is done, or for ever; who watches; how it is stopped."""

    available_now: bool = True
    tell: Callable[[Progress], None] = lambda progress: None
    stopping: threading.Event = field(default_factory=threading.Event)
    interval_s: float = 1.0
    """Between two micro-batches of a continuous run."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did, for people and programs."""

    pipeline: str
    outcome: str
    """`finished`, or `stopped` on request: run it again to continue."""
    messages: int
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "outcome": self.outcome,
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            **self.details,
        }


class Pipeline(Protocol):
    def check(self) -> None:
        """Raise if the pipeline cannot run. Nothing is changed."""

    def run(self, spark: SparkSession, run: Run) -> Summary: ...


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Returns a function for the seconds elapsed so far."""
    began = time.monotonic()
    yield lambda: time.monotonic() - began


@dataclass(frozen=True, slots=True)
class EntityState:
    """What a broker with extensions reports about an entity."""

    generation: str
    partition_count: int
    duplicate_detection: bool
    active: int
    """Including those that are locked."""
    deferred: int
    scheduled: int
    locked: int
    size_bytes: int
    available: bool
    """Whether all partitions are. The others are not counted."""


@dataclass(frozen=True, slots=True)
class Bus:
    """A namespace, by its connection string, and data source options for the whole run."""

    connection_string: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def source(self, entity: str, **more: object) -> dict[str, str]:
        """Options for `servicebus`. Those that are None are left out."""
        own = {name: str(value) for name, value in more.items() if value is not None}
        return {**self.options, **own, "connectionString": self.connection_string, "entity": entity}

    def settings(self, entity: str | None = None) -> ClientSettings:
        settings = ClientSettings.from_connection_string(self.connection_string, entity=entity)
        return replace(settings, certificate=self.options.get("certificate"))

    def client(self, entity: str | None = None) -> BusClient:
        return BusClient(replace(self.settings(entity), retries=CHECK_RETRIES))

    def check_readable(self, entity: str) -> EntityState | None:
        """Raise unless `entity` exists and may be read. None if the namespace lacks our extensions."""
        with self.client(entity) as client:
            try:
                info = client.management().request("bendybus:partition-info", {})
            except NotSupported:
                return None
        assert info is not None
        partitions = [each for each in info["partitions"] if each["available"]]
        return EntityState(
            generation=str(info["generation"]),
            partition_count=int(info["partition-count"]),
            duplicate_detection=bool(info["duplicate-detection"]),
            active=sum(each["active"] for each in partitions),
            deferred=sum(each["deferred"] for each in partitions),
            scheduled=sum(each["scheduled"] for each in partitions),
            locked=sum(each["locked"] for each in partitions),
            size_bytes=sum(each["size-bytes"] for each in partitions),
            available=len(partitions) == len(info["partitions"]),
        )

    def check_consumable(self, entity: str) -> None:
        if self.check_readable(entity) is None:
            raise NotSupported(f"'{entity}' can only be browsed: this namespace lacks what consuming needs.")

    def check_writable(self, entity: str) -> None:
        """Raise unless messages may be sent to `entity`."""
        with self.client(entity) as client:
            client.sender().check()

    def detects_duplicates(self, entity: str) -> bool:
        """Whether `entity` drops duplicates; False if that is unknown."""
        try:
            state = self.check_readable(entity)
        except (InvalidOperation, NotSupported):
            # A topic can be written to but not read.
            return False
        return state is not None and state.duplicate_detection


def is_dead_letters(entity: str) -> bool:
    return entity.lower().endswith(f"/{DEAD_LETTERS}")


def dead_letters_of(entity: str) -> str:
    return entity if is_dead_letters(entity) else f"{entity}/{DEAD_LETTERS}"


def origin_of(entity: str) -> str:
    """The entity that its messages were sent to: for a subscription, its topic."""
    plain = entity[: -len(DEAD_LETTERS) - 1] if is_dead_letters(entity) else entity
    topic, _, _ = plain.lower().partition("/subscriptions/")
    return plain[: len(topic)]


def at_least_one(name: str, value: int | None) -> None:
    """Raise if a number is given and not positive."""
    if value is not None and value < 1:
        raise ArgumentError(f"'{name}' must be at least 1, not {value}.")
