"""Spans of what clients do with messages, in the traces that the clients have begun.

    bendybus.send      a client's messages for one partition, until they are answered
    bendybus.commit    a part of it: until they are durable, or refused
    bendybus.deliver   messages that are sent to a receiver together
    bendybus.settle    messages that a receiver settles together, until that is durable

A span is about a batch. If all its messages are of one context, it is a child of that context; otherwise it
begins a trace and is linked to the contexts. A batch without a context that is sampled has no span: whoever
sends decides what is traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer

from bendybus.domain.commands import Abandon, Command, Complete, DeadLetter, Defer, Release, Reply
from bendybus.domain.messages import Message
from bendybus.errors import BrokerError
from bendybus.gateway.observer import OnReply
from bendybus.names import LockToken
from bendybus.telemetry.contexts import context_of

__all__ = ["Tracing"]

# Delivered messages whose contexts are remembered until they are settled. A context takes about 300 bytes.
REMEMBERED_MAX: Final = 20_000

OUTCOMES: Final[dict[type, str]] = {
    Complete: "complete",
    Abandon: "abandon",
    Release: "release",
    Defer: "defer",
    DeadLetter: "deadletter",
}


class Tracing:
    """The `Observer` of a gateway."""

    def __init__(self, tracer: Tracer, remembered_max: int = REMEMBERED_MAX) -> None:
        self._tracer = tracer
        self._remembered_max = remembered_max
        self._delivered: dict[LockToken, SpanContext] = {}
        """The contexts of delivered messages by their locks, oldest first."""

    def sending(self, entity: str, partition: int, messages: Sequence[Message], done: OnReply) -> OnReply:
        contexts = [context_of(message.payload) for message in messages if message.payload is not None]
        span = self._begin("bendybus.send", SpanKind.SERVER, entity, contexts, len(messages))
        if span is None:
            return done
        span.set_attribute("messaging.destination.partition.id", str(partition))
        commit = self._tracer.start_span("bendybus.commit", trace.set_span_in_context(span))

        def answered(reply: Reply | BrokerError) -> None:
            _end(commit, reply)
            done(reply)
            _end(span, reply)

        return answered

    def delivering(self, entity: str, messages: Sequence[Message], payloads: Sequence[bytes]) -> None:
        contexts = list(map(context_of, payloads))
        span = self._begin("bendybus.deliver", SpanKind.PRODUCER, entity, contexts, len(messages))
        if span is None:
            return
        for message, context in zip(messages, contexts, strict=True):
            if context is not None and message.lock_token is not None:
                self._delivered[message.lock_token] = context
        while len(self._delivered) > self._remembered_max:
            # Their locks were lost, or their receiver is slow.
            del self._delivered[next(iter(self._delivered))]
        span.end()

    def settling(self, entity: str, command: Command, done: OnReply) -> OnReply:
        tokens: Sequence[LockToken] = getattr(command, "lock_tokens", ())
        contexts = [self._delivered.pop(token, None) for token in tokens] if self._delivered else []
        span = self._begin("bendybus.settle", SpanKind.SERVER, entity, contexts, len(tokens))
        if span is None:
            return done
        span.set_attribute("messaging.servicebus.disposition_status", OUTCOMES.get(type(command), "other"))

        def settled(reply: Reply | BrokerError) -> None:
            done(reply)
            _end(span, reply)

        return settled

    def _begin(
        self, name: str, kind: SpanKind, entity: str, contexts: Iterable[SpanContext | None], count: int
    ) -> Span | None:
        sampled = {
            (context.trace_id, context.span_id): context
            for context in contexts
            if context is not None and context.trace_flags.sampled
        }
        if not sampled:
            return None
        found = list(sampled.values())
        parent = trace.set_span_in_context(trace.NonRecordingSpan(found[0])) if len(found) == 1 else None
        return self._tracer.start_span(
            name,
            # Not the context of this task: nothing that the broker does belongs to one client.
            parent if parent is not None else Context(),
            kind=kind,
            links=[Link(context) for context in found],
            attributes={
                "messaging.system": "servicebus",
                "messaging.destination.name": entity,
                "messaging.batch.message_count": count,
            },
        )


def _end(span: Span, reply: Reply | BrokerError) -> None:
    if isinstance(reply, BrokerError):
        span.set_attribute("error.type", type(reply).__name__)
        span.set_status(StatusCode.ERROR, str(reply))
    span.end()
