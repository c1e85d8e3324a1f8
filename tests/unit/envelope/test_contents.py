"""What rules see of a stored message, and what their actions make of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.message import Header, Properties, decode_message, encode_message
from bendybus.amqp.types import Described, Float32, Int, Symbol, Timestamp, UByte
from bendybus.domain.copies import origin_of
from bendybus.domain.filters import NO_CHANGES, Changes, SystemProperty
from bendybus.domain.intake import Accepting
from bendybus.domain.messages import Message, Origin
from bendybus.domain.topic_entities import TopicDescription
from bendybus.envelope import admit, render
from bendybus.envelope.contents import AmqpContents
from bendybus.errors import FilterError
from bendybus.names import EntityPath, Instant, SequenceNumber

AT = Instant(1_700_000_000_000)
TOPIC: Accepting = TopicDescription(EntityPath("t"))
CONTENTS = AmqpContents()
ID = UUID("12345678-1234-5678-1234-567812345678")


def stored(**sections: Any) -> Message:
    """A message as a topic has it when it is about to be published."""
    sections.setdefault("properties", Properties(message_id="m"))
    message, _ = admit(encode_message(**{"data": b"body", **sections}), AT, TOPIC)
    message.sequence_number = SequenceNumber(5)
    message.enqueued_at = AT
    return message


def rendered(message: Message, payload: bytes) -> Any:
    return decode_message(b"".join(render(message, payload, locked=False)))


def test_user_properties_are_values_of_the_language() -> None:
    spans = Described(Symbol("com.microsoft:timespan"), 15_000_000)
    moment = Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000 + 10_000_000)
    given = {
        "text": "x",
        "int": Int(5),
        "byte": UByte(7),
        "float": Float32(0.5),
        "flag": True,
        "id": ID,
        "at": Timestamp(AT),
        "span": spans,
        "offset": moment,
        "uri": Described(Symbol("com.microsoft:uri"), "http://x"),
        "bytes": b"b",
        "nothing": None,
        "list": [1],
        "beyond": Timestamp(1 << 62),
    }
    user = CONTENTS.view(stored(application_properties=given)).user
    assert dict(user) == {
        "text": "x",
        "int": 5,
        "byte": 7,
        "float": 0.5,
        "flag": True,
        "id": ID,
        "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "span": timedelta(seconds=1.5),
        "offset": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "uri": "http://x",
        "bytes": b"b",
        "nothing": None,
        "list": None,
        "beyond": None,
    }


def test_system_properties_are_found_where_amqp_has_them() -> None:
    message = stored(
        header=Header(ttl=60_000),
        message_annotations={"x-opt-partition-key": "k", "x-opt-scheduled-enqueue-time": Timestamp(1000)},
        properties=Properties(
            message_id=ID,
            to="to",
            subject="label",
            reply_to="back",
            correlation_id=7,
            content_type="text",
            reply_to_group_id="rs",
        ),
    )
    view = CONTENTS.view(message)
    assert {name: view.system(name) for name in SystemProperty} == {
        SystemProperty.MESSAGE_ID: str(ID),
        SystemProperty.CORRELATION_ID: "7",
        SystemProperty.LABEL: "label",
        SystemProperty.TO: "to",
        SystemProperty.REPLY_TO: "back",
        SystemProperty.REPLY_TO_SESSION_ID: "rs",
        SystemProperty.SESSION_ID: None,
        SystemProperty.CONTENT_TYPE: "text",
        SystemProperty.PARTITION_KEY: "k",
        SystemProperty.VIA_PARTITION_KEY: None,
        SystemProperty.TIME_TO_LIVE: timedelta(minutes=1),
        SystemProperty.SCHEDULED_ENQUEUE_TIME: datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        SystemProperty.ENQUEUED_TIME: datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        SystemProperty.EXPIRES_AT: datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC),
        SystemProperty.SEQUENCE_NUMBER: 5,
        SystemProperty.ENQUEUED_SEQUENCE_NUMBER: 5,
        SystemProperty.DELIVERY_COUNT: 0,
        SystemProperty.SIZE: message.size,
    }


def test_an_expiry_after_the_year_9999_is_unknown_to_rules() -> None:
    # .NET sends the largest time of its own; from the time of arrival on, the lifetime ends later than that.
    message = stored()
    message.expires_at = Instant(253_402_300_799_999 + 10)
    assert CONTENTS.view(message).system(SystemProperty.EXPIRES_AT) is None


def test_rules_see_the_number_that_a_forwarded_message_had_first() -> None:
    # As its receivers do.
    message = stored()
    message.origin = Origin(SequenceNumber(3), hops=1)
    view = CONTENTS.view(message)
    assert view.system(SystemProperty.ENQUEUED_SEQUENCE_NUMBER) == origin_of(message).sequence_number == 3
    assert view.system(SystemProperty.SEQUENCE_NUMBER) == 5
    # A scheduled message has a new number when it is due.
    message.origin = Origin(SequenceNumber(4))
    assert view.system(SystemProperty.ENQUEUED_SEQUENCE_NUMBER) == origin_of(message).sequence_number == 5


def test_an_action_changes_what_it_names_and_nothing_else() -> None:
    message = stored(
        header=Header(durable=True, priority=7),
        message_annotations={"x-opt-partition-key": "k", "mine": Int(1)},
        properties=Properties(message_id="m", subject="old", content_encoding="zip"),
        application_properties={"keep": Int(1), "drop": 2, "change": 3, "list": [1]},
        footer={"sum": 9},
    )
    changes = Changes(
        system={
            SystemProperty.LABEL: "new",
            SystemProperty.SESSION_ID: "s",
            SystemProperty.PARTITION_KEY: None,
            SystemProperty.VIA_PARTITION_KEY: "v",
            SystemProperty.TIME_TO_LIVE: timedelta(seconds=5),
        },
        user={
            "change": "three",
            "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "span": timedelta(seconds=1),
        },
        removed=("drop",),
    )
    assert message.payload is not None
    changed = rendered(message, CONTENTS.changed(message.payload, changes))
    assert (changed.properties.subject, changed.properties.group_id) == ("new", "s")
    assert (changed.properties.message_id, changed.properties.content_encoding) == ("m", "zip")
    assert (changed.header.ttl, changed.header.priority, changed.header.durable) == (5000, 7, True)
    assert changed.application_properties == {
        "keep": 1,
        "change": "three",
        "list": [1],
        "at": 1000,
        "span": Described(Symbol("com.microsoft:timespan"), 10_000_000),
    }
    assert isinstance(changed.application_properties["keep"], Int)
    assert "x-opt-partition-key" not in changed.message_annotations
    assert changed.message_annotations["x-opt-via-partition-key"] == "v"
    assert isinstance(changed.message_annotations["mine"], Int)
    assert (changed.data, changed.footer) == ([b"body"], {"sum": 9})


values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=9)
)


@given(
    st.dictionaries(st.text(max_size=10), values, max_size=5),
    st.sampled_from([{"data": b"x"}, {"value": "text"}, {"sequence": [1, "a"]}, {"data": [b"a", b"b"]}]),
)
def test_without_changes_the_message_stays_what_it_was(
    properties: dict[str, Any], body: dict[str, Any]
) -> None:
    body = {"data": None, **body} if "data" not in body else body
    message = stored(application_properties=properties or None, **body)
    assert message.payload is not None
    assert rendered(message, CONTENTS.changed(message.payload, NO_CHANGES)) == rendered(
        message, message.payload
    )


def test_what_cannot_be_read_or_written_is_a_filter_error() -> None:
    broken = stored(application_properties={"n": 1})
    assert broken.payload is not None
    broken.payload = broken.payload.replace(b"\x00\x53\x74\xc1\x06\x02", b"\x00\x53\x74\xc1\x06\x06")
    with pytest.raises(FilterError, match="cannot be read"):
        CONTENTS.view(broken)
    with pytest.raises(FilterError, match="cannot be written"):
        CONTENTS.changed(broken.payload, NO_CHANGES)
