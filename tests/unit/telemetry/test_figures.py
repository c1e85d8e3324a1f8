"""The samples of /metrics as metrics of OpenTelemetry."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Metric, Sum
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bendybus.telemetry.figures import Sample, metrics_of


def metrics(*samples: Sample) -> list[Metric]:
    data = metrics_of(samples, Resource({}), InstrumentationScope("test"), 1, 2)
    return list(data.resource_metrics[0].scope_metrics[0].metrics)


def test_a_counter_and_a_gauge_keep_their_labels_and_a_counter_loses_its_ending() -> None:
    labels = r'entity="a\"b\\c",namespace="n"'
    counter, gauge = metrics(
        Sample("sent_total", "counter", "Sent.", (), "sent_total", labels, 3),
        Sample("held", "gauge", "Held.", (), "held", "", 4.5),
    )
    assert (counter.name, counter.description) == ("sent", "Sent.")
    assert isinstance(counter.data, Sum) and counter.data.is_monotonic
    (point,) = counter.data.data_points
    assert (point.value, point.start_time_unix_nano, point.time_unix_nano) == (3, 1, 2)
    assert point.attributes == {"entity": 'a"b\\c', "namespace": "n"}
    assert isinstance(gauge.data, Gauge) and gauge.data.data_points[0].value == 4.5


def test_the_buckets_of_a_histogram_count_only_their_own() -> None:
    def samples(entity: str) -> list[Sample]:
        labels = f'entity="{entity}"'
        counts = {"0.1": 2, "1": 2, "+Inf": 5}
        return [
            *(
                Sample("t", "histogram", "", (0.1, 1.0), "t_bucket", f'{labels},le="{bound}"', count)
                for bound, count in counts.items()
            ),
            Sample("t", "histogram", "", (0.1, 1.0), "t_sum", labels, 9.5),
            Sample("t", "histogram", "", (0.1, 1.0), "t_count", labels, 5),
        ]

    (metric,) = metrics(*samples("a"), *samples("b"))
    assert isinstance(metric.data, Histogram)
    assert [point.attributes for point in metric.data.data_points] == [{"entity": "a"}, {"entity": "b"}]
    for point in metric.data.data_points:
        assert (point.count, point.sum) == (5, 9.5)
        assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([2, 0, 3], [0.1, 1.0])
