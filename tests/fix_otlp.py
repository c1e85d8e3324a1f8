"""A receiver of OpenTelemetry's exports: OTLP over HTTP, decoded."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

REQUESTS: dict[str, type[Message]] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class OtlpReceiver:
    """What was exported so far."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Message]] = {path: [] for path in REQUESTS}
        self._arrived = threading.Condition()
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.headers["content-type"] == "application/x-protobuf"
                received.take(self.path, REQUESTS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Not to the console."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, request: Message) -> None:
        with self._arrived:
            self.requests[path].append(request)
            self._arrived.notify_all()

    def wait_for(self, path: str, timeout_s: float = 60) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: self.requests[path], timeout_s), f"nothing came to {path}"

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60) -> None:
        """Check again whenever something has arrived."""
        with self._arrived:
            assert self._arrived.wait_for(holds, timeout_s), "it did not come"

    def instances(self, path: str) -> int:
        """How many processes have exported there."""
        field = {
            "/v1/traces": "resource_spans",
            "/v1/metrics": "resource_metrics",
            "/v1/logs": "resource_logs",
        }
        return len(
            {
                attribute.value.string_value
                for each in _all(self.requests[path], field[path])
                for attribute in each.resource.attributes
                if attribute.key == "service.instance.id"
            }
        )

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests["/v1/traces"]
            for resource in request.resource_spans  # type: ignore[attr-defined]
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The last of each name."""
        return {
            metric.name: metric
            for request in self.requests["/v1/metrics"]
            for resource in request.resource_metrics  # type: ignore[attr-defined]
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    @property
    def logs(self) -> list[LogRecord]:
        return [
            record
            for request in self.requests["/v1/logs"]
            for resource in request.resource_logs  # type: ignore[attr-defined]
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def services(self) -> set[str]:
        """The names under which exports were made."""
        found = [
            *(each.resource for each in _all(self.requests["/v1/traces"], "resource_spans")),
            *(each.resource for each in _all(self.requests["/v1/metrics"], "resource_metrics")),
            *(each.resource for each in _all(self.requests["/v1/logs"], "resource_logs")),
        ]
        return {
            attribute.value.string_value
            for resource in found
            for attribute in resource.attributes
            if attribute.key == "service.name"
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _all(requests: list[Message], field: str) -> list:  # type: ignore[type-arg]
    return [each for request in requests for each in getattr(request, field)]
