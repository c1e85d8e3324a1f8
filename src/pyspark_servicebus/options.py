"""Options for reading and writing, parsed and checked once.

Names follow Kafka's if Kafka has the option. They are case-insensitive, as
Spark's are; an unknown option is refused by name (option_names.py). Errors are
reported before anything is connected, and no error quotes a secret.
docs/reference/spark.md has the table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bendybus.client import ClientSettings
from bendybus.errors import ArgumentError
from bendybus.names import COUNTER_MAX
from pyspark_servicebus.option_names import own_options, unknown_option

__all__ = [
    "COMMON",
    "CONNECTIONS",
    "EARLIEST",
    "LATEST",
    "READ",
    "STATES",
    "WRITE",
    "ReadOptions",
    "StartingOffsets",
    "WriteOptions",
]

# Kafka's numbers for the two ends of a partition.
EARLIEST: Final = -2
LATEST: Final = -1

CONNECTIONS: Final = ("connectionString", "connectionStringFile", "connectionStringEnv")
COMMON: Final = (
    *CONNECTIONS,
    "entity",
    "certificate",
    "operationTimeoutMs",
    "retries",
)
READ: Final = (
    "mode",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxMessagesPerTrigger",
    "minPartitions",
    "maxPartitions",
    "partitions",
    "failOnDataLoss",
    "states",
    "sessionId",
    "includeBody",
    "includeProperties",
    "includeRaw",
    "filterPushdown",
    "consumer",
    "leaseDurationMs",
    "fetchBytes",
    "extensions",
)
WRITE: Final = ("batching", "messageIds", "extensions")

STATES: Final = ("active", "deferred", "scheduled")
"""By their numbers on the wire."""

# A broker that is restarted is back within seconds. A query should not fail because of that.
RETRIES_DEFAULT: Final = 10
# Messages that these filter out of a range are not read, but committing the range removes them too.
BROWSE_ONLY: Final = ("sessionId", "startingTimestamp", "endingTimestamp")
LEASE_DEFAULT_MS: Final = 300_000
LEASE_MAX_MS: Final = 900_000
FETCH_DEFAULT: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where to start or end: by partition, else `everywhere`. Counters, or one of Kafka's two numbers."""

    everywhere: int
    by_partition: Mapping[int, int]

    def at(self, partition: int) -> int:
        return self.by_partition.get(partition, self.everywhere)

    @property
    def leaves_nothing_out(self) -> bool:
        return {self.everywhere, *self.by_partition.values()} == {EARLIEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    settings: ClientSettings
    entity: str
    consume: bool
    starting: StartingOffsets
    ending: StartingOffsets
    starting_ms: int | None
    ending_ms: int | None
    messages_per_trigger: int | None
    tasks_min: int | None
    tasks_max: int | None
    partitions: frozenset[int] | None
    fail_on_data_loss: bool
    states: tuple[int, ...]
    session_id: str | None
    include_body: bool
    include_properties: bool
    include_raw: bool
    filter_pushdown: bool
    consumer: str | None
    lease_ms: int
    fetch_bytes: int
    extensions: bool
    """Whether the broker's own operations may be used at all."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = _Given(options, (*COMMON, *READ), "read")
        settings, entity = given.settings()
        consume = given.choice("mode", ("browse", "consume"), "browse") == "consume"
        states = given.states()
        if consume and STATES.index("scheduled") in states:
            raise ArgumentError("Option 'states': scheduled messages cannot be consumed, only browsed.")
        extensions = given.choice("extensions", ("auto", "never"), "auto") == "auto"
        if consume and not extensions:
            raise ArgumentError("Option 'extensions': mode 'consume' needs the broker's extensions.")
        starting = given.offsets("startingOffsets", EARLIEST)
        if consume:
            _refuse_unread(given, starting)
        return cls(
            settings=settings,
            entity=entity,
            consume=consume,
            starting=starting,
            ending=given.offsets("endingOffsets", LATEST),
            starting_ms=given.number("startingTimestamp"),
            ending_ms=given.number("endingTimestamp"),
            messages_per_trigger=given.number("maxMessagesPerTrigger", least=1),
            tasks_min=given.number("minPartitions", least=1),
            tasks_max=given.number("maxPartitions", least=1),
            partitions=given.partitions(),
            fail_on_data_loss=given.boolean("failOnDataLoss", True),
            states=states,
            session_id=given.text("sessionId"),
            include_body=given.boolean("includeBody", True),
            include_properties=given.boolean("includeProperties", True),
            include_raw=given.boolean("includeRaw", False),
            filter_pushdown=given.boolean("filterPushdown", False),
            consumer=given.text("consumer"),
            lease_ms=given.number("leaseDurationMs", least=1000, most=LEASE_MAX_MS) or LEASE_DEFAULT_MS,
            fetch_bytes=given.number("fetchBytes", least=1024, most=16 * 1024 * 1024) or FETCH_DEFAULT,
            extensions=extensions,
        )


def _refuse_unread(given: _Given, starting: StartingOffsets) -> None:
    """Consuming completes everything up to a batch's end, so all of it must have been read."""
    harm = "it would complete messages that the query never reads"
    for name in BROWSE_ONLY:
        if given.text(name) is not None:
            raise ArgumentError(f"Option '{name}' cannot be combined with mode 'consume': {harm}.")
    if not starting.leaves_nothing_out:
        raise ArgumentError(
            f"Option 'startingOffsets' cannot be anything but earliest in mode 'consume': {harm}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    settings: ClientSettings
    entity: str
    batching: str
    """auto, true or false."""
    generate_ids: bool
    extensions: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        # Spark adds these to the user's own options when it writes.
        given = _Given(options, (*COMMON, *WRITE), "written", ("path", "checkpointLocation", "queryName"))
        settings, entity = given.settings()
        return cls(
            settings=settings,
            entity=entity,
            batching=given.choice("batching", ("auto", "true", "false"), "auto"),
            generate_ids=given.choice("messageIds", ("deterministic", "none"), "deterministic") != "none",
            extensions=given.choice("extensions", ("auto", "never"), "auto") == "auto",
        )


class _Given:
    """The options as Spark passes them, by name in lower case."""

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], what: str, passed_by: Iterable[str] = ()
    ) -> None:
        own = own_options(options)
        self._values = {name.lower(): value for name, value in own.items()}
        known = tuple(known)
        allowed = {name.lower() for name in (*known, *passed_by)}
        unknown = sorted(name for name in own if name.lower() not in allowed)
        if unknown:
            raise ArgumentError(unknown_option(unknown[0], known, (*READ, *WRITE), what))

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def settings(self) -> tuple[ClientSettings, str]:
        settings = ClientSettings.from_connection_string(
            self._connection_string(), entity=self.text("entity")
        )
        if settings.entity is None:
            raise ArgumentError("Option 'entity' is missing, and the connection string has no EntityPath.")
        timeout_ms = self.number("operationTimeoutMs", least=1)
        retries = self.number("retries", least=0)
        settings = replace(
            settings,
            timeout_s=60.0 if timeout_ms is None else timeout_ms / 1000,
            retries=RETRIES_DEFAULT if retries is None else retries,
            certificate=self.text("certificate"),
        )
        return settings, settings.named_entity(None)

    def _connection_string(self) -> str:
        named = [name for name in CONNECTIONS if self.text(name) is not None]
        if len(named) != 1:
            hint = (
                ""
                if self._values
                else " A table keeps its options if it is created without a list of columns."
            )
            raise ArgumentError(f"Exactly one of the options {', '.join(CONNECTIONS)} must be given.{hint}")
        value = self.text(named[0]) or ""
        if named[0] == "connectionStringFile":
            try:
                return Path(value).read_text().strip()
            except OSError as error:
                raise ArgumentError(f"Option 'connectionStringFile': {error}.") from None
        if named[0] == "connectionStringEnv":
            if value not in os.environ:
                raise ArgumentError(f"Option 'connectionStringEnv': there is no variable '{value}'.")
            return os.environ[value]
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        given = self.text(name) or default
        if given.lower() not in choices:
            raise ArgumentError(f"Option '{name}' must be one of {', '.join(choices)}, not '{given}'.")
        return given.lower()

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, least: int = 0, most: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < least or (most is not None and int(value) > most):
            bounds = f"from {least}" + ("" if most is None else f" to {most}")
            raise ArgumentError(f"Option '{name}' must be a whole number {bounds}, not '{value}'.")
        return int(value)

    def states(self) -> tuple[int, ...]:
        names = [name.strip().lower() for name in (self.text("states") or "active").split(",")]
        for name in names:
            if name not in STATES:
                raise ArgumentError(f"Option 'states': '{name}' is none of {', '.join(STATES)}.")
        return tuple(sorted({STATES.index(name) for name in names}))

    def partitions(self) -> frozenset[int] | None:
        value = self.text("partitions")
        if value is None:
            return None
        numbers = [number.strip() for number in value.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise ArgumentError(f"Option 'partitions' must be numbers such as '0,3', not '{value}'.")
        return frozenset(int(number) for number in numbers)

    def offsets(self, name: str, default: int) -> StartingOffsets:
        """`earliest`, `latest`, or `{"0": 23, "1": -2}` by partition; -2 is earliest and -1 latest."""
        value = self.text(name)
        if value is None:
            return StartingOffsets(default, {})
        ends = {"earliest": EARLIEST, "latest": LATEST}
        if value.strip().lower() in ends:
            return StartingOffsets(ends[value.strip().lower()], {})
        wrong = ArgumentError(
            f"Option '{name}' must be earliest, latest, or counters by partition such as "
            f'{{"0": 23, "1": -2}}, not \'{value[:100]}\'.'
        )
        try:
            read = json.loads(value)
        except ValueError:
            raise wrong from None
        if not isinstance(read, dict) or not all(
            key.isdecimal() and type(number) is int and EARLIEST <= number <= COUNTER_MAX
            for key, number in read.items()
        ):
            raise wrong
        return StartingOffsets(default, {int(key): number for key, number in read.items()})
