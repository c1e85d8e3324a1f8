"""BrokerProperties: everything Service Bus knows by name, in every spelling its clients use."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.message import Header, Properties
from bendybus.amqp.types import Timestamp
from bendybus.domain.messages import Message, MessageState
from bendybus.errors import ArgumentError
from bendybus.names import Instant, LockToken, SequenceNumber
from bendybus.rest.properties import UNLIMITED_S, broker_properties, parse_json, sections_of

AT = Instant(1_700_000_000_000)
TOKEN = LockToken(bytes(range(16)))

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
GIVEN = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            *("CorrelationId", "Label", "MessageId", "PartitionKey"),
            *("ReplyTo", "ReplyToSessionId", "SessionId", "To"),
        ),
        TEXTS,
    )
    | {"ScheduledEnqueueTimeUtc": st.just("Tue, 14 Nov 2023 22:13:20 GMT")},
)


def stored(expires_at: int | None = None) -> Message:
    message = Message(b"", size=0, expires_at=None if expires_at is None else Instant(expires_at))
    message.sequence_number = SequenceNumber(5 << 48 | 7)
    message.enqueued_at = AT
    message.lock_token = TOKEN
    message.locked_until = Instant(AT + 60_000)
    return message


@given(GIVEN)
def test_what_a_sender_says_is_what_a_receiver_is_told(given):
    header, annotations, properties = sections_of(given, None, AT)
    told = json.loads(broker_properties(stored(), header, properties, annotations, locked=True))
    assert {name: value for name, value in told.items() if name in given} == given


def test_a_locked_message_tells_all_that_the_broker_knows():
    told = json.loads(broker_properties(stored(), Header(), Properties(message_id="m"), {}, locked=True))
    assert told == {
        "DeliveryCount": 1,
        "EnqueuedSequenceNumber": 5 << 48 | 7,
        "EnqueuedTimeUtc": "Tue, 14 Nov 2023 22:13:20 GMT",
        "LockToken": str(UUID(bytes_le=TOKEN)),
        "LockedUntilUtc": "Tue, 14 Nov 2023 22:14:20 GMT",
        "MessageId": "m",
        "SequenceNumber": 5 << 48 | 7,
        "State": "Active",
        "TimeToLive": UNLIMITED_S,
    }


def test_a_deleted_message_has_no_lock():
    told = json.loads(broker_properties(stored(), Header(), Properties(), {}, locked=False))
    assert not {"LockToken", "LockedUntilUtc"} & set(told)


def test_lifetime_state_and_count_are_the_brokers():
    message = stored(AT + 1500)
    message.delivery_count = 2
    annotations = {"x-opt-message-state": MessageState.DEFERRED}
    told = json.loads(broker_properties(message, Header(), Properties(), annotations, locked=True))
    assert (told["TimeToLive"], told["DeliveryCount"], told["State"]) == (1.5, 3, "Deferred")


@pytest.mark.parametrize(("sent_ms", "told_s"), [(1505, 1.505), (60_000, 1.5), (None, 1.5)])
def test_a_lifetime_is_the_senders_or_the_entitys_where_that_is_less(sent_ms, told_s):
    told = json.loads(
        broker_properties(stored(AT + 1500), Header(ttl=sent_ms), Properties(), {}, locked=True)
    )
    assert told["TimeToLive"] == told_s


@pytest.mark.parametrize(
    ("message_id", "text"),
    [(UUID(int=7), str(UUID(int=7))), (b"\x01\xff", "01ff"), (7, "7"), ("Grüße", "Grüße")],
)
def test_an_id_of_any_type_is_told_as_text(message_id, text):
    header = broker_properties(stored(), Header(), Properties(message_id=message_id), {}, locked=True)
    assert header.isascii()
    assert json.loads(header)["MessageId"] == text


@pytest.mark.parametrize(
    ("given", "ttl_ms"),
    [
        ({"TimeToLive": 90}, 90_000),
        ({"TimeToLive": "90"}, 90_000),
        ({"TimeToLive": 0.25}, 250),
        ({"TimeToLive": 1e-9}, 1),
        ({"TimeToLive": UNLIMITED_S}, None),
        ({"TimeToLiveTimeSpan": "00:01:30"}, 90_000),
        ({"TimeToLiveTimeSpan": "1.00:00:00.5"}, 86_400_500),
        ({}, None),
        ({"TimeToLive": None}, None),
    ],
)
def test_a_lifetime_is_in_seconds_or_a_time_span(given, ttl_ms):
    assert sections_of(given, None, AT)[0].ttl == ttl_ms


def test_numbers_and_flags_may_come_as_text():
    """Old Python clients send every value as a JSON string."""
    assert sections_of({"ForcePersistence": "true"}, None, AT)[0].durable is True
    assert sections_of({"ForcePersistence": "False"}, None, AT)[0].durable is None
    assert sections_of({"MessageId": 7}, None, AT)[2].message_id == "7"


def test_unknown_names_are_ignored():
    assert sections_of({"State": "Active", "SequenceNumber": 3, "Nonsense": [1]}, None, AT)[2] == Properties()


def test_content_type_and_keys_find_their_sections():
    given = {
        "PartitionKey": "p",
        "ViaPartitionKey": "v",
        "ScheduledEnqueueTimeUtc": "Tue, 14 Nov 2023 22:13:20 GMT",
    }
    _, annotations, properties = sections_of(given, "text/plain", AT)
    assert annotations == {
        "x-opt-partition-key": "p",
        "x-opt-via-partition-key": "v",
        "x-opt-scheduled-enqueue-time": Timestamp(AT),
    }
    assert properties.content_type == "text/plain"


@pytest.mark.parametrize(
    "given",
    [
        [],
        "x",
        None,
        {"MessageId": ["m"]},
        {"MessageId": True},
        {"Label": {}},
        {"Label": "\ud800"},
        {"TimeToLive": "soon"},
        {"TimeToLive": 0},
        {"TimeToLive": -1},
        {"TimeToLive": "nan"},
        {"TimeToLive": True},
        {"TimeToLive": 10**400},
        {"TimeToLiveTimeSpan": "1:2"},
        {"TimeToLiveTimeSpan": 5},
        {"ScheduledEnqueueTimeUtc": "tomorrow"},
        {"ForcePersistence": "perhaps"},
        {"ForcePersistence": 1},
    ],
    ids=repr,
)
def test_what_cannot_be_meant_is_refused(given):
    with pytest.raises(ArgumentError):
        sections_of(given, None, AT)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, '{"a": NaN}', "1" * 5000, b"\xff\xfe\xfd"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ArgumentError, match="The header"):
        parse_json(text, "The header")
