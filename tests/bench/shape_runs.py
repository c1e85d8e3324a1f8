"""Runs the rows of shape_rows.py: brokers take turns row by row, every second round in reverse.

Every round goes through all rows, so a ratio between two rows is of the same minutes as well. Nothing is
measured that was not counted: a run in which a message was missing or came twice is a failure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from bendybus_server import Bendybus
from cases import CASE_TIMEOUT_MIN_S, SLOWEST_RATE
from load import LoadFailed, drain, load
from measures import Measured
from process import Broker
from sdk_loads import SdkMissing, run_sdk
from shape import Shape
from shape_entities import ENTITIES
from shape_results import Outcome, Run
from shape_rows import GENERATOR, Cannot, Row, Step, Way

__all__ = ["ShapePlan", "measure_shapes"]

# A row is tried with this share of its messages before it counts.
WARM_UP_SHARE = 10

LATENCIES = ("ack", "end_to_end", "transaction")


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """`warm_up`: plain messages for each broker, until what is compiled at run time is compiled."""

    rounds: int
    quick: bool
    warm_up: int
    most: int | None = None

    def count(self, row: Row) -> int:
        count = row.quick_count if self.quick else row.count
        return row.whole_batches(count if self.most is None else min(count, self.most))


def measure_shapes(
    brokers: Sequence[Broker], rows: Sequence[Row], plan: ShapePlan, tell: Callable[[str], None]
) -> list[Outcome]:
    """Every row at every broker that can do it; a failure is kept, and that row is not tried there again."""
    outcomes = {(row.name, broker.name): _outcome(row, broker, plan) for row in rows for broker in brokers}
    for broker in brokers:
        tell(f"warming up {broker.label}")
        _warm_up(broker, plan.warm_up)
    for number in range(-1, plan.rounds):
        for row in rows:
            tell(f"{f'round {number + 1} of {plan.rounds}' if number >= 0 else 'trying'}: {row.title}")
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                outcome = outcomes[row.name, broker.name]
                if outcome.cannot or outcome.failures:
                    continue
                if number >= 0:
                    _run(row, broker, outcome.count, outcome)
                else:
                    _try(row, broker, outcome)
    return list(outcomes.values())


def _outcome(row: Row, broker: Broker, plan: ShapePlan) -> Outcome:
    way = row.way(broker.name)
    if isinstance(way, Cannot):
        return Outcome(row.name, broker.name, plan.count(row), way.reason, cannot=True)
    return Outcome(row.name, broker.name, plan.count(row), way.note)


def _warm_up(broker: Broker, count: int) -> None:
    """Its failure shows again in the rows."""
    address = broker.address(ENTITIES["queue16"])
    with contextlib.suppress(LoadFailed):
        load(broker.endpoint, address.target, "both", count, 500, 1024, _timeout_s(count))


def _try(row: Row, broker: Broker, outcome: Outcome) -> None:
    """A small run that does not count; when an SDK is not here, the row is left out and says why."""
    try:
        _run(row, broker, row.whole_batches(outcome.count // WARM_UP_SHARE), outcome)
    except SdkMissing as missing:
        outcome.cannot, outcome.said = True, str(missing)
    outcome.runs.clear()
    outcome.left_over = 0


def _run(row: Row, broker: Broker, count: int, outcome: Outcome) -> None:
    way = row.way(broker.name)
    assert isinstance(way, Way)
    try:
        if row.client == GENERATOR:
            run = _run_generator(row, broker, way.shape, count)
        else:
            run = _run_sdk(row, broker, count)
        outcome.runs.append(run)
        outcome.left_over += _drain(row, broker, way.shape)
    except LoadFailed as failure:
        outcome.failures.append(str(failure))
        with contextlib.suppress(LoadFailed):
            _drain(row, broker, way.shape)


def _run_generator(row: Row, broker: Broker, shape: Shape, count: int) -> Run:
    """The row's steps one after another; the measured ones add up."""
    measured: list[Measured] = []
    cpu_seconds = 0.0
    for step in row.steps:
        before = broker.cpu_seconds()
        one = _load(row, step, broker, shape, count)
        if step.measured:
            measured.append(one)
            cpu_seconds += broker.cpu_seconds() - before
    seconds = sum(one["seconds"] for one in measured)
    deliveries = measured[0]["delivery_rate"] if len(measured) == 1 else count / seconds
    return Run(count / seconds, deliveries, cpu_seconds, _latencies(row, measured))


def _latencies(row: Row, measured: list[Measured]) -> dict[str, float]:
    """Medians and the slowest of a hundred. How long messages waited that were sent first says nothing."""
    names = [f"{name}_{share}_ms" for name in LATENCIES for share in ("p50", "p99")]
    if len(row.steps) > 1:
        names = [name for name in names if not name.startswith("end_to_end")]
    lines = [cast("Mapping[str, float]", one) for one in measured]
    return {name: line[name] for line in lines for name in names if name in line}


def _load(row: Row, step: Step, broker: Broker, shape: Shape, count: int) -> Measured:
    address = broker.address(ENTITIES[row.onward if step.onward else row.entity])
    target = broker.address(ENTITIES[row.onward]).target if step.mode == "transact" else ""
    whole = replace(shape, sources=address.sources, target=target)
    window, timeout_s = row.window, _timeout_s(count)
    return load(broker.endpoint, address.target, step.mode, count, window, row.body_bytes, timeout_s, whole)


def _run_sdk(row: Row, broker: Broker, count: int) -> Run:
    assert isinstance(broker, Bendybus)  # the rows say that no other can
    before = broker.cpu_seconds()
    measured = run_sdk(row.client, broker.connection_string, row.entity, count, _timeout_s(count))
    return Run(measured["rate"], measured["rate"], broker.cpu_seconds() - before)


def _drain(row: Row, broker: Broker, shape: Shape) -> int:
    """Empties what the row has used until it stays empty; how many messages were still there."""
    left_over = 0
    for name in filter(None, (row.entity, row.onward)):
        address = broker.address(ENTITIES[name])
        emptying = Shape(sources=address.sources, next_session=shape.next_session)
        timeout_s = CASE_TIMEOUT_MIN_S
        while found := drain(broker.endpoint, address.target, row.body_bytes, timeout_s, emptying):
            left_over += found
    return left_over


def _timeout_s(count: int) -> float:
    return max(CASE_TIMEOUT_MIN_S, count / SLOWEST_RATE)
