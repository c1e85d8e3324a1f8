"""Charts as SVG, drawn here: they follow the page's colours and need nothing in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bendybus_portal.markup import Html, join, tag
from bendybus_portal.series import Series
from bendybus_portal.shown import rate

__all__ = ["bar", "column_chart", "line_chart"]

WIDTH: Final = 480
HEIGHT: Final = 120
SPAN_S: Final = 300.0
SPAN_LEAST_S: Final = 30.0


def line_chart(title: str, unit: str, lines: Sequence[tuple[str, Series]], at: float) -> Html:
    """Up to two lines over the last five minutes at most; the second is drawn dashed.

    Lines are drawn in seconds and in their own unit, and what is seen of them is a matter of the view box. So
    a line only grows from one reading to the next.
    """
    began = min((series.points[0][0] for _, series in lines if series.points), default=at)
    span_s = min(SPAN_S, max(SPAN_LEAST_S, at - began))
    seen = [value for _, series in lines for when, value in series.points if at - when <= span_s]
    top = _round_up(max(seen, default=0.0))
    paths = tag(
        "svg",
        *(
            tag("polyline", points=series.drawn, class_=f"line line-{place}", fill="none")
            for place, (_, series) in enumerate(lines)
        ),
        # A line along an edge is half outside of it.
        viewBox=f"{at - span_s:.1f} {-1.03 * top:g} {span_s:.1f} {1.06 * top:g}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
    now = ", ".join(f"{label} {rate(series.recent(at))} {unit}" for label, series in lines)
    legend = [
        tag(
            "span",
            tag("span", class_=f"swatch swatch-{place}", aria_hidden="true"),
            label,
            tag("strong", rate(series.recent(at))),
            tag("span", unit, class_="soft"),
            class_="legend-item",
        )
        for place, (label, series) in enumerate(lines)
    ]
    grid = join(*(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid") for y in ("3%", "50%", "97%")))
    svg = tag(
        "svg",
        grid,
        paths,
        role="img",
        aria_label=f"{title}, last {_span(span_s)}: {now}",
        class_="chart",
    )
    scale = tag("span", f"{rate(top)} {unit}".strip(), f" · {_span(span_s)}", class_="scale soft nowrap")
    return tag(
        "figure",
        tag("figcaption", tag("span", title, class_="chart-title"), scale),
        svg,
        tag("div", *legend, class_="legend"),
        class_="chart-card",
    )


def column_chart(title: str, columns: Sequence[tuple[str, float]]) -> Html:
    """One bar for each value, with its label beside it."""
    most = max((value for _, value in columns), default=0.0) or 1.0
    width = WIDTH / max(1, len(columns))
    bars = [
        tag(
            "rect",
            tag("title", f"{label}: {rate(value)}"),
            x=f"{width * place + width * 0.1:.1f}",
            y=f"{HEIGHT * (1 - value / most):.1f}",
            width=f"{width * 0.8:.1f}",
            height=f"{HEIGHT * value / most:.1f}",
            class_="column",
        )
        for place, (label, value) in enumerate(columns)
    ]
    told = ", ".join(f"{label} {rate(value)}" for label, value in columns[:20])
    svg = tag(
        "svg",
        *bars,
        viewBox=f"0 -4 {WIDTH} {HEIGHT + 8}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}: {told}",
        class_="chart",
    )
    ends = [columns[0][0], columns[-1][0]] if columns else []
    labels = tag("div", *(tag("span", label, class_="soft") for label in ends), class_="ends")
    scale = tag("span", rate(most), class_="scale soft")
    return tag(
        "figure",
        tag("figcaption", tag("span", title, class_="chart-title"), scale),
        svg,
        labels,
        class_="chart-card",
    )


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def bar(share: float, label: str, tone: str = "") -> Html:
    """A part of a whole, from 0 to 1; `label` is what it says to those who cannot see it."""
    shown = max(0.0, min(1.0, share))
    return tag(
        "span",
        tag("span", class_="bar-fill", style=f"width:{shown * 100:.1f}%"),
        class_=f"bar {tone}".strip(),
        role="img",
        aria_label=label,
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50..."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= step * factor:
                return step * factor
        step *= 10
