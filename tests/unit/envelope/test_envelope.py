"""What a sender wrote is what a receiver reads, but for what the broker adds."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.codec import encode
from bendybus.amqp.message import Header, Properties, decode_message, encode_message
from bendybus.amqp.types import Int, Symbol, Timestamp, UInt, ULong
from bendybus.domain.commands import Enqueue
from bendybus.domain.duplicates import Identities
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Amendment, Message, MessageState, Origin, Posting
from bendybus.domain.partition import Partition
from bendybus.envelope import (
    admit,
    admit_batch,
    readmit,
    render,
    render_browsed,
    render_locked,
    render_peeked,
)
from bendybus.errors import ArgumentError, InvalidOperation, MessageSizeExceeded
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber

AT = Instant(1_700_000_000_000)
QUEUE = QueueDescription(EntityPath("orders"))
DEDUP = QueueDescription(EntityPath("orders"), requires_duplicate_detection=True)
TOKEN = LockToken(bytes(range(16)))


def enqueued(payload: bytes, description: QueueDescription = QUEUE) -> Message:
    message, _ = admit(payload, AT, description)
    message.sequence_number = SequenceNumber(5 << 48 | 7)
    message.enqueued_at = AT
    message.lock_token = TOKEN
    message.locked_until = Instant(AT + 60_000)
    return message


def received(message: Message, *, locked: bool = True):
    assert message.payload is not None
    return decode_message(b"".join(render(message, message.payload, locked=locked)))


def sent(**parts: object) -> bytes:
    return encode_message(**{"properties": Properties(message_id="m1"), "data": b"body", **parts})


def test_the_bare_message_passes_through_byte_for_byte():
    bare = encode_message(
        properties=Properties(message_id=ULong(7), subject="s", content_type=Symbol("text/plain")),
        application_properties={"a": Int(1), "b": [1, "x"]},
        data=[b"one", b"two"],
        footer={"x-f": 1},
    )
    message = enqueued(encode_message(header=Header(durable=True), message_annotations={"x-k": "v"}) + bare)
    _, body = render(message, message.payload, locked=True)
    assert body == bare


def test_the_broker_writes_header_and_annotations_as_the_sdks_cast_them():
    message = enqueued(
        sent(header=Header(durable=True, priority=9, ttl=5000), message_annotations={"x-mine": "kept"})
    )
    message.delivery_count = 2
    seen = received(message)
    assert seen.header == Header(durable=True, priority=9, ttl=5000, delivery_count=2)
    assert seen.message_annotations == {
        "x-opt-enqueued-time": AT,
        "x-opt-sequence-number": 5 << 48 | 7,
        "x-opt-partition-id": 5,
        "x-opt-locked-until": AT + 60_000,
        "x-mine": "kept",
    }
    assert type(seen.message_annotations["x-opt-enqueued-time"]) is Timestamp
    assert type(seen.message_annotations["x-opt-sequence-number"]) is int


def test_the_first_number_is_shown_of_what_came_from_elsewhere_and_the_partition_unless_it_is_0():
    message = enqueued(sent())
    message.sequence_number = SequenceNumber(7)
    shown = [
        received(message).message_annotations,
        received(message, locked=False).message_annotations,
        decode_message(render_peeked(message, message.payload)).message_annotations,
    ]
    for each in shown:
        assert not {"x-opt-enqueue-sequence-number", "x-opt-partition-id"} & each.keys()
    message.origin = Origin(SequenceNumber(7))
    assert received(message).message_annotations["x-opt-enqueue-sequence-number"] == 7


def test_a_message_received_for_good_has_no_lock():
    assert "x-opt-locked-until" not in received(enqueued(sent()), locked=False).message_annotations


def test_a_header_is_written_even_when_the_sender_had_none():
    """Java reads the delivery count without asking whether there is a header."""
    assert received(enqueued(sent())).header.delivery_count == 0


@pytest.mark.parametrize("durable", [None, False, True])
@pytest.mark.parametrize("priority", [None, 4, 9])
@pytest.mark.parametrize("ttl", [None, 5000])
def test_what_the_header_does_not_say_receivers_are_not_told(durable, priority, ttl):
    given = Header(durable=durable, priority=priority, ttl=ttl)
    message = enqueued(sent(header=given))
    assert received(message).header == replace(given, delivery_count=0)
    ((_, head, bare),) = render_locked([message], [message.payload])
    assert decode_message(head + bare).header == replace(given, delivery_count=0)


def test_annotations_of_the_brokers_own_cannot_be_forged():
    forged = sent(
        message_annotations={"x-opt-sequence-number": 99, "x-opt-locked-until": Timestamp(1), "x": 1}
    )
    annotations = received(enqueued(forged)).message_annotations
    assert annotations["x-opt-sequence-number"] == 5 << 48 | 7
    assert annotations["x"] == 1
    assert len(annotations) == 5


def test_a_message_without_an_id_is_given_one():
    """JavaScript cannot settle a message that has none."""
    seen = received(enqueued(encode_message(properties=Properties(subject="s"), data=b"body")))
    assert isinstance(seen.properties.message_id, str)
    assert seen.properties.subject == "s"
    assert received(enqueued(encode_message(data=b"body"))).properties.message_id


def test_an_id_of_any_type_is_kept():
    for each in ("text", UUID(int=7), b"bytes", ULong(7)):
        seen = received(enqueued(sent(properties=Properties(message_id=each))))
        assert (type(seen.properties.message_id), seen.properties.message_id) == (type(each), each)


def test_a_lifetime_becomes_an_instant():
    assert admit(sent(header=Header(ttl=UInt(1500))), AT, QUEUE)[0].expires_at == AT + 1500
    assert admit(sent(), AT, QUEUE)[0].expires_at is None


@pytest.mark.row("P-13", "P-14", "P-15")
@pytest.mark.parametrize(
    ("parts", "description", "key"),
    [
        ({}, QUEUE, None),  # P-15: without duplicate detection a message id is never a key
        ({}, DEDUP, "m1"),
        ({"message_annotations": {"x-opt-partition-key": "pk"}}, DEDUP, "pk"),
        ({"properties": Properties(message_id="m1", group_id="s1")}, QUEUE, "s1"),
    ],
)
def test_the_key_is_session_then_partition_key_then_message_id(parts, description, key):
    assert admit(sent(**parts), AT, description)[1] == key


@pytest.mark.row("P-14")
def test_a_session_and_a_partition_key_that_differ_are_refused():
    both = sent(
        properties=Properties(message_id="m", group_id="s"), message_annotations={"x-opt-partition-key": "p"}
    )
    with pytest.raises(InvalidOperation):
        admit(both, AT, QUEUE)


def test_a_partition_key_that_is_no_text_is_refused():
    with pytest.raises(ArgumentError, match="PartitionKey"):
        admit(sent(message_annotations={"x-opt-partition-key": 7}), AT, QUEUE)


@given(st.binary(max_size=200))
def test_malformed_messages_are_refused_and_nothing_else(junk):
    for payload in (junk, sent() + junk, sent()[: len(junk)]):
        try:
            enqueued(payload)
        except ArgumentError:
            continue


# -- batches ------------------------------------------------------------------------


def batch(*keys: str | None) -> bytes:
    inner = [sent(message_annotations={"x-opt-partition-key": key} if key else None) for key in keys]
    return encode_message(data=inner)


def test_a_batch_is_its_messages():
    messages, key = admit_batch(batch(None, None), AT, QUEUE, partitioned=True)
    assert (len(messages), key) == (2, None)


def test_a_batch_with_one_key_goes_where_the_key_says():
    assert admit_batch(batch("a", "a"), AT, QUEUE, partitioned=True)[1] == "a"


@pytest.mark.row("P-18")
@pytest.mark.parametrize("keys", [("a", "b"), ("a", None)])
def test_a_batch_with_two_keys_is_refused_where_keys_matter(keys):
    with pytest.raises(InvalidOperation, match="distinct SessionId or PartitionKey"):
        admit_batch(batch(*keys), AT, QUEUE, partitioned=True)
    assert len(admit_batch(batch(*keys), AT, QUEUE, partitioned=False)[0]) == 2


def test_an_empty_batch_is_refused():
    with pytest.raises(ArgumentError):
        admit_batch(encode_message(), AT, QUEUE, partitioned=False)


# -- how long the entity lets it live --------------------------------------------------


def living(payload: bytes, lifetime_ms: int) -> Message:
    """Enqueued in an entity that lets it live so long."""
    message = enqueued(payload)
    message.expires_at = Instant(AT + lifetime_ms)
    return message


def shown(message: Message) -> tuple[int | None, int | None, int | None]:
    seen = received(message)
    return seen.header.ttl, seen.properties.creation_time, seen.properties.absolute_expiry_time


def test_the_entitys_lifetime_shows_on_a_message_that_has_none():
    assert shown(living(sent(), 90_000)) == (90_000, AT, AT + 90_000)


def test_the_shorter_of_two_lifetimes_shows():
    own = {"header": Header(ttl=UInt(60_000))}
    times = Properties(
        message_id="m1",
        creation_time=Timestamp(AT - 5),
        absolute_expiry_time=Timestamp(AT + 59_995),
        group_id="s",
    )
    assert shown(living(sent(**own), 30_000)) == (30_000, AT, AT + 30_000)
    assert shown(living(sent(**own, properties=times), 30_000)) == (30_000, AT - 5, AT + 29_995)
    assert shown(enqueued(sent(**own, properties=times))) == (60_000, AT - 5, AT + 59_995)
    assert shown(enqueued(sent(**own))) == (60_000, None, None)


def test_a_lifetime_that_the_header_has_no_room_for_is_in_the_properties():
    year_ms = 365 * 86_400_000
    assert shown(living(sent(), year_ms)) == (None, AT, AT + year_ms)


@given(st.integers(0, 13), st.booleans())
def test_a_lifetime_leaves_everything_else_as_it_was(count: int, large: bool):
    values = ["m", b"u", "t" * (300 if large else 1), "s", "r", "c", Symbol("t"), Symbol("e")]
    values += [Timestamp(AT), Timestamp(AT), "group", UInt(1), "reply"]
    properties = Properties(*values[:count])
    payload = encode_message(
        properties=properties if count else None, application_properties={"a": 1}, data=b"body"
    )
    seen, before = received(living(payload, 5000)), received(enqueued(payload))
    assert (seen.application_properties, seen.data) == ({"a": 1}, [b"body"])
    for name in ("user_id", "to", "subject", "reply_to", "group_id", "group_sequence", "reply_to_group_id"):
        assert getattr(seen.properties, name) == getattr(before.properties, name)
    if count:
        assert seen.properties.message_id == before.properties.message_id


@pytest.mark.parametrize("fields", [b"\x01" + b"\x40" * 8, b"\x40" * 8 + b"\x01", b"\x40" * 7])
def test_a_message_with_unreadable_properties_is_delivered_as_it_was_sent(fields: bytes):
    """Its first field alone is read when it is sent, so the others may be anything."""
    listed = b"\xa1\x01a" + fields
    properties = b"\x00\x53\x73\xc0" + bytes((len(listed) + 1, 10)) + listed
    message = living(properties + encode_message(data=b"x"), 5000)
    _, bare = render(message, message.payload, locked=True)
    assert bare == properties + encode_message(data=b"x")
    ((_, _, again),) = render_locked([message], [message.payload])
    assert again == bare


def test_many_of_one_kind_show_their_lifetime_as_one_does():
    messages = [living(sent(), lifetime) for lifetime in (5000, 5000, 9000)] + [enqueued(sent())] * 2
    payloads = [message.payload for message in messages]
    many = [head + bare for _, head, bare in render_locked(messages, payloads)]
    assert many == [b"".join(render(each, each.payload, locked=True)) for each in messages]


def test_who_makes_copies_sees_the_senders_own_lifetime():
    message = living(sent(header=Header(ttl=UInt(60_000))), 30_000)
    seen = decode_message(render_browsed(message, message.payload))
    assert (seen.header.ttl, seen.properties.absolute_expiry_time) == (60_000, None)


# -- what settlement added ------------------------------------------------------------


def test_amendments_are_laid_over_the_application_properties():
    message = enqueued(sent(application_properties={"kept": 1, "changed": 1}))
    message.amendment = Amendment(
        (encode({"changed": 2}), encode({"changed": 3, "new": "x"})), "Because", "it was time"
    )
    seen = received(message)
    assert seen.application_properties == {
        "kept": 1,
        "changed": 3,
        "new": "x",
        "DeadLetterReason": "Because",
        "DeadLetterErrorDescription": "it was time",
    }
    assert seen.data == [b"body"]


def test_a_message_that_only_has_an_earlier_number_is_delivered_as_it_was_sent():
    message = enqueued(encode_message(properties=Properties(message_id="m"), value="v"))
    plain = render_browsed(message, message.payload)
    message.amendment = Amendment(earlier_number=SequenceNumber(7))
    assert render_browsed(message, message.payload) == plain


def test_amendments_find_their_place_without_application_properties():
    message = enqueued(encode_message(properties=Properties(message_id="m"), value="v"))
    message.amendment = Amendment(dead_letter_reason="Because")
    seen = received(message)
    assert (seen.application_properties, seen.value) == ({"DeadLetterReason": "Because"}, "v")


# -- inside management responses --------------------------------------------------------


def test_a_deferred_message_carries_its_token_among_the_delivery_annotations():
    """Go looks for it there; a uuid, in its own byte order."""
    message = enqueued(sent())
    assert message.payload is not None
    seen = decode_message(b"".join(render(message, message.payload, locked=True)))
    assert seen.delivery_annotations == {"x-opt-lock-token": UUID(bytes_le=TOKEN)}
    assert seen.message_annotations["x-opt-locked-until"] == message.locked_until


def test_a_peeked_message_shows_its_state_and_the_end_of_its_lock():
    message = enqueued(sent())
    message.state = MessageState.DEFERRED
    assert message.payload is not None
    annotations = decode_message(render_peeked(message, message.payload)).message_annotations
    assert (type(annotations["x-opt-message-state"]), annotations["x-opt-message-state"]) == (Int, 1)
    assert annotations["x-opt-locked-until"] == Timestamp(AT + 60_000)
    message.lock_token, message.locked_until = None, Instant(0)
    free = decode_message(render_peeked(message, message.payload)).message_annotations
    assert free["x-opt-locked-until"] == Timestamp(0)
    assert "x-opt-lock-token" not in free


@pytest.mark.row("P-35")
def test_a_scheduled_time_in_the_future_makes_the_message_wait() -> None:
    due = Timestamp(AT + 5000)
    message, _ = admit(
        sent(header=Header(ttl=UInt(1500)), message_annotations={"x-opt-scheduled-enqueue-time": due}),
        *(AT, QUEUE),
    )
    assert (message.state, message.enqueued_at) == (MessageState.SCHEDULED, due)
    assert message.expires_at == due + 1500
    assert message.payload is not None
    shown = decode_message(render_peeked(message, message.payload))
    assert shown.message_annotations["x-opt-scheduled-enqueue-time"] == due
    assert shown.message_annotations["x-opt-message-state"] == 2


@pytest.mark.parametrize("message_id", ["text", 7, None], ids=["fast path", "general path", "no id"])
@pytest.mark.parametrize("also", [{}, {"x-opt-delivery-time": AT - 1}, {"x-mine": "kept"}])
def test_a_delivery_delay_becomes_the_time_that_it_means(message_id: object, also: dict[str, object]) -> None:
    payload = sent(
        properties=Properties(message_id=message_id),
        message_annotations={"x-opt-delivery-delay": 5000, **also},
    )
    # Twice: nothing that depends on the time may be remembered.
    for at in (AT, Instant(AT + 1000)):
        message, _ = admit(payload, at, QUEUE)
        assert (message.state, message.enqueued_at) == (MessageState.SCHEDULED, at + 5000)
        assert message.payload is not None
        shown = decode_message(render_peeked(message, message.payload)).message_annotations
        assert shown["x-opt-delivery-time"] == at + 5000
        assert "x-opt-delivery-delay" not in shown
        assert shown.get("x-mine") == also.get("x-mine")


def test_a_delivery_time_later_than_the_delay_counts() -> None:
    both = {"x-opt-delivery-delay": 1000, "x-opt-delivery-time": AT + 9000}
    message, _ = admit(sent(message_annotations=both), AT, QUEUE)
    assert message.enqueued_at == AT + 9000
    message, _ = admit(sent(message_annotations={"x-opt-delivery-delay": 0}), AT, QUEUE)
    assert message.state is MessageState.ACTIVE


@pytest.mark.parametrize("locked", [True, False])
def test_a_received_message_says_whether_it_was_scheduled_or_deferred(locked: bool) -> None:
    due = Timestamp(AT + 5000)
    message = enqueued(sent(message_annotations={"x-opt-scheduled-enqueue-time": due, "x-mine": "kept"}))
    for state, shown in (
        (MessageState.ACTIVE, MessageState.SCHEDULED),
        (MessageState.DEFERRED, MessageState.DEFERRED),
    ):
        message.state = state
        annotations = received(message, locked=locked).message_annotations
        assert (annotations["x-opt-message-state"], annotations["x-mine"]) == (shown, "kept")
        assert type(annotations["x-opt-message-state"]) is Int
        ((_, head, bare),) = render_locked([message], [message.payload])
        assert head + bare == b"".join(render(message, message.payload, locked=True))
    plain = enqueued(sent(message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(AT)}))
    assert "x-opt-message-state" not in received(plain, locked=locked).message_annotations


@pytest.mark.parametrize("value", [None, Timestamp(AT), Timestamp(AT - 1), Timestamp(0)])
def test_a_scheduled_time_that_has_passed_changes_nothing(value: object) -> None:
    message, _ = admit(sent(message_annotations={"x-opt-scheduled-enqueue-time": value}), AT, QUEUE)
    assert (message.state, message.enqueued_at) == (MessageState.ACTIVE, 0)


@pytest.mark.parametrize("value", ["tomorrow", 5, Timestamp(253_402_300_800_000), Timestamp(2**63 - 1)])
def test_a_scheduled_time_that_cannot_be_meant_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="ScheduledEnqueueTimeUtc"):
        admit(sent(message_annotations={"x-opt-scheduled-enqueue-time": value}), AT, QUEUE)


@pytest.mark.row("P-15")
def test_duplicate_detection_is_told_the_senders_id_and_no_other() -> None:
    identities = Identities(partitioned=False)
    for parts in ({}, {"properties": Properties(message_id=ULong(7))}, {"properties": Properties()}):
        admit(sent(**parts), AT, DEDUP, identities)
    assert identities.found == ["m1", "7", None]


def test_a_partitioned_queue_with_duplicate_detection_needs_an_id_or_a_key() -> None:
    with pytest.raises(ArgumentError, match="must have either PartitionKey or MessageId"):
        admit(sent(properties=Properties()), AT, DEDUP, Identities(partitioned=True))
    keyed = sent(properties=Properties(), message_annotations={"x-opt-partition-key": "k"})
    assert admit(keyed, AT, DEDUP, Identities(partitioned=True))[1] == "k"


# -- limits of what stands before the body --------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [{"large": "x" * 33_000}, {str(number): "x" * 10_000 for number in range(7)}],
    ids=["one property", "all together"],
)
def test_properties_beyond_their_limits_are_refused(properties: dict[str, object]) -> None:
    payload = encode_message(
        properties=Properties(message_id="m"), application_properties=properties, data=b""
    )
    with pytest.raises(MessageSizeExceeded, match="at most"):
        admit(payload, AT, QUEUE)


def test_a_large_body_is_no_large_property() -> None:
    properties = {"fits": "x" * 32_000, "too": "x" * 30_000}
    payload = encode_message(
        properties=Properties(message_id="m"), application_properties=properties, data=b"x" * 200_000
    )
    admit(payload, AT, QUEUE)


# -- what a sender writes comes back ----------------------------------------------------


def test_every_delivery_has_delivery_annotations() -> None:
    message = enqueued(sent())
    assert received(message).delivery_annotations == {"x-opt-lock-token": UUID(bytes_le=TOKEN)}
    for unlocked in (
        b"".join(render(message, message.payload or b"", locked=False)),
        render_peeked(message, message.payload or b""),
    ):
        # Not only empty: the section is there.
        assert b"\x00\x53\x71" in unlocked
        assert decode_message(unlocked).delivery_annotations == {}


def test_the_senders_delivery_annotations_come_back_beside_the_brokers() -> None:
    forged = {Symbol("x-opt-lock-token"): UUID(int=1)}
    mine = {Symbol("x-mine"): "a", Symbol("x-yours"): 5}
    message = enqueued(sent(delivery_annotations={**mine, **forged}, message_annotations={"x-k": "v"}))
    assert received(message).delivery_annotations == {**mine, "x-opt-lock-token": UUID(bytes_le=TOKEN)}
    assert received(message, locked=False).delivery_annotations == mine
    assert decode_message(render_peeked(message, message.payload or b"")).delivery_annotations == mine
    message.amendment = Amendment().with_properties(encode({"said": 1}))
    changed = received(message)
    assert (changed.delivery_annotations["x-mine"], changed.application_properties) == ("a", {"said": 1})
    assert changed.data == [b"body"]


@pytest.mark.parametrize("said", [None, True, False])
def test_first_acquirer_comes_back_as_it_was_sent(said: bool | None) -> None:
    message = enqueued(sent(header=Header(durable=True, first_acquirer=said)))
    message.delivery_count = 1
    assert received(message).header.first_acquirer is said
    assert received(message).header.durable is True


def test_a_key_of_a_footer_that_no_symbol_can_hold_stays_a_string() -> None:
    message = enqueued(sent() + b"\x00\x53\x78" + encode({"größe": 1, "x-text": 2}))
    assert received(message).footer == {"größe": 1, "x-text": 2}


def test_the_keys_of_a_footer_are_symbols() -> None:
    footer = b"\x00\x53\x78" + encode({"x-text": 1, Symbol("x-symbol"): 2})
    message = enqueued(sent() + footer)
    seen = received(message)
    assert seen.footer == {"x-text": 1, "x-symbol": 2}
    assert {type(key) for key in seen.footer} == {Symbol}
    assert seen.data == [b"body"]


# -- what clients write otherwise -------------------------------------------------------

SECTIONS = [
    encode_message(header=Header(durable=True)),
    encode_message(delivery_annotations={"x-d": 1}),
    encode_message(message_annotations={"x-opt-partition-key": "k"}),
    encode_message(properties=Properties(message_id="m1")),
    encode_message(application_properties={"a": 1}),
    encode_message(data=b"body"),
    encode_message(footer={"x-f": 2}),
]


@given(st.permutations(SECTIONS))
def test_sections_in_any_order_are_stored_in_the_standards(sections: list[bytes]) -> None:
    message, key = admit(b"".join(sections), AT, QUEUE)
    expected, _ = admit(b"".join(SECTIONS), AT, QUEUE)
    assert (message.payload, key) == (expected.payload, "k")


def test_a_section_that_comes_twice_is_refused_in_any_order() -> None:
    for sections in ([*SECTIONS, SECTIONS[3]], [SECTIONS[6], *SECTIONS]):
        with pytest.raises(ArgumentError, match="malformed"):
            admit(b"".join(sections), AT, QUEUE)


def test_a_partition_key_sent_as_binary_is_text() -> None:
    message, key = admit(sent(message_annotations={"x-opt-partition-key": b"k"}), AT, QUEUE)
    assert key == "k"
    message.lock_token = TOKEN
    assert received(message).message_annotations["x-opt-partition-key"] == "k"
    with pytest.raises(ArgumentError, match="PartitionKey"):
        admit(sent(message_annotations={"x-opt-partition-key": b"\xff"}), AT, QUEUE)


def test_an_empty_session_id_is_none_where_there_are_no_sessions() -> None:
    empty = sent(
        properties=Properties(message_id="m", group_id=""), message_annotations={"x-opt-partition-key": "k"}
    )
    message, key = admit(empty, AT, QUEUE)
    assert (message.session_id, key) == (None, "k")
    assert admit(sent(properties=Properties(message_id="m", group_id="")), AT, QUEUE)[1] is None
    # Where sessions are required the empty text is the id of one.
    requiring = QueueDescription(EntityPath("orders"), requires_session=True)
    message, key = admit(sent(properties=Properties(message_id="m", group_id="")), AT, requiring)
    assert (message.session_id, key) == ("", "")
    # JavaScript's live tests send it with another partition key. The session decides.
    message, key = admit(empty, AT, requiring)
    assert (message.session_id, key) == ("", "")


@pytest.mark.parametrize("annotated", [False, True])
def test_a_lifetime_that_does_not_fit_into_the_header_is_that_between_two_properties(annotated: bool) -> None:
    """As .NET and JavaScript send 100 days: the header has 49.7 of them, its most."""
    days_ms = 100 * 86_400_000
    most = Header(ttl=UInt(0xFFFFFFFF))
    times = Properties(
        message_id="m", creation_time=Timestamp(AT - 5), absolute_expiry_time=Timestamp(AT - 5 + days_ms)
    )
    own = {"delivery_annotations": {"x-mine": 1}} if annotated else {}
    message, _ = admit(sent(header=most, properties=times, **own), AT, QUEUE)
    assert message.expires_at == AT + days_ms
    message.enqueued_at, message.lock_token = AT, TOKEN
    seen = received(message).properties
    assert (seen.creation_time, seen.absolute_expiry_time) == (AT - 5, AT - 5 + days_ms)
    # Without the two it is unlimited, and without that header they are the sender's own affair.
    assert admit(sent(header=most), AT, QUEUE)[0].expires_at is None
    assert admit(sent(properties=times), AT, QUEUE)[0].expires_at is None


def test_a_long_lifetime_is_shown_as_it_was_sent_unless_the_entity_allows_less() -> None:
    """However long enqueueing takes: a live test of JavaScript compares milliseconds."""
    days_ms = 100 * 86_400_000
    for own_ms, shown_ms in ((days_ms, days_ms), (2 * days_ms, days_ms - 3), (days_ms, days_ms)):
        ends_at = Timestamp(AT + own_ms)
        times = Properties(message_id="m", creation_time=Timestamp(AT), absolute_expiry_time=ends_at)
        message = enqueued(sent(header=Header(ttl=UInt(0xFFFFFFFF)), properties=times))
        message.expires_at = Instant(AT + days_ms - 3)
        ((_, head, bare),) = render_locked([message], [message.payload])
        assert head + bare == b"".join(render(message, message.payload, locked=True))
        seen = decode_message(head + bare).properties
        assert seen.absolute_expiry_time - seen.creation_time == shown_ms


def test_the_lifetime_of_a_forwarded_message_begins_when_its_destination_enqueues_it():
    # Its partition may be loading, or be at a machine whose clock is ahead.
    message, _ = admit(encode_message(header=Header(ttl=5000), data=b"x"), AT, QUEUE)
    message.amendment = Amendment(posting=Posting(QUEUE.path, SequenceNumber(1)))
    assert message.payload is not None
    forwarded, _ = readmit(message, message.payload, Instant(AT + 1000), QUEUE, source=EntityPath("source"))
    destination = Partition(PartitionNumber(0), QUEUE)
    destination.apply(Enqueue([forwarded]), Instant(AT + 9000))
    assert (forwarded.enqueued_at, forwarded.expires_at) == (AT + 9000, AT + 14_000)


@pytest.mark.parametrize("due", [None, AT + 60_000])
def test_every_expiry_fits_in_64_bits(due: int | None) -> None:
    # PostgreSQL would refuse the whole commit, and with it those of others.
    payload = encode_message(
        header=Header(ttl=(1 << 32) - 1),
        message_annotations=None if due is None else {"x-opt-scheduled-enqueue-time": Timestamp(due)},
        properties=Properties(creation_time=Timestamp(0), absolute_expiry_time=Timestamp((1 << 63) - 1)),
        data=b"x",
    )
    message, _ = admit(payload, AT, QUEUE)
    Partition(PartitionNumber(0), QUEUE).apply(Enqueue([message]), Instant(AT + 1000))
    assert message.expires_at is None or message.expires_at < 1 << 63


@pytest.mark.parametrize("footer_first", [False, True])
def test_a_message_or_batch_of_countless_sections_is_refused(footer_first: bool) -> None:
    """Each takes five bytes, and everything else would wait until all of them have been looked at."""
    footer = b"\x00\x53\x78\xc1\x01\x00" if footer_first else b""
    for count in (9_999, 20_000):
        payload = footer + b"\x00\x53\x75\xa0\x00" * count
        if count < 10_000:
            admit(payload, AT, QUEUE)
            assert len(admit_batch(payload, AT, QUEUE, partitioned=False)[0]) == count
            continue
        with pytest.raises(ArgumentError, match="10000 sections"):
            admit(payload, AT, QUEUE)
        with pytest.raises(ArgumentError, match="10000 sections"):
            admit_batch(payload, AT, QUEUE, partitioned=False)
