"""A report as one self-contained HTML page: tables, plots as inline SVG, no script, no network.

Every text from a message is escaped. The figures: facts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from pyspark_servicebus.pipelines.facts import Facts

__all__ = ["page"]

WIDTH: Final = 760
HEIGHT: Final = 180
LEFT: Final = 56
BOTTOM: Final = 22
TOP: Final = 12

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6b7c; --line: #d5dde5; --bar: #2f6fb2;
  --hot: #c8452d; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4eaf0; --soft: #9fb0c0; --line: #33414f; --bar: #6ea8e0;
    --hot: #f08a70; --paper: #12181f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 820px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.5rem;
  border-bottom: 1px solid var(--line); } h3 { font-size: 1rem; margin-bottom: .3rem; }
p.when { color: var(--soft); margin-top: .2rem; }
table { border-collapse: collapse; margin: .4rem 0 1rem; }
th, td { text-align: left; padding: .15rem 1.2rem .15rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; } th { font-weight: 600; color: var(--soft); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.bar { fill: var(--bar); } .hot { fill: var(--hot); } .axis { stroke: var(--line); }
"""


def page(
    title: str, made_at: str, parts: Sequence[Facts], reasons: Sequence[tuple[str, list[dict[str, Any]]]]
) -> str:
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="when">Made {escape(made_at)} by bendybus pipeline report</p>',
    ]
    for facts in parts:
        body += _section(facts)
    for entity, groups in reasons:
        body += _letters(entity, groups)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _section(facts: Facts) -> list[str]:
    parts = [f"<h2>{escape(facts.title)}</h2>"]
    if not facts.messages:
        return [*parts, "<p>There are no messages.</p>"]
    parts.append(
        _table(
            ("Messages", "Bodies", "Keys", "Oldest", "Newest", "Skew"),
            [
                (
                    f"{facts.messages:,}",
                    _bytes(facts.body_bytes),
                    f"{facts.keys:,}",
                    facts.first,
                    facts.last,
                    f"{facts.skew:.2f}",
                )
            ],
        )
    )
    parts += [
        f"<h3>Rate: messages enqueued a second, by {_length(facts.bucket_s)}</h3>",
        _bars([(at, rate) for at, rate in facts.rates], few_labels=True),
        f"<h3>{escape(facts.latency_name)}, and sizes</h3>",
        _table(
            ("", "p50", "p90", "p99", "max"),
            [
                (facts.latency_name, *(_seconds(value) for value in facts.latency_s.values())),
                ("Size of bodies", *(_bytes(value) for value in facts.size_bytes.values())),
            ],
        ),
        "<h3>Skew: messages by partition</h3>",
        _bars([(str(number), count) for number, count, _ in facts.partitions], mean=True),
        "<h3>Top keys</h3>",
    ]
    if facts.top_keys:
        rows = [
            (key, f"{count:,}", f"{100 * count / facts.messages:.1f} %", partition)
            for key, count, partition in facts.top_keys
        ]
        parts.append(_table(("Key", "Messages", "Share", "Partition"), rows))
    else:
        parts.append("<p>No message has a key.</p>")
    return parts


def _letters(entity: str, groups: list[dict[str, Any]]) -> list[str]:
    parts = [f"<h2>Dead letters of {escape(entity)}</h2>"]
    if not groups:
        return [*parts, "<p>There are none.</p>"]
    rows = [
        (
            group["reason"] or "(none given)",
            f"{group['messages']:,}",
            group["oldest"][:19].replace("T", " "),
            group["newest"][:19].replace("T", " "),
            group["example"] or "",
        )
        for group in groups
    ]
    parts.append(_bars([(row[0], group["messages"]) for row, group in zip(rows, groups, strict=True)]))
    parts.append(_table(("Reason", "Messages", "Oldest", "Newest", "Such as"), rows))
    return parts


# -- pieces -------------------------------------------------------------------------------


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = []
    for row in rows:
        cells = []
        for value in row:
            text = "" if value is None else str(value)
            numeric = ' class="n"' if text[:1].isdigit() and text[4:5] != "-" else ""
            cells.append(f"<td{numeric}>{escape(text)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _bars(values: Sequence[tuple[str, float]], *, mean: bool = False, few_labels: bool = False) -> str:
    """Vertical bars. With `mean`, bars of more than twice the mean are highlighted."""
    most = max((value for _, value in values), default=0) or 1
    average = sum(value for _, value in values) / max(1, len(values))
    room, step = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT) / max(1, len(values))
    parts = [_line(HEIGHT - BOTTOM), _label(LEFT - 6, TOP + 8, _short(most), "end")]
    parts.append(_label(LEFT - 6, HEIGHT - BOTTOM, "0", "end"))
    every = max(1, len(values) // 4) if few_labels else max(1, -(-len(values) // 32))
    for place, (name, value) in enumerate(values):
        height = room * value / most
        x = LEFT + place * step
        kind = "hot" if mean and value > 2 * average else "bar"
        parts.append(
            f'<rect class="{kind}" x="{x + step * 0.1:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" '
            f'width="{step * 0.8:.1f}" height="{height:.1f}"><title>{escape(name)}: {value:,}</title></rect>'
        )
        if place % every == 0:
            shown = name[5:] if few_labels else name
            parts.append(_label(x + step / 2, HEIGHT - 6, shown[:18], "start" if few_labels else "middle"))
    if mean:
        parts.append(_line(HEIGHT - BOTTOM - room * average / most))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _line(y: float) -> str:
    return f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TB"


def _seconds(value: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size * 2:
            return f"{value / size:.1f} {unit}"
    return f"{value:.3f} s"


def _length(seconds: int) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            count = seconds // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{seconds} seconds"
