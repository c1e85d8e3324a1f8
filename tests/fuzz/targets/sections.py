"""Messages: finding their sections, reading them, admitting a message (`amqp/`, `envelope/`)."""

from __future__ import annotations

from bendybus.amqp.codec import decode, encode
from bendybus.amqp.message import (
    PropertyField,
    annotation,
    decode_message,
    identity,
    list_field,
    map_entries,
    scan,
    split_batch,
)
from bendybus.amqp.ordinary import ordinary
from bendybus.amqp.sections import in_order
from bendybus.domain.entities import QueueDescription
from bendybus.envelope.admission import admit, admit_batch, take_apart, take_apart_ordinary
from bendybus.errors import ArgumentError, InvalidOperation, MessageSizeExceeded, WireError
from bendybus.names import EntityPath, Instant
from fuzz.target import Target, refusals

QUEUE = QueueDescription(EntityPath("queue"))
SESSIONS = QueueDescription(EntityPath("sessions"), requires_session=True)
AT = Instant(1_800_000_000_000)


def check(data: bytes) -> None:
    with refusals(WireError):
        value, _ = decode(data)
        written = encode(value)
        again, end = decode(written)
        assert end == len(written)
        # Compared as bytes: a NaN is not equal to itself.
        assert encode(again) == written
    with refusals(WireError):
        _check_sections(data)
    with refusals(WireError):
        decode_message(data)
    with refusals(WireError):
        decode_message(in_order(data))
    with refusals(WireError):
        split_batch(data)
    _check_admission(data)


def _check_sections(data: bytes) -> None:
    sections = scan(data)
    found = ordinary(data)
    if found is not None:
        bare, message_id, group_id = found
        assert bare == max(sections.properties, 0)
        assert identity(data, sections.properties) == (message_id, group_id)
    with refusals(WireError):
        message_id, group_id = identity(data, sections.properties)
        assert repr(message_id) == repr(list_field(data, sections.properties, PropertyField.MESSAGE_ID))
        assert repr(group_id) == repr(list_field(data, sections.properties, PropertyField.GROUP_ID))
    with refusals(WireError):
        annotation(data, sections.message_annotations, b"x-opt-partition-key")
    with refusals(WireError):
        entries, count = map_entries(data, sections.message_annotations)
        assert (count == 0) == (not entries)


def _check_admission(data: bytes) -> None:
    with refusals(ArgumentError, WireError):
        found = take_apart_ordinary(data)
        assert found is None or found == take_apart(data)
    for queue in (QUEUE, SESSIONS):
        with refusals(ArgumentError, InvalidOperation, MessageSizeExceeded):
            admit(data, AT, queue)
        with refusals(ArgumentError, InvalidOperation, MessageSizeExceeded):
            admit_batch(data, AT, queue, partitioned=True)


TARGET = Target(
    name="sections",
    parses="AMQP values, sections of messages, and their admission",
    check=check,
    may_raise=(WireError, ArgumentError, InvalidOperation, MessageSizeExceeded),
    share=330,
    words=(
        *(bytes((0x00, 0x53, code)) for code in range(0x70, 0x79)),
        b"\xa3\x13x-opt-partition-key",
        b"\xa3\x17x-opt-via-partition-key",
        b"\xa3\x1cx-opt-scheduled-enqueue-time",
    ),
)
