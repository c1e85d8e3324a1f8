"""Sending: one message, many, batches; what a message carries and how large it may be."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader
from azure.servicebus.exceptions import MessageSizeExceededError

from interop.sdk import SdkQueue, bodies

# "Maximum message size: 256 KB (Standard tier)"
LIMIT_BYTES = 256 * 1024


def test_a_message_arrives_with_everything_its_sender_wrote(sdk_queue: SdkQueue) -> None:
    properties: dict[str | bytes, object] = {
        "text": "ü",
        "whole": -5,
        "large": 2**31 - 1,
        "float": 1.5,
        "yes": True,
        "nothing": None,
        "uuid": uuid.UUID(int=7),
    }
    sdk_queue.sender.send_messages(
        ServiceBusMessage(
            b"body",
            application_properties=properties,
            message_id="id-1",
            correlation_id="correlation",
            content_type="text/plain",
            subject="subject",
            to="there",
            reply_to="here",
            reply_to_session_id="s-2",
            partition_key="key",
            time_to_live=timedelta(hours=1),
        )
    )
    message = sdk_queue.receive_one()
    sdk_queue.complete(message)
    assert b"".join(message.body) == b"body"
    assert message.application_properties is not None
    assert {_text(name): _text(value) for name, value in message.application_properties.items()} == properties
    assert (message.message_id, message.correlation_id, message.subject) == ("id-1", "correlation", "subject")
    assert (message.content_type, message.to, message.reply_to) == ("text/plain", "there", "here")
    assert (message.reply_to_session_id, message.partition_key) == ("s-2", "key")
    assert message.time_to_live == timedelta(hours=1)


def _text(value: object) -> object:
    """The SDK gives texts back as bytes inside application properties."""
    return value.decode() if isinstance(value, bytes) else value


def test_the_broker_adds_number_time_and_lock(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("x")
    message = sdk_queue.receive_one()
    assert message.sequence_number is not None and message.sequence_number > 0
    # That is of another entity, from which it was forwarded.
    assert message.enqueued_sequence_number is None
    assert message.delivery_count == 0
    assert message.lock_token is not None
    enqueued, locked_until = message.enqueued_time_utc, message.locked_until_utc
    assert enqueued is not None and locked_until is not None
    # Both processes read the same clock.
    assert abs(enqueued - datetime.now(UTC)) < timedelta(seconds=30)
    assert enqueued < locked_until <= datetime.now(UTC) + timedelta(minutes=1)
    sdk_queue.complete(message)


@pytest.mark.parametrize(
    ("field", "body_type", "body"),
    [
        ("data_body", AmqpMessageBodyType.DATA, [b"two", b"parts"]),
        ("value_body", AmqpMessageBodyType.VALUE, {b"answer": 42, b"list": [1, 2]}),
        ("sequence_body", AmqpMessageBodyType.SEQUENCE, [[1, b"x"], [2]]),
    ],
)
def test_every_kind_of_body_arrives(
    sdk_queue: SdkQueue, field: str, body_type: AmqpMessageBodyType, body: Any
) -> None:
    message = AmqpAnnotatedMessage(
        **{field: body},
        header=AmqpMessageHeader(durable=True, priority=9),
        annotations={"my-annotation": 5},
        footer={"my-footer": "end"},
    )
    sdk_queue.sender.send_messages(message)
    received = sdk_queue.receive_one()
    sdk_queue.complete(received)
    raw = received.raw_amqp_message
    assert received.body_type is body_type
    assert (raw.body if body_type is AmqpMessageBodyType.VALUE else list(raw.body)) == body
    assert raw.header is not None and (raw.header.durable, raw.header.priority) == (True, 9)
    assert raw.annotations is not None and raw.annotations[b"my-annotation"] == 5
    assert raw.footer in ({b"my-footer": b"end"}, {"my-footer": "end"})


def test_what_a_sender_claims_in_the_brokers_name_is_dropped(sdk_queue: SdkQueue) -> None:
    annotations = {"x-opt-sequence-number": 99, "x-opt-enqueued-time": 1, "x-opt-locked-until": 1}
    sdk_queue.sender.send_messages(AmqpAnnotatedMessage(data_body=b"forged", annotations=annotations))
    message = sdk_queue.receive_one()
    sdk_queue.complete(message)
    assert message.sequence_number != 99
    assert message.enqueued_time_utc is not None and message.enqueued_time_utc.year > 2000


def test_a_message_without_an_id_is_given_one(sdk_queue: SdkQueue) -> None:
    sdk_queue.sender.send_messages(AmqpAnnotatedMessage(data_body=b"x"))
    message = sdk_queue.receive_one()
    sdk_queue.complete(message)
    assert message.message_id


def test_an_empty_message_is_a_message(sdk_queue: SdkQueue) -> None:
    sdk_queue.send("")
    message = sdk_queue.receive_one()
    sdk_queue.complete(message)
    assert str(message) == ""


def test_a_list_of_messages_is_sent_at_once(sdk_queue: SdkQueue) -> None:
    contents = [str(number) for number in range(40)]
    sdk_queue.sender.send_messages([ServiceBusMessage(content) for content in contents])
    messages = sdk_queue.receive(40)
    sdk_queue.complete(*messages)
    assert sorted(bodies(messages), key=int) == contents


def test_a_batch_arrives_whole_and_in_order(sdk_queue: SdkQueue) -> None:
    batch = sdk_queue.sender.create_message_batch()
    for number in range(50):
        batch.add_message(ServiceBusMessage(str(number), application_properties={"number": number}))
    sdk_queue.sender.send_messages(batch)
    messages = sorted(sdk_queue.receive(50), key=lambda message: message.sequence_number or 0)
    sdk_queue.complete(*messages)
    assert bodies(messages) == [str(number) for number in range(50)]
    assert [(m.application_properties or {})[b"number"] for m in messages] == list(range(50))


def test_a_batch_holds_as_much_as_a_message_may(sdk_queue: SdkQueue) -> None:
    batch = sdk_queue.sender.create_message_batch()
    assert batch.max_size_in_bytes == LIMIT_BYTES
    while True:
        try:
            batch.add_message(ServiceBusMessage(b"x" * 10_000))
        except MessageSizeExceededError:
            break
    sdk_queue.sender.send_messages(batch)
    messages = sdk_queue.receive(len(batch))
    sdk_queue.complete(*messages)
    assert len(messages) == len(batch) == 26


def test_a_message_as_large_as_allowed_arrives_whole(sdk_queue: SdkQueue) -> None:
    body = bytes(range(256)) * 1000
    sdk_queue.sender.send_messages(ServiceBusMessage(body))
    message = sdk_queue.receive_one()
    sdk_queue.complete(message)
    assert b"".join(message.body) == body


def test_a_message_too_large_is_refused_and_the_sender_goes_on(sdk_queue: SdkQueue) -> None:
    with pytest.raises(MessageSizeExceededError):
        sdk_queue.sender.send_messages(ServiceBusMessage(b"x" * (LIMIT_BYTES + 1024)))
    sdk_queue.send("small")
    message = sdk_queue.receive_one()
    sdk_queue.complete(message)
    assert str(message) == "small"
