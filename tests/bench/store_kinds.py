"""One queue of 16 partitions over one, two and four messaging stores, for each kind of store.

A PostgreSQL store here is a server of its own, as it would be in production: its processor time counts with
the broker's. The brokers of a kind stand side by side and take turns, so that a slow minute of the machine is
shared by all of them. Beside RabbitMQ: cases.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from bendybus_server import PARTITIONED_QUEUE, Bendybus
from cases import Plan, Result, Target, measure
from measures import PER_MESSAGES
from process import CACHE, BrokerFailed, Endpoint
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from fix_postgres import Postgres, cluster, programs

__all__ = ["KINDS", "measure_kinds", "scaling", "scaling_table"]

KINDS = ("sqlite", "postgresql")
STORES = (1, 2, 4)
PARTITIONS = 16


class BendybusOver(Bendybus):
    """Bendybus with so many stores of one kind, and the servers that these need."""

    def __init__(self, kind: str, stores: int) -> None:
        super().__init__(stores)
        self._kind = kind
        self._servers: list[Postgres] = []
        self._running = contextlib.ExitStack()

    def store_options(self) -> list[str]:
        if self._kind == "sqlite":
            return super().store_options()
        if programs() is None:
            raise BrokerFailed("no PostgreSQL here: neither PyPI's pgserver nor Debian's postgresql")
        for _ in range(self.stores or 1):
            # On the disk that everything else is measured on.
            self._servers.append(self._running.enter_context(cluster(fsync=True, parent=CACHE)))
        urls = [server.url("postgres", name=f"pg-{n}") for n, server in enumerate(self._servers)]
        return [option for url in urls for option in ("--store", url)]

    def start(self) -> Endpoint:
        try:
            return super().start()
        except BaseException:
            self._running.close()
            raise

    def stop(self) -> None:
        super().stop()
        self._running.close()

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + sum(_tree_seconds(server.pid) for server in self._servers)


def _tree_seconds(pid: int) -> float:
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def measure_kinds(plan: Plan, tell: Callable[[str], None]) -> tuple[list[Result], list[str]]:
    """The results by kind and number of stores, and what could not run."""
    results: list[Result] = []
    skipped: list[str] = []
    for kind in KINDS:
        targets: list[Target] = []
        with contextlib.ExitStack() as running:
            for stores in STORES:
                label = f"{kind} x {stores}"
                try:
                    broker = running.enter_context(BendybusOver(kind, stores))
                except BrokerFailed as failure:
                    skipped.append(f"{label}: {failure}")
                else:
                    targets.append(Target(label, broker, PARTITIONED_QUEUE, PARTITIONS))
            results += measure(targets, plan, tell)
    return results, skipped


def scaling(results: list[Result]) -> dict[str, float]:
    """Every rate against that of one store of the same kind, under `workload, window, kind x stores`."""
    rates = {(one.workload, one.window, one.label): one.rate for one in results}
    ratios: dict[str, float] = {}
    for (workload, window, label), rate in rates.items():
        alone = rates.get((workload, window, f"{label.partition(' ')[0]} x 1"))
        if rate and alone:
            ratios[f"{workload}, {window}, {label}"] = round(rate / alone, 3)
    return ratios


def scaling_table(results: list[Result]) -> Table:
    table = Table(title="16 partitions over several stores, medians", title_justify="left")
    for heading in ("stores", "workload", "window"):
        table.add_column(heading, no_wrap=True)
    for heading in ("msg/s", "x one store", f"CPU s, stores too\nper {PER_MESSAGES:,}"):
        table.add_column(heading, justify="right")
    ratios = scaling(results)
    for one in results:
        ratio = ratios.get(f"{one.workload}, {one.window}, {one.label}")
        cpu = one.cpu_seconds_per_messages
        table.add_row(
            one.label,
            one.workload,
            str(one.window),
            f"{one.rate:,.0f}" if one.rate else "[red]failed[/red]",
            f"{ratio:.2f}" if ratio else "",
            f"{cpu:.2f}" if cpu else "",
        )
    return table
