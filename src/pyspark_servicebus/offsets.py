"""Offsets: the position of a stream in each partition, as Spark keeps them in its checkpoint.

A position is the counter (the low 48 bits of the sequence number) of the last
message that belongs to the batches so far. A batch is `(from, to]` in every
partition. An offset contains the start of its own batch, so that a replay reads the
same range whatever start Spark passes. `flush` makes two offsets with
the same positions different (stream.py). Everything here is values and text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bendybus.errors import ArgumentError

__all__ = ["Offset", "Positions", "behind", "lag_of"]

VERSION: Final = 1

Positions = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    entity: str
    generation: str
    consumer: str
    positions: Positions
    began: Positions | None = None
    flush: int = 0

    def to_json(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "version": VERSION,
            "entity": self.entity,
            "generation": self.generation,
            "consumer": self.consumer,
            "positions": _write(self.positions),
            "flush": self.flush,
        }
        if self.began is not None:
            written["from"] = _write(self.began)
        return written

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Offset:
        try:
            if read["version"] != VERSION:
                raise ArgumentError(
                    f"The checkpoint's offsets are of version {read['version']}; {VERSION} can be read."
                )
            began = read.get("from")
            return cls(
                entity=str(read["entity"]),
                generation=str(read["generation"]),
                consumer=str(read["consumer"]),
                positions=_read(read["positions"]),
                began=None if began is None else _read(began),
                flush=int(read["flush"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ArgumentError("The checkpoint was not written by the servicebus source.") from None


def behind(marks: Positions, read: Positions) -> dict[int, int]:
    """The numbers in each partition that were given and not read: at most so many messages wait there."""
    return {partition: max(0, mark - read.get(partition, 0)) for partition, mark in marks.items()}


def lag_of(progress: Any) -> int | None:
    """How many messages a stream is behind, from its progress; None if no source of it says so.

    `progress` is a query's `lastProgress`, or one of its `recentProgress`. Numbers have gaps where messages
    were cancelled or expired, so this is the largest possible lag.
    """
    told = (
        [json.loads(source["latestOffset"] or "null") for source in progress["sources"]] if progress else []
    )
    lags = [each["lag"] for each in told if isinstance(each, dict) and "lag" in each]
    return sum(lags) if lags else None


def _write(positions: Positions) -> dict[str, int]:
    return {str(partition): positions[partition] for partition in sorted(positions)}


def _read(positions: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(position) for partition, position in positions.items()}
