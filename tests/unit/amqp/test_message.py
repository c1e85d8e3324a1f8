"""Sections are found by their sizes alone, and single fields are read where they stand."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.codec import decode, encode
from bendybus.amqp.composite import composed
from bendybus.amqp.message import (
    DecodedMessage,
    Header,
    HeaderField,
    Properties,
    PropertyField,
    Sections,
    annotation,
    application_properties,
    body_data,
    body_sequence,
    body_value,
    decode_message,
    encode_message,
    encode_section,
    list_field,
    map_entries,
    map_section,
    read_header,
    read_map,
    read_properties,
    scan,
    split_batch,
)
from bendybus.amqp.performatives import Discharge
from bendybus.amqp.sections import MESSAGE_ANNOTATIONS
from bendybus.amqp.types import Described, Symbol, Timestamp, UInt, ULong
from bendybus.errors import WireError

_HEADER = Header(durable=True, ttl=60_000, delivery_count=2)
_PROPERTIES = Properties(
    message_id=UUID(int=7), user_id=b"user", to="queue", subject="label", reply_to="replies",
    correlation_id=ULong(9), content_type="text/plain", content_encoding="gzip",
    absolute_expiry_time=Timestamp(2), creation_time=Timestamp(1), group_id="session", group_sequence=3,
    reply_to_group_id="there",
)  # fmt: skip
_ANNOTATIONS: dict[str, object] = {
    "x-opt-partition-key": "key",
    "x-opt-scheduled-enqueue-time": Timestamp(1_700_000_000_000),
    "x-opt-null": None,
    "x-opt-nested": {"a": [1, 2]},
}
_TIMESPAN = Described(Symbol("com.microsoft:timespan"), 5)
_WHOLE = encode_message(
    header=_HEADER,
    delivery_annotations={"x-opt-lock-token": UUID(int=1)},
    message_annotations=_ANNOTATIONS,
    properties=_PROPERTIES,
    application_properties={"colour": "red", "count": 3, "wait": _TIMESPAN},
    data=[b"first", b"second" * 100],
    footer={"x-opt-checksum": b"1234"},
)


def _starts(sections: Sections) -> list[int]:
    return [getattr(sections, name) for name in Sections.__slots__]


# -- finding sections -----------------------------------------------------------------------


def test_each_section_starts_at_its_descriptor() -> None:
    at = scan(_WHOLE)
    for name, code in (
        ("header", 0x70),
        ("delivery_annotations", 0x71),
        ("message_annotations", 0x72),
        ("properties", 0x73),
        ("application_properties", 0x74),
        ("body", 0x75),
        ("footer", 0x78),
    ):
        start = getattr(at, name)
        assert _WHOLE[start : start + 3] == bytes((0x00, 0x53, code)), name
    assert at.end == len(_WHOLE)


def test_absent_sections_are_minus_one() -> None:
    at = scan(encode_message(data=b""))
    assert at.body == 0
    assert (at.header, at.delivery_annotations, at.message_annotations, at.properties) == (-1, -1, -1, -1)
    assert (at.application_properties, at.footer) == (-1, -1)
    assert scan(b"").body == -1


def test_a_message_is_found_between_other_bytes() -> None:
    inside = scan(b"before" + _WHOLE + b"after", 6, 6 + len(_WHOLE))
    assert _starts(inside) == [start + 6 for start in _starts(scan(_WHOLE))]


_NAMES = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}


def _respelt(message: bytes, spelling: str) -> bytes:
    """The same message with its descriptors in another form."""
    out = b""
    pos = 0
    while pos < len(message):
        section, after = decode(message, pos)
        assert isinstance(section, Described)
        assert isinstance(section.descriptor, ULong)
        code = section.descriptor
        long_form, name = b"\x80" + code.to_bytes(8, "big"), encode(Symbol(_NAMES[code]))
        out += b"\x00" + (long_form if spelling == "ulong" else name) + message[pos + 3 : after]
        pos = after
    return out


@pytest.mark.parametrize("spelling", ["ulong", "symbol"])
def test_descriptors_are_understood_in_every_form(spelling: str) -> None:
    respelt = _respelt(_WHOLE, spelling)
    assert decode_message(respelt) == decode_message(_WHOLE)
    assert min(_starts(scan(respelt))) >= 0
    assert annotation(respelt, scan(respelt).message_annotations, b"x-opt-partition-key") == "key"


@pytest.mark.parametrize(
    "octets",
    [
        "00 53 73 45 00 53 70 45",  # properties before header
        "00 53 70 45 00 53 70 45",  # two headers
        "00 53 75 a0 00 00 53 73 45",  # properties after the body
        "00 53 77 40 00 53 77 40",  # two values
        "00 53 75 a0 00 00 53 76 45",  # data and sequence
        "00 53 76 45 00 53 77 40",  # sequence and value
        "00 53 78 c1 01 00 00 53 75 a0 00",  # footer before the body
        "00 53 78 c1 01 00 00 53 78 c1 01 00",  # two footers
    ],
)
def test_sections_out_of_order_are_wire_errors(octets: str) -> None:
    with pytest.raises(WireError):
        scan(bytes.fromhex(octets))


@pytest.mark.parametrize(
    "octets",
    [
        "00 53 70 c1 01 00",  # a header is a list
        "00 53 72 45",  # annotations are a map
        "00 53 73 a1 00",
        "00 53 74 40",
        "00 53 75 a1 00",  # data is binary
        "00 53 76 a0 00",
        "00 53 6f 45",
        "00 53 79 45",
        "00 a1 01 78 45",
        "00 45 45",
        "00 a3 01 78 45",
        "70 45",
        "40",
        "00 53 77 3f",
        "00 53 75 b0 ffffffff 00",
        "00 53 75 a0 05 00",
        "00 53 77 00 53",
    ],
)
def test_malformed_sections_are_wire_errors(octets: str) -> None:
    with pytest.raises(WireError):
        scan(bytes.fromhex(octets))


def test_a_message_cut_short_anywhere_is_refused_or_lacks_whole_sections() -> None:
    edges = {0, *_starts(scan(_WHOLE)), _WHOLE.index(b"first") + 5}
    for length in range(len(_WHOLE)):
        if length in edges:
            scan(_WHOLE[:length])
        else:
            with pytest.raises(WireError):
                scan(_WHOLE[:length])


def test_a_section_that_runs_out_of_its_message_is_refused_though_bytes_follow() -> None:
    for end in range(1, 8):
        with pytest.raises(WireError):
            scan(_WHOLE, 0, end)


def _read_everything(message: bytes) -> None:
    at = scan(message)
    decode_message(message)
    for index in range(13):
        list_field(message, at.header, index)
        list_field(message, at.properties, index)
    annotation(message, at.message_annotations, b"x-opt-absent")
    map_entries(message, at.message_annotations, frozenset([b"x-opt-partition-key"]))
    split_batch(message)


@given(st.binary(max_size=100), st.sampled_from([b"", b"\0\x53\x70\xc0", b"\0\x53\x72\xc1", b"\0\x53\x77"]))
def test_random_bytes_raise_nothing_but_wire_errors(octets: bytes, opening: bytes) -> None:
    with contextlib.suppress(WireError):
        _read_everything(opening + octets)


@given(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255))
def test_one_changed_byte_raises_nothing_but_wire_errors(at: int, octet: int) -> None:
    with contextlib.suppress(WireError):
        _read_everything(_WHOLE[:at] + bytes([octet]) + _WHOLE[at + 1 :])


# -- reading fields ---------------------------------------------------------------------------


def test_header_fields_are_read_by_position() -> None:
    at = scan(_WHOLE).header
    assert list_field(_WHOLE, at, HeaderField.DURABLE) is True
    assert list_field(_WHOLE, at, HeaderField.PRIORITY) is None
    assert list_field(_WHOLE, at, HeaderField.TTL) == 60_000
    assert list_field(_WHOLE, at, HeaderField.FIRST_ACQUIRER) is None
    assert list_field(_WHOLE, at, HeaderField.DELIVERY_COUNT) == 2
    assert read_header(_WHOLE, at) == _HEADER


def test_every_property_is_read_by_its_position() -> None:
    at = scan(_WHOLE).properties
    for name in Properties.__slots__:
        value = list_field(_WHOLE, at, getattr(PropertyField, name.upper()))
        assert value == getattr(_PROPERTIES, name), name
    assert read_properties(_WHOLE, at) == _PROPERTIES


def test_a_field_beyond_the_end_of_its_list_or_of_an_absent_section_is_none() -> None:
    short = encode_section(Header(durable=True))
    assert list_field(short, 0, HeaderField.TTL) is None
    assert list_field(b"\x00\x53\x70\x45", 0, HeaderField.TTL) is None
    assert list_field(b"", -1, HeaderField.TTL) is None
    assert read_header(b"", -1) == Header()
    assert read_properties(b"", -1) == Properties()


def test_other_fields_are_skipped_unread() -> None:
    # The message-id before the group-id is no UTF-8; nobody asked for it.
    message = bytes.fromhex("005373 c0 10 0b a101ff 404040404040404040 a10173")
    assert list_field(message, 0, PropertyField.GROUP_ID) == "s"
    with pytest.raises(WireError):
        list_field(message, 0, PropertyField.MESSAGE_ID)


def test_a_message_id_keeps_its_type() -> None:
    for message_id in ("text", UUID(int=5), ULong(5), b"octets"):
        read = read_properties(encode_section(Properties(message_id=message_id)), 0).message_id
        assert (type(read), read) == (type(message_id), message_id)


def test_annotations_are_looked_up_one_by_one() -> None:
    at = scan(_WHOLE).message_annotations
    assert annotation(_WHOLE, at, b"x-opt-partition-key") == "key"
    assert annotation(_WHOLE, at, b"x-opt-scheduled-enqueue-time") == Timestamp(1_700_000_000_000)
    assert annotation(_WHOLE, at, b"x-opt-nested") == {"a": [1, 2]}
    assert annotation(_WHOLE, at, b"x-opt-null") is None
    assert annotation(_WHOLE, at, b"x-opt-absent") is None
    assert annotation(_WHOLE, at, b"x-opt-part") is None
    assert annotation(_WHOLE, -1, b"x-opt-partition-key") is None


@pytest.mark.parametrize("key", ["a3016b", "a1016b", "b3000000016b", "b1000000016b"])
def test_a_key_is_found_whatever_text_type_it_has(key: str) -> None:
    entry = bytes.fromhex(key) + b"\x52\x07"
    section = map_section(MESSAGE_ANNOTATIONS, encode(ULong(1)) + b"\x40" + entry, 4)
    assert annotation(section, 0, b"k") == UInt(7)
    assert map_entries(section, 0, frozenset([b"k"])) == (encode(ULong(1)) + b"\x40", 2)


def test_entries_are_taken_as_they_stand_and_make_a_section_again() -> None:
    at = scan(_WHOLE).message_annotations
    entries, count = map_entries(_WHOLE, at)
    assert count == 2 * len(_ANNOTATIONS)
    assert map_section(MESSAGE_ANNOTATIONS, entries, count) == _WHOLE[at : at + len(entries) + 6]
    kept, left = map_entries(_WHOLE, at, frozenset([b"x-opt-partition-key", b"x-opt-nested"]))
    assert left == count - 4
    assert read_map(map_section(MESSAGE_ANNOTATIONS, kept, left), 0) == {
        "x-opt-scheduled-enqueue-time": Timestamp(1_700_000_000_000),
        "x-opt-null": None,
    }
    assert map_entries(_WHOLE, -1) == (b"", 0)


def test_what_runs_out_of_its_section_is_a_wire_error_though_bytes_follow() -> None:
    header = bytes.fromhex("00 53 70 c0 03 01 a1 05") + b"12345"
    with pytest.raises(WireError):
        list_field(header, 0, HeaderField.DURABLE)
    annotations = bytes.fromhex("00 53 72 c1 06 02 a3 01 6b a1 05") + b"12345"
    with pytest.raises(WireError):
        annotation(annotations, 0, b"k")
    with pytest.raises(WireError):
        map_entries(annotations, 0)
    body = b"\x00\x53\x77\xc0\x03\x01\xa1\x05" + b"12345"
    with pytest.raises(WireError):
        body_value(body, scan(body, 0, 8))


def test_a_time_that_no_timestamp_can_hold_is_a_wire_error() -> None:
    fields: list[object] = [*[None] * 8, ULong(2**63)]
    with pytest.raises(WireError):
        read_properties(encode(Described(ULong(0x73), fields)), 0)


def test_application_properties_are_a_dict_of_text() -> None:
    properties = application_properties(_WHOLE, scan(_WHOLE).application_properties)
    assert properties == {"colour": "red", "count": 3, "wait": _TIMESPAN}
    assert application_properties(b"", -1) == {}
    with pytest.raises(WireError):
        application_properties(b"\x00\x53\x74" + encode({1: 2}), 0)


# -- bodies and whole messages -----------------------------------------------------------------


def test_bodies_are_read_by_their_kind() -> None:
    for message, *bodies in (
        (encode_message(data=[b"a", b"b"], footer={"f": 1}), [b"a", b"b"], [], None),
        (encode_message(sequence=[1, "two"]), [], [1, "two"], None),
        (encode_message(value={"k": [1]}), [], [], {"k": [1]}),
        (encode_message(value=None), [], [], None),
        (encode_message(properties=Properties()), [], [], None),
    ):
        at = scan(message)
        assert [body_data(message, at), body_sequence(message, at), body_value(message, at)] == bodies


def test_a_body_may_hold_a_composite() -> None:
    message = encode_message(value=Discharge(b"txn", True))
    assert composed(body_value(message, scan(message))) == Discharge(b"txn", True)


def test_a_whole_message_survives_its_bytes() -> None:
    assert decode_message(_WHOLE) == DecodedMessage(
        header=_HEADER,
        delivery_annotations={"x-opt-lock-token": UUID(int=1)},
        message_annotations=dict(_ANNOTATIONS),
        properties=_PROPERTIES,
        application_properties={"colour": "red", "count": 3, "wait": _TIMESPAN},
        data=[b"first", b"second" * 100],
        sequence=[],
        value=None,
        footer={"x-opt-checksum": b"1234"},
    )


def test_text_keys_of_annotations_are_symbols_and_those_of_application_properties_strings() -> None:
    message = decode_message(_WHOLE)
    assert {type(key) for key in message.message_annotations} == {Symbol}
    assert {type(key) for key in message.application_properties} == {str}


# P-18: what a batch holds, each message on its own
def test_a_batch_is_split_into_its_messages() -> None:
    messages = [encode_message(properties=Properties(str(n)), data=bytes(300 * n)) for n in range(5)]
    batch = encode_message(properties=Properties(message_id="0"), data=messages)
    assert split_batch(batch) == messages
    assert split_batch(batch, scan(batch)) == messages


@pytest.mark.parametrize("body", [{"value": "text"}, {"sequence": [1]}, {}])
def test_a_batch_without_messages_is_a_wire_error(body: dict[str, object]) -> None:
    with pytest.raises(WireError):
        split_batch(encode_message(**body))


def test_two_kinds_of_body_at_once_are_refused_on_writing() -> None:
    with pytest.raises(AssertionError):
        encode_message(data=b"", value=None)
