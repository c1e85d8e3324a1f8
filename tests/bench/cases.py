"""The measured cases: which loads run against which queue, in which order, and their medians.

Targets take turns case by case, and every second round runs in reverse, so that a machine that
slows down or warms up does so for everybody. How a load is measured: generator/main.c; how it is shown:
report.py. Messages of other shapes: shapes.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from load import LoadFailed, drain, load
from measures import PER_MESSAGES, Measured
from process import Broker

__all__ = ["WORKLOADS", "Plan", "Result", "Target", "measure"]

WORKLOADS = ("send", "receive", "both")  # in this order: receive takes what send has left

WARM_UP_MESSAGES = 5_000
WARM_UP_WINDOW = 500

# A case may take this long at least, and may fall to this rate, before it counts as stuck.
CASE_TIMEOUT_MIN_S = 60
SLOWEST_RATE = 200


@dataclass(slots=True, frozen=True)
class Target:
    """One queue of one running broker."""

    label: str
    broker: Broker
    address: str
    partitions: int


@dataclass(slots=True, frozen=True)
class Plan:
    """How much of each case is run. `counts` gives the messages for each window."""

    counts: dict[int, int]
    rounds: int
    body_bytes: int = 1024


@dataclass(slots=True)
class Result:
    """One workload at one window on one target: every run, and the medians over them."""

    workload: str
    window: int
    label: str
    broker: str
    partitions: int
    count: int
    runs: list[Measured] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    left_over: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        values = [run[key] for run in self.runs if key in run]
        return statistics.median(values) if values else None

    @property
    def rate(self) -> float | None:
        return self.median("rate")

    @property
    def cpu_seconds_per_messages(self) -> float | None:
        if not self.cpu_seconds:
            return None
        return statistics.median(self.cpu_seconds) * PER_MESSAGES / self.count


def measure(targets: list[Target], plan: Plan, tell: Callable[[str], None]) -> list[Result]:
    """Runs every case of the plan on every target; a failed run is kept as a failure of its result."""
    results = [
        Result(workload, window, target.label, target.broker.name, target.partitions, count)
        for window, count in plan.counts.items()
        for workload in WORKLOADS
        for target in targets
    ]
    for target in targets:
        _warm_up(target, plan, tell)
    for window in plan.counts:
        for number in range(plan.rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                tell(f"window {window}, round {number + 1} of {plan.rounds}: {target.label}")
                mine = (one for one in results if one.window == window and one.label == target.label)
                _run_round(target, mine, plan.body_bytes)
    return results


def _warm_up(target: Target, plan: Plan, tell: Callable[[str], None]) -> None:
    """Lets caches fill and just-in-time code appear; its failure shows again in the cases themselves."""
    try:
        _load(target, "both", WARM_UP_MESSAGES, WARM_UP_WINDOW, plan.body_bytes)
        _drain(target, plan.body_bytes)
    except LoadFailed as failure:
        tell(f"warm-up of {target.label} failed: {failure}")


def _run_round(target: Target, results: Iterator[Result], body_bytes: int) -> None:
    for result in results:
        before = target.broker.cpu_seconds()
        try:
            measured = _load(target, result.workload, result.count, result.window, body_bytes)
            result.cpu_seconds.append(target.broker.cpu_seconds() - before)
            if result.workload == "receive":  # how long the messages waited in the queue says nothing
                measured.pop("end_to_end_p50_ms", None)
                measured.pop("end_to_end_p99_ms", None)
            result.runs.append(measured)
            if result.workload != "send":
                result.left_over.append(_drain(target, body_bytes))
        except LoadFailed as failure:
            result.failures.append(str(failure))
            _drain_after_failure(target, body_bytes, result)


def _drain_after_failure(target: Target, body_bytes: int, result: Result) -> None:
    try:
        _drain(target, body_bytes)
    except LoadFailed as failure:
        result.failures.append(f"and then: {failure}")


def _load(target: Target, mode: str, count: int, window: int, body_bytes: int) -> Measured:
    timeout_s = max(CASE_TIMEOUT_MIN_S, count / SLOWEST_RATE)
    return load(target.broker.endpoint, target.address, mode, count, window, body_bytes, timeout_s)


def _drain(target: Target, body_bytes: int) -> int:
    """Empties the queue until it stays empty; how many messages were still in it."""
    left_over = 0
    while found := drain(target.broker.endpoint, target.address, body_bytes, CASE_TIMEOUT_MIN_S):
        left_over += found
    return left_over
