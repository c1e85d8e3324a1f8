"""Copies: the sender's bytes as they were, a mark, and nothing that a broker wrote."""

from __future__ import annotations

from bendybus.amqp.message import Header, Properties, encode_message
from bendybus.amqp.types import Symbol, Timestamp
from bendybus.client import ReceivedMessage
from pyspark_servicebus.pipelines.copies import as_sent, checksum, mark_of, revived


def peeked(number: int = 7, **properties: object) -> bytes:
    """As a broker shows a message: its own annotations among the sender's."""
    annotations = {
        Symbol("x-opt-sequence-number"): number,
        Symbol("x-opt-enqueued-time"): Timestamp(number),
        Symbol("x-opt-partition-key"): "ada",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5),
        Symbol("x-opt-mine"): 3,
    }
    return encode_message(
        header=Header(durable=True, ttl=5000, delivery_count=4),
        message_annotations=annotations,
        properties=Properties(message_id="m", group_id=None, absolute_expiry_time=Timestamp(9)),
        application_properties={"n": 5, **properties},
        data=b"body",
    )


def test_a_copy_is_the_message_as_sent_under_its_mark() -> None:
    copy = ReceivedMessage(as_sent(peeked(), "a/7"))
    assert copy.parts.message_annotations == {
        "x-opt-partition-key": "ada",
        "x-opt-scheduled-enqueue-time": Timestamp(5),
        "x-opt-mine": 3,
        "x-opt-bendybus-source": "a/7",
    }
    assert (copy.parts.header.ttl, copy.delivery_count) == (5000, 0)
    assert (copy.message_id, copy.application_properties, copy.body) == ("m", {"n": 5}, b"body")
    assert mark_of(copy.payload) == "a/7"
    assert mark_of(peeked()) is None


def test_a_checksum_sees_what_the_sender_made_and_nothing_else() -> None:
    original = peeked()
    assert checksum(original) == checksum(as_sent(original, "a/7")) == checksum(peeked(number=8))
    assert checksum(original) != checksum(peeked(other=1))


def test_a_copy_of_a_copy_has_one_mark() -> None:
    again = as_sent(as_sent(peeked(), "a/7"), "b/1")
    assert mark_of(again) == "b/1"
    assert len(ReceivedMessage(again).parts.message_annotations) == 4


def test_a_revived_letter_forgets_how_it_died() -> None:
    letter = peeked(DeadLetterReason="Bad", DeadLetterErrorDescription="it was")
    revival = ReceivedMessage(revived(letter, "a/7", "new"))
    assert (revival.application_properties, revival.message_id) == ({"n": 5}, "new")
    assert revival.parts.properties.absolute_expiry_time is None
    assert "x-opt-scheduled-enqueue-time" not in revival.parts.message_annotations
    assert revival.partition_key == "ada" and revival.body == b"body"


def test_a_lifetime_of_more_than_49_days_is_kept() -> None:
    times = {"creation_time": Timestamp(5), "absolute_expiry_time": Timestamp(5 + 60 * 86_400_000)}
    original = encode_message(properties=Properties(message_id="m", **times), data=b"body")
    for copy in (as_sent(original, "a/7"), revived(original, "a/7")):
        parts = ReceivedMessage(copy).parts
        assert parts.header.ttl == 0xFFFFFFFF
        assert parts.properties.creation_time == times["creation_time"]
        assert parts.properties.absolute_expiry_time == times["absolute_expiry_time"]
    assert checksum(original) == checksum(as_sent(original, "a/7"))
