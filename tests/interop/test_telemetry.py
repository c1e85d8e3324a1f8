"""`serve --telemetry`: spans in the SDK's own traces, metrics and logs, at a real receiver of OTLP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from fix_otlp import OtlpReceiver
from fix_processes import BENDYBUS
from fix_server import ServerProcess, StartServer
from set_ups import several_brokers


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A receiver to which servers that are started from now on export."""
    receiver = OtlpReceiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    yield receiver
    receiver.close()


@pytest.fixture
def tracing_sdk() -> Iterator[None]:
    """The SDK traces what it does, with the plugin that Azure publishes for it."""
    settings.tracing_implementation = "opentelemetry"
    yield
    settings.tracing_implementation = None


def tracer(sampler: Sampler) -> trace.Tracer:
    return TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("an application")


def send_and_complete(server: ServerProcess, application: trace.Tracer, count: int) -> trace.SpanContext:
    """Everything in one span of the application. Returns its context."""
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        application.start_as_current_span("order") as span,
    ):
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}", partition_key="k") for n in range(count)])
        with client.get_queue_receiver("orders", max_wait_time=20) as receiver:
            left = count
            while left:
                for message in receiver.receive_messages(left, max_wait_time=20):
                    receiver.complete_message(message)
                    left -= 1
    return span.get_span_context()


def start(start_server: StartServer) -> ServerProcess:
    return start_server({"orders": {"EnablePartitioning": True}}, None, "--telemetry")


@pytest.mark.parametrize("brokers", ["2"])
def test_several_brokers_export_once(
    start_server: StartServer, otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, brokers: str
) -> None:
    """Traces and logs of each process, and the metrics of all, added up by one."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    server = start_server({"orders": {"EnablePartitioning": True}}, None, "--telemetry", "--brokers", brokers)
    parent = {"Diagnostic-Id": f"00-{1:032x}-{1:016x}-01"}
    for key in range(16):
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender("orders", keep_alive=0) as sender,
        ):
            sender.send_messages(ServiceBusMessage("", partition_key=str(key), application_properties=parent))
    otlp.wait_until(lambda: incoming(otlp).get("orders") == 16)
    assert server.stop() == 0
    assert incoming(otlp)["orders"] == 16
    assert len([span for span in otlp.spans if span.name == "bendybus.send"]) == 16
    assert otlp.instances("/v1/logs") == int(brokers)
    assert otlp.instances("/v1/metrics") == 1


@pytest.mark.usefixtures("tracing_sdk")
def test_what_the_broker_does_with_a_message_is_in_the_trace_of_its_sender(
    start_server: StartServer, otlp: OtlpReceiver
) -> None:
    server = start(start_server)
    context = send_and_complete(server, tracer(ALWAYS_ON), 1)
    assert server.stop() == 0
    found = {span.name: span for span in otlp.spans}
    assert set(found) == {"bendybus.send", "bendybus.commit", "bendybus.deliver", "bendybus.settle"}
    for span in found.values():
        assert span.trace_id == context.trace_id.to_bytes(16, "big"), span.name
    assert found["bendybus.commit"].parent_span_id == found["bendybus.send"].span_id
    told = {each.key: each.value for each in found["bendybus.settle"].attributes}
    assert told["messaging.destination.name"].string_value == "orders"
    assert told["messaging.servicebus.disposition_status"].string_value == "complete"
    assert told["messaging.batch.message_count"].int_value == 1
    assert otlp.services() == {"bendybus"}


def test_a_batch_has_one_span_with_a_link_to_each_trace(
    start_server: StartServer, otlp: OtlpReceiver
) -> None:
    server = start(start_server)
    parents = [f"00-{n:032x}-{n:016x}-{'01' if n < 4 else '00'}" for n in range(1, 6)]
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(
            [
                ServiceBusMessage("", partition_key="k", application_properties={"Diagnostic-Id": parent})
                for parent in parents
            ]
        )
        sender.close()
    assert server.stop() == 0
    (sent,) = [span for span in otlp.spans if span.name == "bendybus.send"]
    # The last two are of traces that are not sampled.
    assert [int.from_bytes(link.trace_id, "big") for link in sent.links] == [1, 2, 3]
    assert sent.parent_span_id == b""


@pytest.mark.usefixtures("tracing_sdk")
def test_a_trace_that_is_not_sampled_has_no_spans(start_server: StartServer, otlp: OtlpReceiver) -> None:
    server = start(start_server)
    send_and_complete(server, tracer(ALWAYS_OFF), 2)
    assert server.stop() == 0
    assert otlp.spans == []


def incoming(otlp: OtlpReceiver) -> dict[str, float]:
    """Messages that came in, by entity, as was exported last."""
    metric = otlp.metrics.get("bendybus_incoming_messages")
    return {
        attribute.value.string_value: point.as_double or point.as_int
        for point in (metric.sum.data_points if metric is not None else ())
        for attribute in point.attributes
        if attribute.key == "entity"
    }


def delivered(otlp: OtlpReceiver) -> tuple[int, int]:
    """How many deliveries the histogram has counted, and how many are in its buckets."""
    if "bendybus_delivery_seconds" not in otlp.metrics:
        return 0, 0
    (delivery,) = otlp.metrics["bendybus_delivery_seconds"].histogram.data_points
    return delivery.count, sum(delivery.bucket_counts)


def test_metrics_and_logs_are_exported(
    start_server: StartServer, otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-broker")
    server = start(start_server)
    otlp.wait_for("/v1/metrics")
    send_and_complete(server, trace.NoOpTracer(), 4)
    otlp.wait_until(lambda: incoming(otlp).get("orders") == 4 and delivered(otlp) == (4, 4))
    assert otlp.metrics["bendybus_incoming_messages"].sum.is_monotonic
    assert server.stop() == 0
    # Of several brokers that stop at the same time, none can tell the last figures of all.
    assert several_brokers() or (incoming(otlp)["orders"], delivered(otlp)) == (4, (4, 4))
    assert any("stopping" in record.body.string_value for record in otlp.logs)
    assert otlp.spans == []
    assert otlp.services() == {"shop-broker"}


def test_off_imports_nothing_of_it() -> None:
    check = (
        "import sys, bendybus.server.process; "
        "loaded = [name for name in sys.modules if 'telemetry' in name]; "
        "assert loaded == ['bendybus.server.telemetry'], loaded"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
    ],
)
def test_what_the_environment_asks_for_and_is_not_offered_is_refused(
    tmp_path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    done = subprocess.run(
        [BENDYBUS, "serve", "--data", str(tmp_path / "data"), "--port", "0", "--telemetry"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert f"{name} is '{value}'" in done.stderr
