"""Spans: one for a batch, in the trace of its messages, and none where nobody traces."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from bendybus.domain.commands import Abandon, Complete, Done, Settled
from bendybus.domain.messages import Message
from bendybus.errors import StoreUnavailable
from bendybus.names import LockToken
from bendybus.telemetry.tracing import Tracing
from unit.telemetry.test_contexts import PARENT, SPAN, TRACE, stored

OTHER = f"00-{'1' * 32}-{'2' * 16}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider.get_tracer("test"), remembered_max=2)


def message(parent: str | None, token: bytes = b"") -> Message:
    payload = stored(**({} if parent is None else {"traceparent": parent}))
    made = Message(payload, len(payload))
    made.lock_token = LockToken(token) if token else None
    return made


def deliver(tracing: Tracing, *messages: Message) -> None:
    tracing.delivering("q", messages, [each.payload or b"" for each in messages])


def names(spans: tuple[ReadableSpan, ...]) -> list[str]:
    return [span.name for span in spans]


def test_a_send_and_its_commit_are_parts_of_the_senders_trace(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    answers: list[object] = []
    tracing.sending("q", 7, [message(PARENT), message(None)], answers.append)(Done())
    assert answers == [Done()]
    commit, send = exporter.get_finished_spans()
    assert (commit.name, send.name) == ("bendybus.commit", "bendybus.send")
    assert send.parent is not None and commit.parent is not None and send.attributes is not None
    assert (f"{send.context.trace_id:032x}", f"{send.parent.span_id:016x}") == (TRACE, SPAN)
    assert commit.parent.span_id == send.context.span_id
    assert send.attributes["messaging.batch.message_count"] == 2
    assert send.attributes["messaging.destination.partition.id"] == "7"


def test_a_batch_of_several_traces_is_linked_to_them(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    deliver(tracing, message(PARENT), message(OTHER), message(PARENT))
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE, "1" * 32]


def test_what_is_not_sampled_has_no_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    def done(_: object) -> None: ...

    assert tracing.sending("q", 0, [message(UNSAMPLED), message(None)], done) is done
    deliver(tracing, message(UNSAMPLED, b"t"))
    assert tracing.settling("q", Complete([LockToken(b"t")]), done) is done
    assert exporter.get_finished_spans() == ()


def test_a_settlement_belongs_to_the_trace_of_what_was_delivered_once(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    deliver(tracing, message(PARENT, b"a"))
    for _ in range(2):
        tracing.settling("q", Abandon([LockToken(b"a")]), lambda _: None)(Settled([]))
    _, settled = exporter.get_finished_spans()
    assert settled.name == "bendybus.settle" and settled.attributes is not None
    assert f"{settled.context.trace_id:032x}" == TRACE
    assert settled.attributes["messaging.servicebus.disposition_status"] == "abandon"


def test_only_the_latest_deliveries_are_remembered(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    deliver(tracing, *(message(PARENT, bytes([number])) for number in range(1, 4)))
    tracing.settling("q", Complete([LockToken(b"\x01")]), lambda _: None)(Settled([]))
    assert names(exporter.get_finished_spans()) == ["bendybus.deliver"]
    tracing.settling("q", Complete([LockToken(b"\x03")]), lambda _: None)(Settled([]))
    assert names(exporter.get_finished_spans()) == ["bendybus.deliver", "bendybus.settle"]


def test_a_refusal_is_an_error_of_the_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.sending("q", 0, [message(PARENT)], lambda _: None)(StoreUnavailable("away"))
    for span in exporter.get_finished_spans():
        assert span.status.status_code is StatusCode.ERROR and span.attributes is not None
        assert span.attributes["error.type"] == "StoreUnavailable"
