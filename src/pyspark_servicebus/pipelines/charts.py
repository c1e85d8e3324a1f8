"""Charts as inline SVG: bars of one or several series, with axes, their names and a legend.

Each bar has its value as text, for readers without a mouse and for the page's script (report.js), which shows
it under the pointer. A series can be hidden by its class. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["Series", "bar_chart", "legend", "time_chart"]

WIDTH: Final = 760
HEIGHT: Final = 220
LEFT: Final = 64
RIGHT: Final = 8
BOTTOM: Final = 44
TOP: Final = 14
GRID_LINES: Final = 5
BAR_MAX: Final = 60
LABELS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    color: int
    """Which of the page's colours it has."""
    values: Sequence[tuple[str, float]]
    """Labels and values."""


def legend(series: Sequence[Series], mean: bool = False) -> str:
    """Names and colours. The script makes each a switch."""
    items = [
        f'<button type="button" class="key" data-series="s{each.color}" aria-pressed="true">'
        f'<span class="swatch s{each.color}"></span>{escape(each.name)}</button>'
        for each in series
    ]
    if mean:
        items.append('<span class="key"><span class="swatch mean"></span>mean</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def bar_chart(series: Sequence[Series], x_name: str, y_name: str, *, mean: bool = False) -> str:
    """Bars side by side for each label. All series have the same labels."""
    labels = [label for label, _ in series[0].values]
    most = _most(series)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    width = min(BAR_MAX, step * 0.8 / len(series))
    parts = _axes(most, x_name, y_name)
    for number, each in enumerate(series):
        for place, (label, value) in enumerate(each.values):
            x = LEFT + (place + 0.5) * step + (number - len(series) / 2) * width
            parts.append(_bar(each, label, value, most, x, width))
        if mean:
            y = _y(sum(value for _, value in each.values) / max(1, len(each.values)), most)
            parts.append(
                f'<line class="mean s{each.color}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            )
    every = -(-len(labels) // LABELS_MAX)
    room = max(3, int(step * every / 6.5))
    parts += [
        _label(LEFT + (place + 0.5) * step, HEIGHT - BOTTOM + 14, _cut(label, room), "middle")
        for place, label in enumerate(labels)
        if place % every == 0
    ]
    return legend(series, mean) + _svg(parts, f"{y_name} by {x_name}")


def time_chart(
    series: Sequence[Series], starts: Sequence[Sequence[float]], lengths: Sequence[float], y_name: str
) -> str:
    """Bars over time: for each series the starts of its bars in seconds, and how long each lasts."""
    first = min(min(each) for each in starts if each)
    last = max(max(each) + length for each, length in zip(starts, lengths, strict=True) if each)
    scale = (WIDTH - LEFT - RIGHT) / max(last - first, 1e-9)
    most = _most(series)
    parts = _axes(most, "time, UTC", y_name)
    for number, (each, begins, length) in enumerate(zip(series, starts, lengths, strict=True)):
        width = length * scale * 0.9 / len(series)
        for begin, (label, value) in zip(begins, each.values, strict=True):
            x = LEFT + (begin - first) * scale + number * width
            parts.append(_bar(each, label, value, most, x, max(1.0, width)))
    named = {
        begin: label
        for each, begins in zip(series, starts, strict=True)
        for begin, (label, _) in zip(begins, each.values, strict=True)
    }
    for begin in _spread(sorted(named), 5):
        x = LEFT + (begin - first) * scale
        anchor = "end" if x > WIDTH - 90 else "start"
        parts.append(_label(x, HEIGHT - BOTTOM + 14, named[begin][5:], anchor))
    return legend(series) + _svg(parts, f"{y_name} over time")


# -- pieces -------------------------------------------------------------------------------


def _most(series: Sequence[Series]) -> float:
    """The top of the scale: the largest value, or a little more, so that the grid has round numbers."""
    most = max((value for each in series for _, value in each.values), default=0) or 1
    return math.ceil(most / _grid(most) - 1e-9) * _grid(most)


def _grid(most: float) -> float:
    """The distance of grid lines: 1, 2 or 5 times a power of ten."""
    rough = most / GRID_LINES
    power = 10.0 ** math.floor(math.log10(rough))
    return next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))


def _y(value: float, most: float) -> str:
    return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most:.1f}"


def _axes(most: float, x_name: str, y_name: str) -> list[str]:
    parts = []
    for line in range(round(most / _grid(most)) + 1):
        value = _grid(most) * line
        y = _y(value, most)
        kind = "grid" if line else "axis"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_label(LEFT - 6, float(y) + 4, f"{value:.4g}", "end"))
    parts.append(_label((LEFT + WIDTH) / 2, HEIGHT - 6, x_name, "middle", "name"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="name" x="12" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle:.1f})">'
        f"{escape(y_name)}</text>"
    )
    return parts


def _bar(series: Series, label: str, value: float, most: float, x: float, width: float) -> str:
    y = _y(value, most)
    height = HEIGHT - BOTTOM - float(y)
    told = f"{label}, {series.name}: {value:,}"
    return (
        f'<rect class="s{series.color}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(told)}</title></rect>"
    )


def _label(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _spread(values: Sequence[float], count: int) -> Sequence[float]:
    every = max(1, -(-len(values) // count))
    return values[::every]


def _svg(parts: Sequence[str], name: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
    )
