"""Topics in memory: messages that rules can read, a broker to publish them, and what subscriptions got."""

from __future__ import annotations

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.types import Timestamp
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.domain.commands import Enqueue, Enqueued, Given, Peek, Reply
from bendybus.domain.duplicates import Identities
from bendybus.domain.filters import (
    Filter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.envelope import admit, render
from bendybus.names import EntityPath, Instant, SequenceNumber


def rule(name: str, what: str | Filter, action: str | None = None) -> RuleDescription:
    rule_filter = SqlFilter(what) if isinstance(what, str) else what
    return RuleDescription(name, rule_filter, None if action is None else SqlRuleAction(action))


def encoded(body: str = "x", due: int | None = None, **user: object) -> bytes:
    """A message with its text as its id."""
    annotations = {} if due is None else {"x-opt-scheduled-enqueue-time": due}
    return encode_message(
        message_annotations=annotations or None,
        properties=Properties(message_id=body),
        application_properties=user or None,
        data=body.encode(),
    )


async def publish(
    topic: Topic, *bodies: str, key: str | None = None, due: Instant | None = None, **user: object
) -> Enqueued:
    """Send these together, as one batch."""
    detects = topic.description.requires_duplicate_detection
    identities = Identities(partitioned=len(topic.hosts) > 1) if detects else None
    at = None if due is None else Timestamp(due)
    payloads = [encoded(body, at, **user) for body in bodies]
    messages = [admit(payload, now(), topic.description, identities)[0] for payload in payloads]
    reply = await topic.host_for(key).ask(Enqueue(messages, None if identities is None else identities.found))
    assert isinstance(reply, Enqueued)
    return reply


async def held(queue: Queue, subqueue: SubQueue = SubQueue.MAIN) -> list[tuple[Message, bytes]]:
    """All messages that wait there, partition by partition, as a receiver would get them."""
    found: list[tuple[Message, bytes]] = []
    for host in queue.hosts:
        reply: Reply = await host.ask(Peek(SequenceNumber(0), 1000, subqueue))
        assert isinstance(reply, Given)
        for message, payload in zip(reply.messages, await host.payloads(reply.messages), strict=True):
            assert payload is not None
            found.append((message, b"".join(render(message, payload, locked=False))))
    return found


async def bodies(queue: Queue, subqueue: SubQueue = SubQueue.MAIN) -> list[str]:
    return [decode_message(payload).data[0].decode() for _, payload in await held(queue, subqueue)]


NEWS = TopicDescription(EntityPath("News"), enable_partitioning=True)
PLAIN = TopicDescription(EntityPath("plain"))


def subscription(name="all", topic="plain", **properties):
    return SubscriptionDescription.of(topic, name, **properties)


async def plain(broker, *names, **properties):
    """The unpartitioned topic and some subscriptions to it."""
    topic = await broker.topics.create(PLAIN)
    made = [await broker.topics.create_subscription(subscription(name, **properties)) for name in names]
    return topic, made
