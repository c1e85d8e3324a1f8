"""Composites are read and written by one table: names, order, types and mandatory fields."""

from __future__ import annotations

import dataclasses

import pytest

from bendybus.amqp import performatives
from bendybus.amqp.codec import decode, encode
from bendybus.amqp.composite import composed, decode_composite
from bendybus.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    SENDER,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from bendybus.amqp.types import Array, Described, Symbol, UInt, ULong, UShort
from bendybus.errors import WireError

_SAMPLES: list[object] = [
    Open(
        container_id="c", hostname="h", max_frame_size=65536, channel_max=10, idle_time_out=60000,
        outgoing_locales=["en-US"], offered_capabilities=["a", "b"], properties={"product": "p"},
    ),
    Begin(next_outgoing_id=1, incoming_window=2, outgoing_window=3),
    Begin(remote_channel=0, next_outgoing_id=0, incoming_window=0, outgoing_window=0, handle_max=255),
    Attach(
        name="link", handle=0, role=RECEIVER, snd_settle_mode=0, rcv_settle_mode=1,
        source=Source("queue", filter={"com.microsoft:session-filter": None}, default_outcome=RELEASED),
        target=Target(), unsettled={b"tag": None}, initial_delivery_count=0, max_message_size=2**40,
    ),
    Attach(name="control", handle=1, role=SENDER, source=Source(), target=Coordinator(["amqp:multi-txns"])),
    Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=0, drain=True),
    Transfer(handle=0, delivery_id=0, delivery_tag=b"", message_format=0, more=False),
    Transfer(handle=1, state=TransactionalState(b"txn", ACCEPTED), aborted=True),
    Disposition(role=RECEIVER, first=0, last=9, settled=True, state=ACCEPTED),
    Disposition(role=SENDER, first=0, state=Rejected(Error("amqp:not-found", "gone", {"k": "v"}))),
    Disposition(role=SENDER, first=0, state=Received(1, 2**33)),
    Disposition(role=SENDER, first=0, state=Modified(True, False, {"x-opt-a": 1})),
    Disposition(role=SENDER, first=0, state=Declared(b"\x00\x01")),
    Disposition(role=SENDER, first=0, state=Described(ULong(0x99), ["unknown"])),
    Detach(handle=0, closed=True, error=Error("amqp:link:stolen")),
    End(),
    Close(error=Error("amqp:connection:forced", "bye")),
    Declare(),
    Discharge(b"txn", False),
    SaslMechanisms(["ANONYMOUS", "PLAIN"]),
    SaslInit("PLAIN", b"\0user\0key", "host"),
    SaslOutcome(0),
]  # fmt: skip


@pytest.mark.parametrize("composite", _SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_composite_survives_its_bytes(composite: object) -> None:
    encoded = encode(composite)
    assert decode_composite(encoded, 0) == (composite, len(encoded))


@pytest.mark.parametrize("composite", _SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_composite_is_found_inside_a_decoded_value(composite: object) -> None:
    assert composed(decode(encode(composite))[0]) == composite


@pytest.mark.parametrize("composite", _SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_composite_cut_short_anywhere_is_a_wire_error(composite: object) -> None:
    encoded = encode(composite)
    for length in range(len(encoded)):
        with pytest.raises(WireError):
            decode_composite(encoded[:length], 0)


def test_every_field_is_written_since_some_clients_read_by_position() -> None:
    for composite in _SAMPLES:
        described, _ = decode(encode(composite))
        assert isinstance(described, Described)
        assert isinstance(described.value, list)
        assert len(described.value) == len(dataclasses.fields(composite))


def test_an_error_has_three_fields_wherever_it_stands() -> None:
    error = Described(ULong(0x1D), [Symbol("amqp:not-found"), None, None])
    assert decode(encode(Rejected(Error("amqp:not-found"))))[0] == Described(ULong(0x25), [error])
    assert decode(encode(Close(error=Error("amqp:not-found"))))[0] == Described(ULong(0x18), [error])


@pytest.mark.parametrize(
    "descriptor",
    ["5324", "800000000000000024", "a312" + b"amqp:accepted:list".hex()],
    ids=["small ulong", "ulong", "symbol"],
)
def test_a_descriptor_is_understood_in_every_form(descriptor: str) -> None:
    encoded = bytes.fromhex("00" + descriptor + "45")
    assert decode_composite(encoded, 0) == (ACCEPTED, len(encoded))
    assert composed(decode(encoded)[0]) == ACCEPTED


def test_fields_left_out_at_the_end_are_none() -> None:
    short = encode(Described(ULong(0x10), ["container"]))
    assert decode_composite(short, 0)[0] == Open(container_id="container")
    assert decode_composite(bytes.fromhex("00531845"), 0)[0] == Close()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (Symbol("one"), ["one"]),
        ("one", ["one"]),
        (Array(Symbol, [Symbol("one"), Symbol("two")]), ["one", "two"]),
        ([Symbol("one")], ["one"]),
        (Array(type(None), []), []),
        (None, None),
    ],
    ids=["symbol", "string", "array", "list", "empty", "null"],
)
def test_capabilities_come_alone_or_in_arrays(sent: object, read: list[str] | None) -> None:
    coordinator, _ = decode_composite(encode(Described(ULong(0x30), [sent])), 0)
    assert coordinator == Coordinator(read)


def test_symbols_are_written_as_an_array_and_none_of_them_as_null() -> None:
    assert decode(encode(Coordinator(["a"])))[0] == Described(ULong(0x30), [Array(Symbol, [Symbol("a")])])
    assert decode(encode(Coordinator([])))[0] == Described(ULong(0x30), [None])


def test_text_keys_of_fields_are_written_as_symbols() -> None:
    described, _ = decode(encode(Error("c", None, {"key": "value"})))
    assert isinstance(described, Described)
    assert isinstance(described.value, list)
    assert [type(key) for key in described.value[2]] == [Symbol]


def test_a_key_that_no_symbol_can_hold_goes_back_as_it_came() -> None:
    modified = Described(ULong(0x27), [None, None, {"größe": 1}])
    read, _ = decode_composite(encode(modified), 0)
    assert decode_composite(encode(read), 0)[0] == Modified(message_annotations={"größe": 1})


@pytest.mark.parametrize("number", [UInt(5), ULong(5), UShort(5), 5])
def test_any_integer_type_is_taken_for_a_number(number: int) -> None:
    detach, _ = decode_composite(encode(Described(ULong(0x16), [number])), 0)
    assert detach == Detach(handle=5)
    assert type(detach.handle) is int


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (0x10, [None]),
        (0x10, []),
        (0x10, [5]),
        (0x11, [None, UInt(1), UInt(1)]),
        (0x12, ["name", UInt(0)]),
        (0x12, ["name", UInt(0), True, None, None, "source"]),
        (0x12, ["name", UInt(0), True, None, None, Described(ULong(0x29), [])]),
        (0x12, ["name", UInt(0), True, None, None, None, Described(ULong(0x24), [])]),
        (0x12, ["name", UInt(0), True, None, None, Described(ULong(0x28), "no list")]),
        (0x14, []),
        (0x14, ["handle"]),
        (0x14, [True]),
        (0x14, [-1]),
        (0x14, [2**32]),
        (0x14, [UInt(0), None, "tag"]),
        (0x14, [UInt(0), None, None, None, UInt(1)]),
        (0x14, [UInt(0), *[None] * 6, "state"]),
        (0x14, [UInt(0), *[None] * 6, Described(ULong(0x28), [])]),
        (0x15, [True]),
        (0x16, [UInt(0), None, Described(ULong(0x1D), [])]),
        (0x16, [UInt(0), None, Described(ULong(0x1D), ["é"])]),
        (0x17, [None, None]),
        (0x18, [{}]),
        (0x1D, [Symbol("c"), None, {1: 2}]),
        (0x1D, [Symbol("c"), None, []]),
        (0x30, [Array(int, [1])]),
        (0x40, [None]),
        (0x99, []),
    ],
)
def test_fields_that_lack_or_have_the_wrong_type_are_wire_errors(code: int, fields: list[object]) -> None:
    with pytest.raises(WireError):
        decode_composite(encode(Described(ULong(code), fields)), 0)


def test_a_composite_of_something_else_than_a_list_is_a_wire_error() -> None:
    with pytest.raises(WireError):
        decode_composite(encode(Described(ULong(0x10), {"container": 1})), 0)
    with pytest.raises(WireError):
        decode_composite(encode(Described("amqp:open:list", [])), 0)
    with pytest.raises(WireError):
        decode_composite(b"\x45", 0)
    with pytest.raises(WireError):
        decode_composite(bytes.fromhex("00 53 18 c0 03 01 40 40"), 0)


def test_every_public_name_exists() -> None:
    assert [name for name in performatives.__all__ if not hasattr(performatives, name)] == []
