"""Messages and rows, both ways, without a Spark: the short way says what the long way does."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType, LongType, MapType, StringType, StructField, StructType

from bendybus.amqp.message import Header, Properties, decode_message, encode_message
from bendybus.amqp.types import Described, Int, Symbol, Timestamp
from bendybus.client import ReceivedMessage, encode
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import MessageState
from bendybus.envelope import admit, render_browsed
from bendybus.errors import ArgumentError
from bendybus.names import EntityPath, Instant, SequenceNumber
from fix_messages import UNREADABLE, with_unreadable
from pyspark_servicebus import decoding
from pyspark_servicebus.decoding import RowDecoder
from pyspark_servicebus.encoding import MessageEncoder
from pyspark_servicebus.entity import EntityInfo, MessageRange, PartitionInfo
from pyspark_servicebus.offsets import Offset
from pyspark_servicebus.options import ReadOptions, StartingOffsets
from pyspark_servicebus.planning import limited, resolve, share_out
from pyspark_servicebus.schema import check_writable, read_schema
from pyspark_servicebus.stream import _sound

STRING = "Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey=secret"


def reading(**more: str) -> ReadOptions:
    return ReadOptions.parse({"connectionString": STRING, "entity": "orders"} | more)


COLUMNS = read_schema(reading(includeRaw="true")).names


def stored(sent: bytes, number: int = 5 << 48 | 7, state: MessageState = MessageState.ACTIVE) -> bytes:
    """As the broker shows it to a reader that keeps its own place."""
    message, _ = admit(sent, Instant(1000), QueueDescription(EntityPath("q")))
    message.sequence_number = SequenceNumber(number)
    message.enqueued_at = Instant(1_700_000_000_123)
    message.delivery_count = 2
    message.state = state
    assert message.payload is not None
    return render_browsed(message, message.payload)


def row_of(payload: bytes) -> dict[str, object]:
    (row,) = RowDecoder(COLUMNS).decode([payload]).to_pylist()
    return row


# -- messages into rows -----------------------------------------------------------------


@given(
    body=st.binary(max_size=400),
    texts=st.dictionaries(
        st.sampled_from(["message_id", "session_id", "subject", "correlation_id", "to", "reply_to"]),
        st.text(max_size=60),
    ),
    ttl=st.none() | st.integers(0, 2**31),
    key=st.none() | st.text(max_size=20),
    properties=st.dictionaries(st.text(max_size=10), st.text(max_size=10) | st.integers(-9, 9)),
)
def test_the_short_way_and_the_long_way_agree(body, texts, ttl, key, properties):
    if "session_id" in texts:
        key = None
    sent = encode(body, **texts, partition_key=key, time_to_live_ms=ttl, application_properties=properties)
    payload = stored(sent)
    front, long_front = decoding._front(payload), decoding._front_the_long_way(payload)
    assert front[:6] == long_front[:6]
    assert front[7] == long_front[7]
    row, message = row_of(payload), ReceivedMessage(payload)
    assert row["body"] == message.body == body
    for name in ("message_id", "session_id", "subject", "correlation_id", "partition_key"):
        assert row[name] == getattr(message, name)
    assert row["time_to_live_ms"] == ttl
    expected = [(name, str(value)) for name, value in properties.items()]
    assert (row["application_properties"] or []) == expected
    assert (row["partition"], row["sequence_number"], row["delivery_count"]) == (5, 5 << 48 | 7, 2)
    assert row["enqueued_time"].timestamp() == 1_700_000_000.123
    assert row["amqp_message"] == payload


def test_every_kind_of_property_becomes_text():
    known = uuid.UUID(int=7)
    sent = encode_message(
        header=Header(durable=True),
        properties=Properties(message_id=known),
        application_properties={
            "yes": True,
            "none": None,
            "time": Timestamp(1_000),
            "bytes": b"\x00\x01",
            "uuid": known,
            "float": 1.5,
            "int": Int(3),
            "span": Described(Symbol("com.microsoft:timespan"), 12),
            "never": Timestamp(2**62),
        },
        data=b"x",
    )
    row = row_of(stored(sent))
    assert row["message_id"] == str(known)
    assert dict(row["application_properties"]) == {
        "yes": "true",
        "none": None,
        "time": "1970-01-01T00:00:01Z",
        "bytes": "AAE=",
        "uuid": str(known),
        "float": "1.5",
        "int": "3",
        "span": "12",
        "never": str(2**62),
    }


@pytest.mark.parametrize("section", UNREADABLE)
def test_a_section_that_cannot_be_read_stops_no_stream(section):
    payload = stored(with_unreadable(section))
    row = row_of(payload)
    assert (row["sequence_number"], row["body"], row["amqp_message"]) == (5 << 48 | 7, b"x", payload)


@pytest.mark.parametrize(
    ("body", "expected"),
    [({"value": "text"}, b"text"), ({"data": [b"a", b"b"]}, b"ab"), ({"value": None}, b"")],
)
def test_other_kinds_of_body_are_read_too(body, expected):
    assert row_of(stored(encode_message(properties=Properties(message_id="1"), **body)))["body"] == expected


def test_states_have_their_names():
    for state in MessageState:
        assert row_of(stored(encode(b"x"), state=state))["state"] == state.name.lower()


# -- rows into messages -----------------------------------------------------------------


def test_a_plain_row_is_encoded_as_any_other_is():
    batch = pa.record_batch({"body": [b"a", b"b"], "message_id": ["1", "2" * 300]})
    ((key, messages),) = MessageEncoder("p", group_by_id=False).groups(batch)
    assert key is None
    assert [decode_message(message) for message in messages] == [
        decode_message(encode(b"a", message_id="1")),
        decode_message(encode(b"b", message_id="2" * 300)),
    ]


def test_ids_are_made_from_the_rows_place_across_batches():
    encoder = MessageEncoder("q/7/0", group_by_id=False)
    ids = [
        ReceivedMessage(message).message_id
        for _ in range(2)
        for _, messages in encoder.groups(pa.record_batch({"body": ["x", "y"]}))
        for message in messages
    ]
    assert ids == ["q/7/0/0", "q/7/0/1", "q/7/0/2", "q/7/0/3"]


def test_rows_are_grouped_by_key_in_their_order():
    batch = pa.record_batch(
        {
            "body": ["0", "1", "2", "3", "4"],
            "session_id": ["s", None, "s", None, None],
            "partition_key": [None, "k", None, None, "k"],
        }
    )
    groups = dict(MessageEncoder("p", group_by_id=False).groups(batch))
    bodies = {key: [ReceivedMessage(message).body for message in group] for key, group in groups.items()}
    assert bodies == {"s": [b"0", b"2"], "k": [b"1", b"4"], None: [b"3"]}


@pytest.mark.row("P-13", "S-04")
def test_keys_that_differ_in_case_keep_their_order_in_batches_of_one_spelling():
    batch = pa.record_batch({"body": ["0", "1", "2", "3"], "session_id": ["S", "s", "t", "S"]})
    groups = list(MessageEncoder("p", group_by_id=False).groups(batch))
    found = [(key, [ReceivedMessage(message).body for message in group]) for key, group in groups]
    assert found == [("S", [b"0"]), ("s", [b"1"]), ("S", [b"3"]), ("t", [b"2"])]


def test_rows_without_a_key_travel_alone_where_their_ids_are_keys():
    batch = pa.record_batch({"body": ["0", "1"]})
    assert [len(group) for _, group in MessageEncoder("p", group_by_id=True).groups(batch)] == [1, 1]


def test_raw_messages_are_sent_as_they_are_under_their_own_keys():
    sent = encode(b"x", partition_key="k", message_id="1")
    batch = pa.record_batch({"amqp_message": [sent]})
    assert list(MessageEncoder("p", group_by_id=False).groups(batch)) == [("k", [sent])]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"text": StringType()}, "need a column 'body'"),
        ({"body": StringType(), "colour": StringType()}, "'colour' is unknown"),
        ({"body": LongType()}, "'body' must be binary or string, not bigint"),
        ({"body": StringType(), "session_id": LongType()}, "'session_id' must be string"),
        ({"body": StringType(), "application_properties": MapType(LongType(), LongType())}, "keys of column"),
        (
            {"body": StringType(), "application_properties": MapType(StringType(), DecimalType(9, 2))},
            r"type decimal\(9,2\)",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_named(columns, named):
    with pytest.raises(ArgumentError, match=named):
        check_writable(StructType([StructField(name, kind) for name, kind in columns.items()]))


def test_what_was_read_can_be_written():
    check_writable(read_schema(reading()))


def test_times_are_properties_of_their_own_type():
    at = datetime.datetime(2026, 11, 19, 12, 0, 0, 123_000, tzinfo=datetime.UTC)
    kinds = pa.map_(pa.string(), pa.timestamp("us", tz="Europe/Berlin"))
    properties = pa.array([[("at", at), ("none", None)], None], kinds)
    batch = pa.record_batch({"body": ["0", "1"], "application_properties": properties})
    ((_, sent),) = MessageEncoder("p", group_by_id=False).groups(batch)
    found = ReceivedMessage(sent[0]).application_properties
    assert found == {"at": 1_795_089_600_123, "none": None} and type(found["at"]) is Timestamp


# -- planning ---------------------------------------------------------------------------


def test_offsets_are_kept_as_text_and_read_back():
    offset = Offset(
        entity="q", generation="g", consumer="c", positions={0: 5, 11: 7}, began={0: 1, 11: 2}, flush=3
    )
    assert Offset.from_json(offset.to_json()) == offset
    with pytest.raises(ArgumentError, match="not written by the servicebus source"):
        Offset.from_json({"version": 1, "logOffset": 3})
    with pytest.raises(ArgumentError, match="version 9"):
        Offset.from_json(offset.to_json() | {"version": 9})


@given(
    st.dictionaries(st.integers(0, 15), st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1),
    st.integers(1, 400),
)
def test_a_limit_is_kept_and_used_up(partitions, most):
    start = {number: begin for number, (begin, _) in partitions.items()}
    end = {number: begin + more for number, (begin, more) in partitions.items()}
    cut = limited(start, end, most)
    assert all(start[number] <= cut[number] <= end[number] for number in partitions)
    total = sum(end.values()) - sum(start.values())
    assert sum(cut.values()) - sum(start.values()) == min(most, total)


@given(
    st.dictionaries(st.integers(0, 15), st.integers(0, 30_000)),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
)
def test_ranges_are_shared_out_without_loss_or_overlap(counts, least, most):
    bounds = {"minPartitions": least, "maxPartitions": most}
    options = reading(**{name: str(value) for name, value in bounds.items() if value is not None})
    tasks = share_out([MessageRange(number, 10, 10 + count) for number, count in counts.items()], options)
    found: dict[int, list[tuple[int, int]]] = {}
    for task in tasks:
        assert task.ranges
        for each in task.ranges:
            found.setdefault(each.partition, []).append((each.after, each.through))
    for number, count in counts.items():
        pieces = sorted(found.get(number, []))
        assert sum(through - after for after, through in pieces) == count
        assert all(one[1] == other[0] for one, other in pairwise(pieces))
    if most is not None and (least is None or least <= most):
        assert len(tasks) <= most


def test_starts_are_within_what_there_is():
    info = EntityInfo("g", True, {0: PartitionInfo(4, 9, 4), 1: PartitionInfo(3, 2, 3)})
    assert resolve(StartingOffsets(-2, {}), info) == {0: 3, 1: 2}
    assert resolve(StartingOffsets(-1, {}), info) == {0: 9, 1: 2}
    assert resolve(StartingOffsets(-2, {0: 100, 1: 0}), info) == {0: 9, 1: 0}


def test_a_stream_that_may_lose_messages_passes_over_a_gap_in_the_numbers_at_once() -> None:
    """A partition that was given up with its store counts from the present time on."""
    far = 1_800_000_000_000
    info = EntityInfo("g", True, {0: PartitionInfo(far, far + 5, far), 1: PartitionInfo(3, 9, 3)})
    offset = Offset(entity="q", generation="g", consumer="", positions={0: 7, 1: 5, 2: 4})
    assert _sound(offset, info).positions == {0: far - 1, 1: 5, 2: 4}
    behind = EntityInfo("g", True, {0: PartitionInfo(9, 6, 9)})
    assert _sound(replace(offset, positions={0: 2}), behind).positions == {0: 6}
