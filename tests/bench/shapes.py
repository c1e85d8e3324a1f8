"""`make bench`, section shapes: messages of every shape, at Bendybus, RabbitMQ and Artemis in one run.

    python tests/bench/shapes.py [--quick] [--only BROKER]... [--rows NAME,NAME] [--rounds N] [--docs]
                                  [--pure COMMAND]

The rows are in shape_rows.py, how they are run in shape_runs.py, how they are shown in shape_report.py. The
results go to tests/bench/results/shapes.json, shapes.md and shapes.png. --docs also puts the table into
docs/benchmarks.md. --pure adds the `bendybus` of an environment without the compiled wheel. The exit status
is 1 when a row failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from run import RESULTS, busy_notes, conclude, install_python_packages

if TYPE_CHECKING:
    from process import Broker
    from rich.console import Console
    from shape_results import Comparison

BROKERS = ("bendybus", "rabbitmq", "artemis")
PURE = "pure"
ROUNDS, ROUNDS_QUICK = 5, 1
# A Java virtual machine compiles what it runs often: until then Artemis is slower than it is.
WARM_UP, WARM_UP_QUICK = 200_000, 50_000
# Wide enough for the table when the output is a file or a pipe.
WIDTH_OF_NO_TERMINAL = 190
PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def main() -> int:
    options = parse_options()
    install_python_packages()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and so end the brokers too
    import load
    from process import BrokerFailed
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_NO_TERMINAL)
    try:
        load.build()
    except BrokerFailed as failure:
        return conclude(console, [], [f"everything, for want of a load generator: {failure}"], [], False)
    return run_shapes(options, console)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages, one round: about five minutes")
    parser.add_argument("--only", action="append", choices=BROKERS, help="this broker; may be repeated")
    parser.add_argument("--pure", type=Path, metavar="COMMAND", help="a `bendybus` that is not compiled, too")
    parser.add_argument("--rows", default="", help="these rows, by name, with commas; see shape_rows.py")
    parser.add_argument("--count", type=int, help="messages of a row at most, to try whether it works")
    parser.add_argument("--rounds", type=int, help="repetitions of each row; medians are shown")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON, table and plot")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md")
    return parser.parse_args()


def run_shapes(options: argparse.Namespace, console: Console) -> int:
    import shape_report
    import shape_results
    import shape_rows
    import shape_runs

    try:
        rows = shape_rows.choose(filter(None, options.rows.split(",")))
    except shape_rows.UnknownRow as unknown:
        console.print(str(unknown), style="red", markup=False)
        return 2
    notes = busy_notes()
    rounds = options.rounds or (ROUNDS_QUICK if options.quick else ROUNDS)
    warm_up = WARM_UP_QUICK if options.quick else WARM_UP
    if options.count is not None:
        warm_up = min(warm_up, options.count)
    plan = shape_runs.ShapePlan(rounds, options.quick, warm_up, options.count)
    tell: Callable[[str], None] = lambda line: console.print(line, style="dim", markup=False)  # noqa: E731
    with contextlib.ExitStack() as running:
        names = [*(options.only or BROKERS), *([PURE] if options.pure else [])]
        brokers, skipped = start_brokers(names, options.pure, running, tell)
        versions = [broker.version() for broker in brokers]
        outcomes = shape_runs.measure_shapes(brokers, rows, plan, tell) if brokers else []
    failures = [f"{one.row}, {one.broker}: {failure}" for one in outcomes for failure in one.failures]
    notes += [
        f"{one.row}, {one.broker}: delivered again: {one.left_over}" for one in outcomes if one.left_over
    ]
    if outcomes:
        comparison = shape_results.Comparison(rows, outcomes)
        console.print(shape_report.console_table(comparison))
        for number, note in enumerate(comparison.notes(), 1):
            console.print(f"[{number}] {note}", markup=False)
        write(options, comparison, versions, {"skipped": skipped, "failures": failures, "notes": notes})
        console.print(f"written: {options.results}/shapes.json, shapes.md and shapes.png", soft_wrap=True)
    return conclude(console, notes, skipped, failures, bool(outcomes))


def start_brokers(
    names: Sequence[str], pure: Path | None, running: contextlib.ExitStack, tell: Callable[[str], None]
) -> tuple[list[Broker], list[str]]:
    """Starts the brokers asked for; those that cannot run are left out, with the reason."""
    from process import BrokerFailed

    certificate = make_certificate(running)
    brokers: list[Broker] = []
    skipped: list[str] = []
    for name in dict.fromkeys(names):
        tell(f"starting {name}")
        try:
            brokers.append(running.enter_context(make_broker(name, certificate, pure)))
        except BrokerFailed as failure:
            skipped.append(f"{name}: {failure}")
    return brokers, skipped


def make_certificate(running: contextlib.ExitStack) -> Path:
    """One for all brokers, so that TLS costs each of them the same."""
    from bendybus_server import find_command

    folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bendybus-bench-cert-")))
    subprocess.run([find_command(), "cert", "--out", folder], capture_output=True, check=True)
    return folder


def make_broker(name: str, certificate: Path, pure: Path | None) -> Broker:
    from artemis import Artemis
    from bendybus_server import Bendybus, PureBendybus
    from rabbitmq import RabbitMq
    from shape_entities import ENTITIES

    entities = tuple(ENTITIES.values())
    if name == "rabbitmq":
        return RabbitMq(entities, certificate)
    if name == PURE and pure is not None:
        return PureBendybus(pure, entities, certificate)
    return Artemis(entities, certificate) if name == "artemis" else Bendybus(None, entities, certificate)


def write(
    options: argparse.Namespace, comparison: Comparison, versions: list[str], said: dict[str, list[str]]
) -> None:
    import report
    import shape_report
    import shape_results

    machine = report.machine(versions)
    outcomes = [shape_results.as_json(one) for one in comparison.outcomes.values()]
    results = {"machine": machine, **said, "ratios": comparison.ratios(), "results": outcomes}
    report.write_json(options.results / "shapes.json", results)
    shape_report.plot_shapes(options.results / "shapes.png", comparison)
    sentence = f"{', '.join(versions)}; {machine['cores']} cores of {machine['cpu']}."
    table = options.results / "shapes.md"
    table.write_text(shape_results.markdown(comparison, sentence, "shapes.png"))
    if options.docs:
        plot = os.path.relpath(options.results / "shapes.png", PAGE.parent)
        page = shape_results.markdown(comparison, sentence, plot)
        PAGE.write_text(shape_results.between_markers(PAGE.read_text(), page))


if __name__ == "__main__":
    sys.exit(main())
