"""The samples of /metrics as metrics of OpenTelemetry: the same names, without the `_total` of counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = ["Sample", "metrics_of"]

_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LE: Final = re.compile(r',?le="[^"]*"$')
_ESCAPE: Final = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One line of /metrics, and the family that it belongs to."""

    family: str
    kind: str
    meaning: str
    bounds: tuple[float, ...]
    name: str
    labels: str
    value: float


def metrics_of(
    samples: Iterable[Sample], resource: Resource, scope: InstrumentationScope, began_ns: int, at_ns: int
) -> MetricsData:
    """All samples, of the time `at_ns`. Counters have counted since `began_ns`."""
    by_family: dict[str, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(sample.family, []).append(sample)
    metrics = [_metric(family, began_ns, at_ns) for family in by_family.values()]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(samples: Sequence[Sample], began_ns: int, at_ns: int) -> Metric:
    first = samples[0]
    cumulative = AggregationTemporality.CUMULATIVE
    data: Gauge | Sum | Histogram
    if first.kind == "histogram":
        data = Histogram(_histograms(samples, began_ns, at_ns), cumulative)
    elif first.kind == "counter":
        data = Sum(_numbers(samples, began_ns, at_ns), cumulative, is_monotonic=True)
    else:
        data = Gauge(_numbers(samples, began_ns, at_ns))
    return Metric(first.family.removesuffix("_total"), first.meaning, "", data)


def _numbers(samples: Sequence[Sample], began_ns: int, at_ns: int) -> list[NumberDataPoint]:
    return [NumberDataPoint(_attributes(each.labels), began_ns, at_ns, each.value) for each in samples]


def _histograms(samples: Sequence[Sample], began_ns: int, at_ns: int) -> list[HistogramDataPoint]:
    """One for each set of labels. Prometheus' buckets have all up to their bound; these have their own."""
    upto: dict[str, list[int]] = {}
    sums: dict[str, float] = {}
    for sample in samples:
        if sample.name.endswith("_bucket"):
            upto.setdefault(_LE.sub("", sample.labels), []).append(int(sample.value))
        elif sample.name.endswith("_sum"):
            sums[sample.labels] = sample.value
    points: list[HistogramDataPoint] = []
    for labels, counts in upto.items():
        buckets = [after - before for before, after in pairwise([0, *counts])]
        points.append(
            HistogramDataPoint(
                _attributes(labels),
                began_ns,
                at_ns,
                count=counts[-1],
                sum=sums.get(labels, 0.0),
                bucket_counts=buckets,
                explicit_bounds=samples[0].bounds,
                # Unknown; the encoding leaves them out.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
        )
    return points


def _attributes(labels: str) -> dict[str, str]:
    return {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(labels)}


def _unescaped(found: re.Match[str]) -> str:
    return {"n": "\n"}.get(found[1], found[1])
