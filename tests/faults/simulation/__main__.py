"""Play many seeds and print what came of them, or one with everything that happened.

    python -m faults.simulation --seeds 1000               # seeds that nobody has played, and the kept ones
    python -m faults.simulation --seeds 1000 --from 5000   # these
    python -m faults.simulation --seed 42 --trace
    python -m faults.simulation --brokers 3 --seeds 1000   # of a cluster; with --seed and --from, too

Exit code 1 when an invariant was violated. A seed that fails is played again, alone, with `--seed`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from faults.simulation.cluster_simulation import simulate_cluster
from faults.simulation.ledger import Invariant
from faults.simulation.play import Outcome
from faults.simulation.simulation import simulate

__all__ = ["main"]

# Failing seeds that are named one by one.
NAMED_MAX = 20


# Seeds that failed once, and those that the daily tests play. A change of plans gives them another meaning.
KEPT = (
    *range(32),
    901001,
    901137,
    902542,
    903171,
    5003866,
    7000753,
    7001364,
    7007395,
    9000291,
    9000540,
    9101868,
    20261120148,
)

# The same for clusters, by the number of brokers.
KEPT_OF_CLUSTERS: dict[int, tuple[int, ...]] = {
    2: (*range(6), 8, 112, 20261117233, 776837793862),
    3: (
        *range(6),
        *(19, 25, 44, 62, 77, 94, 105, 106),
        *(20261116426, 20261116438, 20261116489, 20261116535, 20261116663),
        *(910154, 910709, 910713, 930026, 991081),
    ),
    4: (*range(4), 992278, 20261119431),
}

# Fresh seeds begin anywhere in here: no two runs will meet.
FRESH = (10**6, 10**12)


def simulation_of(brokers: int) -> Callable[..., Outcome]:
    return simulate if brokers == 1 else partial(simulate_cluster, brokers=brokers)


def play(seeds: Sequence[int], workers: int, brokers: int) -> Iterator[Outcome]:
    simulation = simulation_of(brokers)
    if workers == 1:
        yield from map(simulation, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(simulation, seeds, chunksize=8)


def kept_of(brokers: int) -> tuple[int, ...]:
    return KEPT if brokers == 1 else KEPT_OF_CLUSTERS[brokers]


def play_aloud(seed: int, brokers: int, *, trace: bool) -> int:
    outcome = simulation_of(brokers)(seed, tell=print if trace else None)
    for kind, what in outcome.violations:
        print(f"{kind.value}: {what}")  # noqa: T201
    print(  # noqa: T201
        f"seed {seed}: {outcome.steps:,} steps, {outcome.virtual_s:.0f} s of virtual time, "
        f"fingerprint {outcome.fingerprint}"
    )
    return 1 if outcome.violations else 0


def show(outcomes: list[Outcome], seconds: float, brokers: int) -> None:
    from rich.console import Console
    from rich.table import Table

    subject = "the whole broker" if brokers == 1 else f"{brokers} brokers"
    table = Table(title=f"{len(outcomes):,} simulations of {subject} in {seconds:.0f} s")
    table.add_column("what happened")
    table.add_column("count", justify="right")
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    hours = sum(outcome.virtual_s for outcome in outcomes) / 3600
    table.add_row("seeds", f"{len(outcomes):,}")
    table.add_row("steps", f"{sum(outcome.steps for outcome in outcomes):,}")
    table.add_row("hours of virtual time", f"{hours:,.1f}")
    for name, number in counts.items():
        table.add_row(name, f"{number:,}")
    table.add_section()
    violations = Counter(kind for outcome in outcomes for kind, _ in outcome.violations)
    for kind in Invariant:
        number = violations[kind]
        table.add_row(kind.value, f"[{'red' if number else 'green'}]{number:,}")
    console = Console()
    console.print(table)
    failed = [outcome for outcome in outcomes if outcome.violations]
    for outcome in failed[:NAMED_MAX]:
        kind, what = outcome.violations[0]
        console.print(f"[red]seed {outcome.seed}[/]: {kind.value}: {what[:300]}", highlight=False)
    verdict = f"[red]{len(failed)} seeds failed" if failed else "[green]everything holds"
    console.print(f"{verdict}[/]: {len(outcomes):,} seeds of {subject} were played", highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.simulation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, dest="first", help="the first; if not given, a fresh one")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument(
        "--brokers", type=int, default=1, choices=range(1, 5), help="of a cluster, if several"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything that happens")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes to play in")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return play_aloud(arguments.seed, arguments.brokers, trace=arguments.trace)
    first, kept = arguments.first, ()
    if first is None:
        first, kept = random.SystemRandom().randrange(*FRESH), kept_of(arguments.brokers)
    also = f", and {len(kept)} kept ones" if kept else ""
    print(f"{arguments.seeds} seeds, --from {first}{also}", flush=True)  # noqa: T201
    started = time.monotonic()
    outcomes = list(
        play([*kept, *range(first, first + arguments.seeds)], arguments.workers, arguments.brokers)
    )
    show(outcomes, time.monotonic() - started, arguments.brokers)
    return 1 if any(outcome.violations for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
