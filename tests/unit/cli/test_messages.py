"""Messages as JSON and as rows: what is shown can be sent again, and nothing else is taken."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.amqp.message import Properties, encode_message
from bendybus.amqp.types import Array, Described, Int, Symbol, Timestamp
from bendybus.cli.deadletter import ADDED, _origin
from bendybus.cli.messages import MessagePrinter
from bendybus.cli.options import read_property
from bendybus.cli.send import _post
from bendybus.client import ReceivedMessage, encode
from bendybus.domain.entities import QueueDescription
from bendybus.envelope import admit, render_browsed
from bendybus.errors import ArgumentError, ConfigError, WireError
from bendybus.names import EntityPath, Instant, SequenceNumber
from bendybus.operations.copies import copy_of
from bendybus.operations.deferred import shares
from bendybus.operations.drafts import Draft, draft_from_json, instant, milliseconds, shown_message
from bendybus.operations.moving import by_key
from fix_messages import UNREADABLE, with_unreadable

DAYS_60_MS = 60 * 86_400_000

texts = st.dictionaries(
    st.sampled_from(
        [
            *("message_id", "session_id", "partition_key", "subject", "correlation_id"),
            *("to", "reply_to", "reply_to_session_id"),
        ]
    ),
    st.text(min_size=1, max_size=20),
)
values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20)
drafts = st.builds(
    Draft,
    st.binary(max_size=50),
    texts,
    st.dictionaries(st.text(min_size=1, max_size=10), values, max_size=3),
    st.none() | st.integers(1, 2**32 - 1),
    st.none() | st.integers(0, 4_000_000_000_000),
)


@given(drafts)
def test_what_is_shown_as_json_is_read_back_as_the_same_message(draft: Draft) -> None:
    shown = json.loads(json.dumps(shown_message(ReceivedMessage(draft.encoded()))))
    assert draft_from_json(shown) == draft


def test_what_json_has_no_word_for_is_shown_as_text() -> None:
    payload = encode_message(
        message_annotations={"x-opt-enqueued-time": Timestamp(1_700_000_000_123), "x-opt-sequence-number": 7},
        application_properties={"id": UUID(int=1), "raw": b"\xff", "at": Timestamp(0)},
        data=b"\xff\xfe",
    )
    shown = shown_message(ReceivedMessage(payload))
    assert shown["enqueuedTime"] == "2023-11-14T22:13:20.123Z"
    assert shown["bodyBase64"] == "//4="
    assert shown["applicationProperties"] == {
        "id": "00000000-0000-0000-0000-000000000001",
        "raw": "/w==",
        "at": "1970-01-01T00:00:00.000Z",
    }


def test_what_no_calendar_and_no_json_has_is_shown_too() -> None:
    odd = {"at": Timestamp(2**62), "list": Array(Int, [Int(1)]), "span": Described(Symbol("x"), 12)}
    shown = shown_message(ReceivedMessage(encode_message(application_properties=odd, data=b"x")))
    assert json.loads(json.dumps(shown))["applicationProperties"] == {"at": 2**62, "list": [1], "span": 12}


@pytest.mark.parametrize("section", UNREADABLE)
def test_a_message_with_a_section_that_cannot_be_read_is_shown_without_it(section: str) -> None:
    stored, _ = admit(with_unreadable(section), Instant(1000), QueueDescription(EntityPath("q")))
    stored.sequence_number, stored.enqueued_at = SequenceNumber(7), Instant(1000)
    assert stored.payload is not None
    message = ReceivedMessage(render_browsed(stored, stored.payload))
    shown = shown_message(message)
    assert (shown["sequenceNumber"], shown["body"]) == (7, "x")
    # A copy would be without it.
    with pytest.raises(WireError):
        copy_of(message)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("text", "JSON object"),
        ({"body": {"a": 1}}, "'body' must be text"),
        ({"body": "\ud800"}, "half of a surrogate pair"),
        ({"bodyBase64": "!"}, "not base64"),
        ({"messageId": 5}, "'messageId' must be text"),
        ({"applicationProperties": []}, None),
        ({"applicationProperties": [1]}, "must be an object"),
        ({"applicationProperties": {"a": [1]}}, "the property 'a'"),
        ({"timeToLive": "100d"}, "from 1ms to 49d"),
        ({"scheduledEnqueueTime": "noon"}, "is not a time"),
    ],
)
def test_a_line_that_is_no_message_is_refused_by_what_is_wrong(line: object, told: str | None) -> None:
    if told is None:
        assert draft_from_json(line) == Draft()
    else:
        with pytest.raises(ArgumentError, match=told):
            draft_from_json(line)


@pytest.mark.parametrize(
    "draft",
    [
        Draft(texts={"content_type": "blåbær"}),
        Draft(texts={"subject": "\ud800"}),
        Draft(properties={"n": 2**70}),
    ],
)
def test_what_amqp_has_no_room_for_is_refused(draft: Draft) -> None:
    with pytest.raises(ArgumentError, match="the message cannot be sent"):
        draft.encoded()


def test_lifetimes_and_times_are_read() -> None:
    assert (milliseconds("1.5s"), milliseconds("PT1M")) == (1500, 60_000)
    assert instant("2023-11-14T22:13:20Z") == 1_700_000_000_000
    with pytest.raises(ArgumentError):
        milliseconds("unlimited")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
        ("a=5", ("a", "5")),
        ("a:=5", ("a", 5)),
        ("a:=true", ("a", True)),
        ('a:="x"', ("a", "x")),
    ],
)
def test_a_property_is_text_unless_it_is_told_as_json(text: str, read: tuple[str, object]) -> None:
    assert read_property(text) == read


@pytest.mark.parametrize("text", ["a", "=b", ":=5", "a:=", "a:=[1]", "a:=nope"])
def test_a_property_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--property is"):
        read_property(text)


class _Posts:
    """Notes what is posted, in place of a `Sender`."""

    def __init__(self) -> None:
        self.posts: list[tuple[int, str | None]] = []

    def post(self, messages: list[bytes], key: str | None = None) -> None:
        self.posts.append((len(messages), key))


@pytest.mark.row("P-18")
def test_equal_keys_share_batches_and_messages_without_go_alone() -> None:
    keys = ["a"] * 150 + [None, None] + ["b", "a"]
    sender = _Posts()
    given = (Draft(texts={} if key is None else {"partition_key": key}) for key in keys)
    assert sum(_post(sender, given)) == 154
    assert sender.posts == [(100, "a"), (50, "a"), (1, None), (1, None), (1, "b"), (1, "a")]


@pytest.mark.row("P-13")
def test_a_session_is_the_key_before_the_partition_key() -> None:
    assert Draft(texts={"session_id": "s", "partition_key": "p"}).key == "s"


def test_a_dead_letter_goes_out_as_it_came_in() -> None:
    letter = encode_message(
        message_annotations={"x-opt-partition-key": "ada", "x-opt-sequence-number": 7},
        properties=ReceivedMessage(Draft(texts={"message_id": "1"}).encoded()).parts.properties,
        application_properties={"own": 1, "DeadLetterReason": "r", "DeadLetterErrorDescription": "d"},
        value={"any": ["kind", 1]},
    )
    copy = ReceivedMessage(copy_of(ReceivedMessage(letter), without=ADDED))
    assert (copy.message_id, copy.partition_key, copy.sequence_number) == ("1", "ada", 0)
    assert copy.application_properties == {"own": 1}
    assert copy.parts.value == {"any": ["kind", 1]}
    assert ReceivedMessage(copy_of(ReceivedMessage(letter), message_id="2")).message_id == "2"


def test_a_copy_lives_as_long_as_the_original_even_more_than_49_days() -> None:
    original = encode_message(
        properties=Properties(creation_time=Timestamp(5), absolute_expiry_time=Timestamp(5 + DAYS_60_MS)),
        data=b"x",
    )
    copy = ReceivedMessage(copy_of(ReceivedMessage(original))).parts
    assert copy.header.ttl == 0xFFFFFFFF
    created_at, ends_at = copy.properties.creation_time, copy.properties.absolute_expiry_time
    assert created_at is not None and created_at > 5 and ends_at == created_at + DAYS_60_MS


def test_messages_of_a_key_move_in_order_whatever_its_case() -> None:  # P-13
    named = [
        ReceivedMessage(encode(b"", session_id=key, message_id=key)) for key in ("s", "S", "s", "t", "S")
    ]
    moved = [(key, [message.message_id for message in group]) for key, group in by_key(named)]
    assert moved == [("s", ["s"]), ("S", ["S"]), ("s", ["s"]), ("S", ["S"]), ("t", ["t"])]


def test_dead_letters_of_a_subscription_go_back_to_its_topic() -> None:
    assert _origin("News/Subscriptions/all") == "News"
    assert _origin("Orders/eu") == "Orders/eu"


def test_sequence_numbers_are_asked_for_partition_by_partition() -> None:
    numbers = [*range(1, 151), 1 << 48 | 1]
    assert [len(share) for share in shares(numbers, 100)] == [100, 50, 1]
    assert list(shares([], 100)) == []


def test_a_row_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    payload = Draft(b"a\x1b[2Jb\nc", {"message_id": "\x07"}).encoded()
    MessagePrinter(as_json=False).show(ReceivedMessage(payload))
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["Sequence", "number", "Enqueued", "(UTC)", "Message", "id", "Key", "Body"]
    assert row.endswith("a\\x1b[2Jb\\nc")
    assert "\\x07" in row
