"""A report as one self-contained HTML page: a table of all entities, then a section for each.

The page loads nothing, and works without its script (report.js), which sorts tables, filters keys, hides
series and shows values. A column has one unit, which its heading names. Every text from a message is escaped.
The figures: facts.py. The charts: charts.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from pyspark_servicebus.pipelines.charts import Series, bar_chart, time_chart
from pyspark_servicebus.pipelines.facts import CAPTURED, WAITING, Facts

__all__ = ["page"]

# What a page may do: nothing but show itself.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_NAMES: Final = {WAITING: "waiting", CAPTURED: "captured"}
_COLORS: Final = {WAITING: 0, CAPTURED: 1}
_DEAD: Final = 2

Cell = str | float | None
Letters = Mapping[str, Sequence[Mapping[str, Any]]]


def page(title: str, made_at: str, parts: Sequence[Facts], letters: Letters) -> str:
    entities = list(dict.fromkeys([*(each.entity for each in parts), *letters]))
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="when">Made {escape(made_at)} by bendybus pipeline report</p>',
        _overview(entities, parts, letters),
    ]
    for number, entity in enumerate(entities):
        known = [each for each in parts if each.entity == entity]
        body += _section(number, entity, known, letters.get(entity))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_asset('report.css')}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>{_asset('report.js')}</script>\n</body></html>\n"
    )


def _asset(name: str) -> str:
    return (files("pyspark_servicebus.pipelines") / name).read_text(encoding="utf-8")


def _overview(entities: Sequence[str], parts: Sequence[Facts], letters: Letters) -> str:
    found = {(each.entity, each.kind): each for each in parts}
    rows: list[list[Cell]] = []
    for entity in entities:
        waiting, captured = found.get((entity, WAITING)), found.get((entity, CAPTURED))
        dead = letters.get(entity)
        rows.append(
            [
                entity,
                None if waiting is None else waiting.messages,
                None if captured is None else captured.messages,
                None if dead is None else sum(group["messages"] for group in dead),
                None if waiting is None else waiting.skew,
                None if captured is None else captured.skew,
            ]
        )
    names = ("Entity", "Waiting", "Captured", "Dead letters", "Skew, waiting", "Skew, captured")
    return _table(names, rows, "overview")


def _section(
    number: int, entity: str, parts: Sequence[Facts], dead: Sequence[Mapping[str, Any]] | None
) -> list[str]:
    shown = [f"<section><h2>{escape(entity)}</h2>"]
    full = [each for each in parts if each.messages]
    if full:
        shown += [_rates(full), _partitions(full), _percentiles(full, number), _keys(full, number)]
    elif parts:
        shown.append("<p>There are no messages.</p>")
    if dead:
        shown += _letters(dead, number)
    elif dead is not None:
        shown.append("<p>There are no dead letters.</p>")
    return [*shown, "</section>"]


def _rates(parts: Sequence[Facts]) -> str:
    series = [Series(_NAMES[each.kind], _COLORS[each.kind], each.rates) for each in parts]
    starts = [[_seconds_of(at) for at, _ in each.rates] for each in parts]
    chart = time_chart(series, starts, [each.bucket_s for each in parts], "messages per second")
    lengths = " and ".join(dict.fromkeys(_length(each.bucket_s) for each in parts))
    return f"<h3>Messages enqueued, in intervals of {lengths}</h3>{chart}"


def _partitions(parts: Sequence[Facts]) -> str:
    numbers = sorted({number for each in parts for number, _, _ in each.partitions})
    series = []
    for each in parts:
        counts = {number: count for number, count, _ in each.partitions}
        values = [(str(number), float(counts.get(number, 0))) for number in numbers]
        series.append(Series(_NAMES[each.kind], _COLORS[each.kind], values))
    return f"<h3>Messages by partition</h3>{bar_chart(series, 'partition', 'messages', mean=True)}"


def _percentiles(parts: Sequence[Facts], number: int) -> str:
    """Percentiles in rows, so that each column has one unit."""
    columns: list[tuple[str, Mapping[str, float]]] = []
    for each in parts:
        unit, size = _unit(
            each.latency_s.values(), ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "s"))
        )
        columns.append((f"{each.latency_name}, {unit}", _scaled(each.latency_s, size)))
    for each in parts:
        unit, size = _unit(each.size_bytes.values(), ((1 << 20, "MB"), (1 << 10, "KB"), (1, "bytes")))
        columns.append((f"Body {_NAMES[each.kind]}, {unit}", _scaled(each.size_bytes, size)))
    names = ("p50", "p90", "p99", "max")
    rows = [[name, *(values.get(name) for _, values in columns)] for name in names]
    head = ("Percentile", *(name for name, _ in columns))
    return f"<h3>Time and size</h3>{_table(head, rows, f'percentiles-{number}')}"


def _keys(parts: Sequence[Facts], number: int) -> str:
    heading = "<h3>Top keys</h3>"
    counts: dict[str, dict[str, int]] = {}
    places: dict[str, int] = {}
    for each in parts:
        for key, count, partition in each.top_keys:
            counts.setdefault(key, {})[each.kind] = count
            places.setdefault(key, partition)
    if not counts:
        return f"{heading}<p>No message has a key.</p>"
    names = ["Key"]
    for each in parts:
        names += [_NAMES[each.kind].capitalize(), f"{_NAMES[each.kind].capitalize()}, %"]
    rows: list[list[Cell]] = []
    for key, found in counts.items():
        row: list[Cell] = [key]
        for each in parts:
            known = found.get(each.kind)
            row += [known, None if known is None else round(100 * known / each.messages, 1)]
        rows.append([*row, places[key]])
    name = f"keys-{number}"
    said = 'placeholder="Filter keys" aria-label="Filter keys"'
    box = f'<input class="filter" type="search" {said} data-table="{name}">'
    return heading + box + _table((*names, "Partition"), rows, name)


def _letters(groups: Sequence[Mapping[str, Any]], number: int) -> list[str]:
    named = [(group["reason"] or "(none given)", group) for group in groups]
    series = Series("dead letters", _DEAD, [(reason, float(group["messages"])) for reason, group in named])
    rows: list[list[Cell]] = [
        [
            reason,
            group["messages"],
            group["oldest"][:19].replace("T", " "),
            group["newest"][:19].replace("T", " "),
            group["example"] or "",
        ]
        for reason, group in named
    ]
    return [
        "<h3>Dead letters by reason</h3>",
        bar_chart([series], "reason", "messages"),
        _table(("Reason", "Messages", "Oldest, UTC", "Newest, UTC", "Such as"), rows, f"letters-{number}"),
    ]


# -- pieces -------------------------------------------------------------------------------


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], name: str) -> str:
    numeric = [any(isinstance(row[place], int | float) for row in rows) for place in range(len(columns))]
    head = "".join(
        f'<th scope="col"{_class(number)}>{escape(column)}</th>'
        for column, number in zip(columns, numeric, strict=True)
    )
    lines = []
    for row in rows:
        cells = [_cell(value, number) for value, number in zip(row, numeric, strict=True)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _class(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(value: Cell, numeric: bool) -> str:
    if value is None:
        return f"<td{_class(numeric)}>&ndash;</td>"
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return f'<td class="n" data-value="{value}">{text}</td>'


def _unit(values: Iterable[float], units: Sequence[tuple[int, str]]) -> tuple[str, int]:
    """The largest unit in which the largest value is at least two, else the smallest."""
    most = max(values, default=0)
    return next(((name, size) for size, name in units if most >= 2 * size), (units[-1][1], units[-1][0]))


def _scaled(values: Mapping[str, float], size: int) -> dict[str, float]:
    return {name: value if size == 1 else round(value / size, 2) for name, value in values.items()}


def _seconds_of(at: str) -> float:
    return datetime.datetime.fromisoformat(at).replace(tzinfo=datetime.UTC).timestamp()


def _length(seconds: int) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            count = seconds // size
            return f"a {unit}".replace("a hour", "an hour") if count == 1 else f"{count} {unit}s"
    return f"{seconds} seconds"
