"""`make bench`: Bendybus and RabbitMQ side by side, measured by the same client in the same minutes.

    python tests/bench/run.py [--quick] [--memory | --store-kinds] [--only bendybus|rabbitmq]

Installs what it needs (Python packages here, Debian packages in load.py and rabbitmq.py), runs the
cases of cases.py, memory.py or store_kinds.py and shows them through report.py. What could not run is
said, with the reason; only a case that ran and failed makes the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cases import Target
    from process import Broker
    from rich.console import Console

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("matplotlib", "psutil", "rich")

COUNT, COUNT_QUICK = 100_000, 20_000
# One in flight is a round trip and an fsync for each message: a few thousand say as much.
COUNT_ONE_IN_FLIGHT, COUNT_ONE_IN_FLIGHT_QUICK = 2_000, 500
ROUNDS, ROUNDS_QUICK = 3, 1
WAITING, WAITING_QUICK = 1_000_000, 100_000
WINDOW = 500
BODY_BYTES = 1024

# More than this share of the cores busy before the start, and others were at work beside the brokers.
BUSY_SHARE = 0.25

# Wide enough for the tables when the output is a file or a pipe.
WIDTH_OF_NO_TERMINAL = 130

NO_PARTITIONED_RABBITMQ = "RabbitMQ has no partitioned queue: one quorum queue stands beside both of ours."


def main() -> int:
    options = parse_options()
    install_python_packages()
    from process import BrokerFailed
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_NO_TERMINAL)
    try:
        import load

        load.build()
    except BrokerFailed as failure:
        return conclude(console, [], [f"everything, for want of a load generator: {failure}"], [], False)
    if options.store_kinds:
        return run_store_kinds(options, console)
    return run_memory(options, console) if options.memory else run_rates(options, console)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Bendybus beside RabbitMQ with the same client.")
    parser.add_argument("--quick", action="store_true", help="fewer messages, one round")
    parser.add_argument("--memory", action="store_true", help="measure memory of a backlog instead of rates")
    parser.add_argument(
        "--store-kinds", action="store_true", help="measure SQLite and PostgreSQL, one to four stores each"
    )
    parser.add_argument("--only", choices=("bendybus", "rabbitmq"), help="measure this broker alone")
    parser.add_argument("--count", type=int, help=f"messages for window {WINDOW}, or waiting with --memory")
    parser.add_argument("--rounds", type=int, help="repetitions of each case; medians are shown")
    parser.add_argument("--stores", type=int, help="messaging stores of Bendybus; its default if not given")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON and plot")
    return parser.parse_args()


def install_python_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing], check=True)


def run_rates(options: argparse.Namespace, console: Console) -> int:
    import cases
    import report

    quick = options.quick
    counts = {
        WINDOW: options.count or (COUNT_QUICK if quick else COUNT),
        1: COUNT_ONE_IN_FLIGHT_QUICK if quick else COUNT_ONE_IN_FLIGHT,
    }
    notes = busy_notes()
    plan = cases.Plan(counts, options.rounds or (ROUNDS_QUICK if quick else ROUNDS), BODY_BYTES)
    with contextlib.ExitStack() as running:
        targets, skipped = start_targets(options, running, console)
        versions = [target.broker.version() for target in targets]
        results = cases.measure(targets, plan, lambda line: console.print(f"[dim]{line}[/dim]"))
    failures = [f"{one.label}: {failure}" for one in results for failure in one.failures]
    notes += [
        f"{one.label}, {one.workload}, window {one.window}: accepted before the close, delivered again "
        f"after it: {one.left_over}"
        for one in results
        if any(one.left_over)
    ]
    if results:
        console.print(report.rates_table(results))
        report.write_json(
            options.results / "rates.json",
            {
                "machine": report.machine(versions),
                "skipped": skipped,
                "failures": failures,
                "notes": notes,
                "ratios": report.ratios(results),
                "results": results,
            },
        )
        report.plot_rates(options.results / "rates.png", results)
        console.print(f"written: {options.results}/rates.json and rates.png", soft_wrap=True)
    if {target.broker.name for target in targets} == {"bendybus", "rabbitmq"}:
        console.print(NO_PARTITIONED_RABBITMQ, soft_wrap=True)
    return conclude(console, notes, skipped, failures, bool(results))


def run_store_kinds(options: argparse.Namespace, console: Console) -> int:
    import cases
    import report
    import store_kinds

    count = options.count or (COUNT_QUICK if options.quick else COUNT)
    notes = busy_notes()
    plan = cases.Plan(
        {WINDOW: count}, options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS), BODY_BYTES
    )
    results, skipped = store_kinds.measure_kinds(plan, lambda line: console.print(f"[dim]{line}[/dim]"))
    failures = [f"{one.label}: {failure}" for one in results for failure in one.failures]
    if results:
        console.print(store_kinds.scaling_table(results))
        report.write_json(
            options.results / "store_kinds.json",
            {
                "machine": report.machine(["Bendybus"]),
                "skipped": skipped,
                "failures": failures,
                "notes": notes,
                "ratios": store_kinds.scaling(results),
                "results": results,
            },
        )
        console.print(f"written: {options.results}/store_kinds.json", soft_wrap=True)
    return conclude(console, notes, skipped, failures, bool(results))


def busy_notes() -> list[str]:
    """Numbers taken beside other work are noisy; say so. Asked before the brokers make work themselves."""
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy <= BUSY_SHARE * cores:
        return []
    return [f"the machine was busy at the start (load average {busy:.2f} on {cores} cores): expect noise"]


def start_targets(
    options: argparse.Namespace, running: contextlib.ExitStack, console: Console
) -> tuple[list[Target], list[str]]:
    """Starts the brokers asked for; those that cannot run are left out, with the reason."""
    from cases import Target
    from process import BrokerFailed

    wanted = queues(options)
    targets: list[Target] = []
    skipped: list[str] = []
    for name in dict.fromkeys(queue.broker for queue in wanted):
        console.print(f"[dim]starting {name}[/dim]")
        try:
            broker = running.enter_context(make_broker(name, options))
        except BrokerFailed as failure:
            skipped.append(f"{name}: {failure}")
            continue
        targets += [
            Target(queue.label, broker, queue.address, queue.partitions)
            for queue in wanted
            if queue.broker == name
        ]
    return targets, skipped


def run_memory(options: argparse.Namespace, console: Console) -> int:
    import report
    from cases import Target
    from load import LoadFailed
    from memory import Footprint, measure_memory
    from process import BrokerFailed

    waiting = options.count or (WAITING_QUICK if options.quick else WAITING)
    footprints: list[Footprint] = []
    versions: list[str] = []
    skipped: list[str] = []
    failures: list[str] = []
    for queue in queues(options):
        console.print(f"[dim]{waiting:,} waiting messages: {queue.label}[/dim]")
        try:
            with make_broker(queue.broker, options) as broker:
                target = Target(queue.label, broker, queue.address, queue.partitions)
                footprints.append(measure_memory(target, waiting, BODY_BYTES))
                versions.append(broker.version())
        except BrokerFailed as failure:
            skipped.append(f"{queue.label}: {failure}")
        except LoadFailed as failure:
            failures.append(f"{queue.label}: {failure}")
    if footprints:
        console.print(report.memory_table(footprints))
        report.write_json(
            options.results / "memory.json",
            {
                "machine": report.machine(versions),
                "skipped": skipped,
                "failures": failures,
                "footprints": footprints,
            },
        )
        console.print(f"written: {options.results}/memory.json", soft_wrap=True)
    return conclude(console, [], skipped, failures, bool(footprints))


class Queue(NamedTuple):
    """A queue to measure, of a broker that need not run yet."""

    label: str
    broker: str
    address: str
    partitions: int


def queues(options: argparse.Namespace) -> list[Queue]:
    from bendybus_server import PARTITIONED_QUEUE, PLAIN_QUEUE
    from rabbitmq import QUEUE_ADDRESS

    every = [
        Queue("RabbitMQ quorum queue", "rabbitmq", QUEUE_ADDRESS, 1),
        Queue("Bendybus, 1 partition", "bendybus", PLAIN_QUEUE, 1),
        Queue("Bendybus, 16 partitions", "bendybus", PARTITIONED_QUEUE, 16),
    ]
    return [queue for queue in every if options.only in (None, queue.broker)]


def make_broker(name: str, options: argparse.Namespace) -> Broker:
    from bendybus_server import Bendybus
    from rabbitmq import RabbitMq

    return RabbitMq() if name == "rabbitmq" else Bendybus(options.stores)


def conclude(
    console: Console, notes: list[str], skipped: list[str], failures: list[str], measured: bool
) -> int:
    """Says what did not go as planned; the exit status."""
    said = (("cyan", "note", notes), ("yellow", "skipped", skipped), ("red", "failed", failures))
    for colour, word, lines in said:
        for line in lines:
            console.print(f"{word}:", style=colour, end=" ")
            console.print(line, markup=False, soft_wrap=True)
    return 1 if failures or not measured else 0


if __name__ == "__main__":
    sys.exit(main())
