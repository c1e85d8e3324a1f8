"""How results are shown: a table for people, JSON for machines, a plot for the page.

Reads results only; what they mean and how they came about: cases.py and memory.py.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
from cases import WORKLOADS, Result
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from measures import PER_MESSAGES
from memory import Footprint
from rich.table import Table

__all__ = ["machine", "memory_table", "plot_rates", "rates_table", "ratios", "write_json"]

BASELINE = "rabbitmq"
WORKLOAD_NAMES = {"send": "send only", "receive": "receive only", "both": "both at once"}
COLOURS = ("#9aa0a6", "#7fb069", "#1b6ca8")  # baseline grey, then ours
MEGABYTE = 1_000_000


def rates_table(results: list[Result]) -> Table:
    table = Table(title="Messages a second, medians", title_justify="left")
    for heading in ("workload", "window", "queue"):
        table.add_column(heading, no_wrap=True)
    cpu_heading = f"broker CPU s\nper {PER_MESSAGES:,}"
    for heading in ("msg/s", "x RabbitMQ", cpu_heading, "ack ms\np50 / p99", "end to end ms\np50 / p99"):
        table.add_column(heading, justify="right")
    previous = None
    for result in results:
        case = (result.workload, result.window)
        if previous not in (None, case):
            table.add_section()
        first = previous != case
        previous = case
        table.add_row(
            WORKLOAD_NAMES[result.workload] if first else "",
            str(result.window) if first else "",
            result.label,
            _number(result.rate, "{:,.0f}") if result.rate is not None else "[red]failed[/red]",
            _number(ratio(result, results), "{:.2f}"),
            _number(result.cpu_seconds_per_messages, "{:.2f}"),
            _pair(result, "ack"),
            _pair(result, "end_to_end"),
        )
    return table


def memory_table(footprints: list[Footprint]) -> Table:
    table = Table(title="Memory of a backlog", title_justify="left")
    table.add_column("queue")
    for heading in ("idle MB", "loaded MB", "waiting", "bytes of memory\neach", "disk MB"):
        table.add_column(heading, justify="right")
    for one in footprints:
        table.add_row(
            one.label,
            f"{one.idle_bytes / MEGABYTE:,.0f}",
            f"{one.loaded_bytes / MEGABYTE:,.0f}",
            f"{one.waiting:,}",
            f"{one.bytes_per_waiting_message:,.0f}",
            f"{one.disk_bytes / MEGABYTE:,.0f}",
        )
    return table


def ratio(result: Result, results: Iterable[Result]) -> float | None:
    """The rate against RabbitMQ's in the same case; none for RabbitMQ itself or without it."""
    if result.broker == BASELINE or result.rate is None:
        return None
    for other in results:
        if other.broker == BASELINE and (other.workload, other.window) == (result.workload, result.window):
            return result.rate / other.rate if other.rate else None
    return None


def ratios(results: list[Result]) -> dict[str, float]:
    """Every ratio to RabbitMQ under `workload, window, queue`."""
    named = {f"{one.workload}, {one.window}, {one.label}": ratio(one, results) for one in results}
    return {name: round(value, 3) for name, value in named.items() if value is not None}


def write_json(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, default=_as_json) + "\n")


def machine(versions: list[str]) -> dict[str, object]:
    """Where and when the numbers were taken; they mean little without it."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = (line for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        model = next(names, model).partition(": ")[2]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "brokers": list(dict.fromkeys(versions)),
    }


def plot_rates(path: Path, results: list[Result]) -> None:
    """One row for each window: rates on the left, what they cost in CPU on the right."""
    mpl.use("Agg")  # no display needed
    windows = list(dict.fromkeys(result.window for result in results))
    figure, axes = plt.subplots(len(windows), 2, figsize=(11, 3.6 * len(windows)), squeeze=False)
    for row, window in zip(axes, windows, strict=True):
        chosen = [result for result in results if result.window == window]
        title = f"{window} in flight, {chosen[0].count:,} messages"
        _bars(row[0], chosen, [result.rate for result in chosen], f"messages a second ({title})", "{:,.0f}")
        costs = [result.cpu_seconds_per_messages for result in chosen]
        _bars(row[1], chosen, costs, f"broker CPU seconds per {PER_MESSAGES:,} messages", "{:.1f}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(axis: Axes, results: list[Result], values: list[float | None], title: str, form: str) -> None:
    labels = list(dict.fromkeys(result.label for result in results))
    width = 0.8 / len(labels)
    for place, (label, colour) in enumerate(zip(labels, COLOURS, strict=False)):
        own = [
            (WORKLOADS.index(result.workload), value or 0.0)
            for result, value in zip(results, values, strict=True)
            if result.label == label
        ]
        offset = (place - (len(labels) - 1) / 2) * width
        bars = axis.bar([at + offset for at, _ in own], [v for _, v in own], width, label=label, color=colour)
        axis.bar_label(bars, labels=[form.format(value) for _, value in own], fontsize=7, padding=2)
    axis.set_xticks(range(len(WORKLOADS)), [WORKLOAD_NAMES[workload] for workload in WORKLOADS])
    axis.set_title(title, fontsize=10, loc="left")
    axis.margins(y=0.12)
    axis.spines[["top", "right"]].set_visible(False)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _pair(result: Result, name: str) -> str:
    p50, p99 = result.median(f"{name}_p50_ms"), result.median(f"{name}_p99_ms")
    return "" if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f}"


def _as_json(value: object) -> object:
    if isinstance(value, Result):
        medians = {"rate": value.rate, f"cpu_s_per_{PER_MESSAGES}": value.cpu_seconds_per_messages}
        return {**asdict(value), "median": medians}
    if isinstance(value, Footprint):
        return {**asdict(value), "bytes_per_waiting_message": value.bytes_per_waiting_message}
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
