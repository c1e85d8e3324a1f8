"""Exports traces, metrics and logs over OTLP, as OpenTelemetry's own environment variables say.

The SDK reads most of them itself: the endpoint, headers, timeouts, the sampler, the sizes of batches. What it
leaves to its user is read here: which signals are exported, and the name of the service. Exports are made by
threads, and metrics are collected on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bendybus.errors import ConfigError
from bendybus.gateway.gateway import Gateway
from bendybus.telemetry.figures import Sample, metrics_of
from bendybus.telemetry.tracing import Tracing

__all__ = ["Telemetry"]

logger = logging.getLogger(__name__)

SCOPE: Final = "bendybus"
PROTOCOL: Final = "http/protobuf"
INTERVAL_MS_DEFAULT: Final = 60_000

_SEVERITIES: Final = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}


class Telemetry:
    def __init__(self, version: str, environment: Mapping[str, str] = os.environ) -> None:
        """`ConfigError` if the environment asks for what is not offered."""
        _refuse_protocols(environment)
        wanted = {signal for signal in ("traces", "metrics", "logs") if _exports(signal, environment)}
        self._interval_s = _interval_s(environment)
        self._resource = _resource(version)
        self._scope = InstrumentationScope(SCOPE, version)
        self._began_ns = time.time_ns()
        self._tracing: TracerProvider | None = None
        if "traces" in wanted:
            self._tracing = TracerProvider(resource=self._resource, shutdown_on_exit=False)
            self._tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._logs: LoggerProvider | None = None
        self._handler: _LogHandler | None = None
        if "logs" in wanted:
            self._logs = LoggerProvider(self._resource, shutdown_on_exit=False)
            self._logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._metrics: MetricExporter | None = OTLPMetricExporter() if "metrics" in wanted else None
        self._collecting: asyncio.Task[None] | None = None
        self._samples: Callable[[], Awaitable[Iterable[Sample] | None]] | None = None

    def start(self, gateway: Gateway, samples: Callable[[], Awaitable[Iterable[Sample] | None]]) -> None:
        """`samples`: what there is to export; None while another broker exports the server's metrics."""
        if self._tracing is not None:
            gateway.observer = Tracing(self._tracing.get_tracer(SCOPE))
        if self._logs is not None:
            self._handler = _LogHandler(self._logs.get_logger(SCOPE))
            logging.getLogger(SCOPE).addHandler(self._handler)
        if self._metrics is not None:
            self._samples = samples
            self._collecting = asyncio.create_task(self._collect(), name="telemetry")

    async def close(self) -> None:
        """Export what is left."""
        if self._collecting is not None:
            self._collecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._collecting
            await self._export()
        if self._handler is not None:
            logging.getLogger(SCOPE).removeHandler(self._handler)
        for provider in (self._tracing, self._logs, self._metrics):
            if provider is not None:
                await asyncio.to_thread(provider.shutdown)

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._export()

    async def _export(self) -> None:
        assert self._samples is not None and self._metrics is not None, "metrics are exported"
        try:
            samples = await self._samples()
            if samples is None:
                return
            data = metrics_of(samples, self._resource, self._scope, self._began_ns, time.time_ns())
            await asyncio.to_thread(self._metrics.export, data)
        except Exception:
            # The next interval may be luckier, and nothing else depends on it.
            logger.exception("metrics were not exported")


class _LogHandler(logging.Handler):
    """Passes the server's log lines on."""

    def __init__(self, target: Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        attributes: dict[str, str] = {"logger.name": record.name}
        if record.exc_info is not None and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.message"] = str(record.exc_info[1])
        self._target.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                observed_timestamp=time.time_ns(),
                severity_text=record.levelname,
                severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.UNSPECIFIED),
                body=record.getMessage(),
                attributes=attributes,
            )
        )


def _refuse_protocols(environment: Mapping[str, str]) -> None:
    for signal in ("", "TRACES_", "METRICS_", "LOGS_"):
        name = f"OTEL_EXPORTER_OTLP_{signal}PROTOCOL"
        asked = environment.get(name) or PROTOCOL
        if asked != PROTOCOL:
            raise ConfigError(f"{name} is '{asked}'; only {PROTOCOL} is offered")


def _exports(signal: str, environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    name = f"OTEL_{signal.upper()}_EXPORTER"
    asked = environment.get(name) or "otlp"
    if asked not in ("otlp", "none"):
        raise ConfigError(f"{name} is '{asked}'; allowed are otlp and none")
    return asked == "otlp"


def _interval_s(environment: Mapping[str, str]) -> float:
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    asked = environment.get(name) or str(INTERVAL_MS_DEFAULT)
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigError(f"{name} is '{asked}'; it must be a number of milliseconds")
    return int(asked) / 1000


def _resource(version: str) -> Resource:
    """What is exported is about this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go first."""
    given = Resource.create()
    named = not str(given.attributes.get("service.name", "unknown_service")).startswith("unknown_service")
    own = Resource({"service.version": version, "service.instance.id": uuid.uuid4().hex})
    service = Resource({} if named else {"service.name": SCOPE})
    return own.merge(given).merge(service)
