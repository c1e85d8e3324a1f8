"""How the shapes are shown: a table for the terminal and a plot. In Markdown: shape_results.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from measures import PER_MESSAGES
from rich.table import Table
from shape_results import LABELS, Comparison

__all__ = ["console_table", "plot_shapes"]

COLOURS = {"rabbitmq": "#9aa0a6", "artemis": "#d9a441", "bendybus": "#1b6ca8", "pure": "#7fb2dc"}


def console_table(comparison: Comparison) -> Table:
    table = Table(title="Shapes: messages a second, medians", title_justify="left")
    for number, heading in enumerate(comparison.headings()):
        table.add_column(heading.replace(", ", ",\n"), justify="right" if number else "left", no_wrap=True)
    for line in comparison.lines():
        table.add_row(*(cell.replace("[", r"\[") for cell in line))
    return table


def plot_shapes(path: Path, comparison: Comparison) -> None:
    """Rates on the left, their cost on the right, a group of bars for each row; both scales logarithmic."""
    mpl.use("Agg")  # no display needed
    figure, axes = plt.subplots(1, 2, figsize=(13, 0.55 * len(comparison.rows) + 1.6), sharey=True)
    rates = {key: one.rate for key, one in comparison.outcomes.items()}
    costs = {key: one.cpu_seconds_per_messages for key, one in comparison.outcomes.items()}
    _bars(axes[0], comparison, rates, "messages a second", "{:,.0f}")
    _bars(axes[1], comparison, costs, f"broker CPU seconds per {PER_MESSAGES:,} messages", "{:.1f}")
    axes[0].set_yticks(range(len(comparison.rows)), [row.title for row in comparison.rows], fontsize=8)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(
    axis: Axes, comparison: Comparison, values: dict[tuple[str, str], float | None], title: str, form: str
) -> None:
    height = 0.8 / len(comparison.brokers)
    for place, broker in enumerate(comparison.brokers):
        offset = (place - (len(comparison.brokers) - 1) / 2) * height
        own = [
            (number + offset, value)
            for number, row in enumerate(comparison.rows)
            if (value := values[row.name, broker])
        ]
        bars = axis.barh(
            [at for at, _ in own],
            [value for _, value in own],
            height,
            label=LABELS[broker],
            color=COLOURS[broker],
        )
        axis.bar_label(bars, labels=[form.format(value) for _, value in own], fontsize=6, padding=2)
    axis.set_xscale("log")
    axis.set_title(title, fontsize=10, loc="left")
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)
