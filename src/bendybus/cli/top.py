"""`bendybus top`: what happens in a server now, by entity or partition, from two readings of its metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import entity_names
from bendybus.cli.output import json_line, printable, show_many
from bendybus.errors import NotSupported, Unauthorized, Unavailable
from bendybus.management.http import HttpClient

__all__ = ["top"]

# Counter -> heading and JSON name of its rate.
RATES: Final = {
    "bendybus_incoming_messages_total": ("In/s", "incoming"),
    "bendybus_outgoing_messages_total": ("Out/s", "outgoing"),
    "bendybus_completed_messages_total": ("Done/s", "completed"),
    "bendybus_abandoned_messages_total": ("Abandoned/s", "abandoned"),
    "bendybus_dead_lettered_messages_total": ("Dead/s", "deadLettered"),
}
MESSAGES: Final = "bendybus_messages"
COUNTS: Final = {("main", "active"): "active", ("dead_letter", "active"): "deadLetters"}

_SAMPLE: Final = re.compile(r"([a-z_]+)\{(.*)\} (\S+)")
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPE: Final = re.compile(r"\\.")

# Moves to the beginning of the screen and clears it.
CLEAR: Final = "\x1b[H\x1b[2J"


@dataclass(slots=True)
class Reading:
    """One page of metrics: counters and counts by entity and partition."""

    at: float
    counters: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    counts: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, page: str, at: float) -> Reading:
        reading = cls(at)
        for line in page.splitlines():
            if not (found := _SAMPLE.fullmatch(line)):
                continue
            name, labels, value = found[1], _labels(found[2]), float(found[3])
            which = (labels.get("entity", ""), labels.get("partition", ""))
            if name in RATES:
                reading.counters.setdefault(which, {})[name] = value
            elif name == MESSAGES and (labels["subqueue"], labels["state"]) in COUNTS:
                shown = COUNTS[labels["subqueue"], labels["state"]]
                reading.counts.setdefault(which, {})[shown] = int(value)
        return reading

    def rates_since(self, before: Reading) -> Iterator[dict[str, object]]:
        """A row for each entity or partition. One that is new, or counts from zero again, has no rates."""
        seconds = max(self.at - before.at, 0.001)
        for which, counted in self.counters.items():
            earlier = before.counters.get(which, {})
            row: dict[str, object] = {"entity": which[0]}
            if which[1]:
                row["partition"] = int(which[1])
            for name, (_, shown) in RATES.items():
                if name in counted:
                    more = counted[name] - earlier.get(name, counted[name])
                    row[shown] = round(max(0.0, more) / seconds, 1)
            yield row | self.counts.get(which, {})


def _labels(text: str) -> dict[str, str]:
    return {name: _ESCAPE.sub(lambda each: _ESCAPES[each[0]], value) for name, value in _LABEL.findall(text)}


@click.command
@click.option(
    "--entity", metavar="ENTITY", help="Only this entity.", shell_complete=entity_names, show_default="all"
)
@click.option("--partitions", is_flag=True, help="A row for each partition.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two readings.",
)
@click.option("--once", is_flag=True, help="Show the rates of one interval, and end.")
@click.option(
    "--max", "max_count", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Rows."
)
@server_command
def top(
    command: Command, entity: str | None, partitions: bool, every: float, once: bool, max_count: int
) -> None:
    """Show the rates of messages by entity or partition, until Ctrl+C.

    The busiest come first. With --output json each interval is one line.
    """
    http = HttpClient(command.namespace(), command.certificate())
    try:
        before = _read(http, partitions)
        while True:
            time.sleep(every)
            now = _read(http, partitions)
            rows = [row for row in now.rates_since(before) if entity is None or _same(row["entity"], entity)]
            rows.sort(key=_busy, reverse=True)
            _show(command, rows[:max_count], clear=not once)
            if once:
                return
            before = now
    except KeyboardInterrupt:
        return
    finally:
        http.close()


def _read(http: HttpClient, partitions: bool) -> Reading:
    answer = http.request("GET", f"/metrics{'?partitions=1' if partitions else ''}")
    page = answer.content.decode("utf-8", "replace")
    if answer.status == 401:
        raise Unauthorized("The key may not read the metrics: it needs Listen on the whole namespace.")
    if answer.status >= 500:
        raise Unavailable(f"The metrics cannot be read now: {answer.status} {answer.reason}.")
    if answer.status != 200 or "bendybus_" not in page:
        raise NotSupported("This server shows no metrics, as Bendybus does: 'bendybus top' cannot watch it.")
    return Reading.of(page, time.monotonic())


def _same(name: object, other: str) -> bool:
    return str(name).lower() == other.lower()


def _busy(row: Mapping[str, object]) -> tuple[float, int]:
    rates = (row.get(shown) for _, shown in RATES.values())
    waiting = row.get("active")
    total = sum(rate for rate in rates if isinstance(rate, float))
    return total, waiting if isinstance(waiting, int) else 0


def _show(command: Command, rows: Sequence[Mapping[str, object]], *, clear: bool) -> None:
    if command.as_json:
        json_line({"at": round(time.time(), 3), "rates": rows})
        return
    if clear:
        click.echo(CLEAR, nl=False)
    columns = {
        "Entity": "entity",
        "Partition": "partition",
        **dict(RATES.values()),
        "Waiting": "active",
        "Dead letters": "deadLetters",
    }
    if not any("partition" in row for row in rows):
        del columns["Partition"]
    show_many(list(columns), ([_cell(row.get(name)) for name in columns.values()] for row in rows), None)


def _cell(value: object) -> object:
    return printable(value) if isinstance(value, str) else value
