"""Frames between brokers: what goes in comes out; what is too large or malformed is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus import errors
from bendybus.amqp.types import Symbol, Timestamp
from bendybus.cluster import items
from bendybus.cluster.frames import (
    HEAD_MAX,
    ROOM_KEPT,
    ROOM_MIN,
    TAIL_MAX,
    Frame,
    FrameError,
    FrameReader,
    FrameWriter,
    error_of,
    refusal_of,
)
from bendybus.cluster.items import (
    Answer,
    Ask,
    Call,
    Demand,
    Item,
    NewMessages,
    Payloads,
    Ping,
    Supply,
    kind_of,
    requests_in,
)
from bendybus.cluster.new_messages import taken_apart
from bendybus.domain.commands import (
    Abandon,
    Command,
    Complete,
    Enqueue,
    Enqueued,
    Given,
    LockDeferred,
    Peek,
    Reply,
    Settled,
    Transfer,
)
from bendybus.domain.messages import Amendment, Message, MessageState, Origin, Posting, SubQueue
from bendybus.domain.range_commands import Browse, Surveyed
from bendybus.domain.session_commands import AcceptSession, SessionAccepted, SessionLock, SetSessionState
from bendybus.domain.shelf import Counts
from fix_messages import message_fields

instants = st.integers(0, 2**53)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
tokens = st.binary(min_size=16, max_size=16)
postings = st.builds(
    Posting, texts, st.integers(0, 2**63), st.sampled_from(SubQueue), st.none() | st.integers(0, 99)
)
amendments = st.builds(
    Amendment,
    st.lists(st.binary(max_size=9)).map(tuple),
    st.none() | texts,
    st.none() | texts,
    postings,
    st.none() | instants,
    st.none() | st.integers(0, 2**63),
)


@st.composite
def messages(draw) -> Message:
    message = Message(
        draw(st.none() | st.binary(max_size=60)),
        draw(st.integers(0, 2**31)),
        draw(st.none() | instants),
        draw(st.none() | texts),
        origin=draw(
            st.none()
            | st.builds(Origin, st.integers(0, 2**63), hops=st.integers(0, 9), body=st.integers(0, 2**40))
        ),
    )
    message.sequence_number = draw(st.integers(0, 2**64 - 1))
    message.enqueued_at, message.delivery_count = draw(instants), draw(st.integers(0, 2000))
    message.state, message.subqueue = draw(st.sampled_from(MessageState)), draw(st.sampled_from(SubQueue))
    message.lock_token, message.locked_until = draw(st.none() | tokens), draw(instants)
    message.amendment, message.row_id = draw(st.none() | amendments), draw(st.integers(0, 2**62))
    return message


def fields(message: Message) -> list[object]:
    return [getattr(message, name) for name in sorted(message_fields())]


def written(*added: Item, writer: FrameWriter | None = None) -> bytes:
    writer = writer or FrameWriter()
    for item in added:
        writer.add(item)
    return b"".join(writer.take())


def fed(reader: FrameReader, data: bytes) -> Iterator[Frame]:
    """Bytes arrive. A connection brings as many at once as there is room for."""
    while data:
        room = reader.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        yield from reader.arrived(count)


def frames_of(data: bytes) -> Iterator[Frame]:
    return fed(FrameReader(), data)


def add_new(
    writer: FrameWriter,
    request: int,
    path: str,
    generation: str,
    number: int,
    sent: list[Message],
    deliveries: Sequence[int] = (),
) -> None:
    taken = taken_apart(sent)
    assert taken is not None
    writer.add_new_messages(request, path, generation, number, *taken, deliveries)


def crossed(command: Command) -> Command:
    """A command as the other broker gets it."""
    writer = FrameWriter()
    (frame,) = frames_of(written(writer.command(7, "orders", "g", 3, command), writer=writer))
    (ask,) = frame.items
    assert isinstance(ask, Ask)
    assert (ask.id, ask.path, ask.generation, ask.number) == (7, "orders", "g", 3)
    return frame.command(ask)


def answered(reply: Reply) -> Reply:
    writer = FrameWriter()
    (frame,) = frames_of(written(Answer(7, kind_of(reply), writer.encoded(reply)), writer=writer))
    (answer,) = frame.items
    assert isinstance(answer, Answer)
    return frame.reply(answer.kind, answer.body)


@given(st.lists(messages(), max_size=5))
def test_messages_arrive_as_they_were(sent: list[Message]) -> None:
    arrived = crossed(Enqueue(sent, ["a"] * len(sent), Transfer("g/3", [1, 2]), destination="other"))

    assert isinstance(arrived, Enqueue)
    assert list(map(fields, arrived.messages)) == list(map(fields, sent))
    assert arrived.transfer == Transfer("g/3", [1, 2])
    assert arrived.destination == "other"


@pytest.mark.parametrize(
    "command",
    [
        Complete([b"t" * 16, b"u" * 16]),
        Abandon([b"t" * 16], b"encoded"),
        Peek(2**63, 10, SubQueue.DEAD_LETTER, "session"),
        LockDeferred([1, 2], b"entropy", session=SessionLock("S", b"t" * 16, "s", b"h" * 16)),
        AcceptSession(None, b"entropy", exclusive=False),
        SetSessionState(SessionLock("S", b"t" * 16, "s"), b"\0state"),
        Browse(0, 9, 5, 1000, [MessageState.ACTIVE, MessageState.DEFERRED], enqueued_from=5),
    ],
    ids=lambda command: type(command).__name__,
)
def test_commands_arrive_as_they_were(command: Command) -> None:
    assert crossed(command) == command


@pytest.mark.parametrize(
    "reply",
    [
        Enqueued(2**63, 4, scheduled=True, duplicates=(1, 2)),
        Settled([b"t" * 16]),
        SessionAccepted(SessionLock("S", b"t" * 16, "s", b"h" * 16), 99),
        SessionAccepted(None),
        Surveyed(1, 2, 3, Counts(1, 2, 3, 4, 5)),
        Surveyed(4, 5, 6, Counts(1, 2, 3, 4, 5), vacant_from=2),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_replies_arrive_as_they_were(reply: Reply) -> None:
    assert answered(reply) == reply


@given(st.lists(messages(), max_size=5))
def test_messages_in_a_reply_arrive_as_they_were(given_out: list[Message]) -> None:
    reply = answered(Given(given_out))

    assert isinstance(reply, Given)
    assert list(map(fields, reply.messages)) == list(map(fields, given_out))


def test_payloads_of_several_items_share_the_tail() -> None:
    writer = FrameWriter()
    first, second = Message(b"one", 3), Message(b"three", 5)
    supply = Supply("orders", "g", 0, None, 4, 2, writer.encoded([first, second]))
    spans: list[tuple[int, int] | None] = [writer.add_payload(b"four"), None]

    (frame,) = frames_of(written(supply, Payloads(9, spans), writer=writer))

    found, read = frame.items
    assert isinstance(found, Supply)
    assert isinstance(read, Payloads)
    assert frame.payloads(read.spans) == [b"four", None]
    assert [message.payload for message in frame.messages(found.messages)] == [b"one", b"three"]


def test_commands_with_new_messages_that_follow_each_other_are_one_item() -> None:
    writer = FrameWriter()
    writer.add_payload(b"of something else")
    add_new(writer, 7, "orders", "g", 3, [Message(b"one", 4), Message(b"", 1, Timestamp(5))])
    add_new(writer, 8, "orders", "g", 0, [Message(b"three", 6, None, Symbol("session"))])

    (frame,) = frames_of(written(writer=writer))

    (item,) = frame.items
    assert isinstance(item, NewMessages)
    assert (item.path, item.generation) == ("orders", "g")
    assert requests_in(item) == range(7, 9)
    found = [
        (request, number, list(map(fields, command.messages)))
        for request, number, command in frame.new_messages(item)
    ]
    assert found == [
        (7, 3, [fields(Message(b"one", 4)), fields(Message(b"", 1, 5))]),
        (8, 0, [fields(Message(b"three", 6, None, "session"))]),
    ]


def test_each_command_has_the_deliveries_that_its_messages_came_in() -> None:
    writer = FrameWriter()
    messages = [Message(b"one", 4), Message(b"two", 4), Message(b"three", 6)]
    for request, deliveries in enumerate([(), (1, 1, 1), (2, 1)]):
        add_new(writer, request, "orders", "g", 3, messages, deliveries)

    (frame,) = frames_of(written(writer=writer))

    (item,) = frame.items
    assert isinstance(item, NewMessages)
    found = [tuple(command.deliveries) for _, _, command in frame.new_messages(item)]
    assert found == [(), (1, 1, 1), (2, 1)]


@pytest.mark.parametrize("deliveries", [[1], [1, 2], [2, 1, 0, 1]])
def test_deliveries_that_do_not_add_up_are_refused(deliveries: list[int]) -> None:
    heads = [(0, 1, None, None)] * 2
    item = NewMessages(1, "q", "g", [(0, 0, 2)], heads, {0: deliveries})
    (frame,) = frames_of(written(item))

    with pytest.raises(FrameError, match="deliveries"):
        list(frame.new_messages(frame.items[0]))


@pytest.mark.parametrize(
    ("request_number", "path", "generation"), [(9, "orders", "g"), (8, "other", "g"), (8, "orders", "h")]
)
def test_other_commands_with_new_messages_are_another_item(
    request_number: int, path: str, generation: str
) -> None:
    writer = FrameWriter()
    add_new(writer, 7, "orders", "g", 3, [Message(b"one", 4)])
    add_new(writer, request_number, path, generation, 3, [Message(b"two", 4)])

    (frame,) = frames_of(written(writer=writer))

    found = [each for item in frame.items for each in frame.new_messages(item)]
    assert [(request, [each.payload for each in sent.messages]) for request, _, sent in found] == [
        (7, [b"one"]),
        (request_number, [b"two"]),
    ]


def test_new_messages_stay_behind_what_was_added_before() -> None:
    writer = FrameWriter()
    add_new(writer, 1, "orders", "g", 3, [Message(b"one", 4)])
    writer.add(writer.command(2, "orders", "g", 3, Peek(0, 1)))
    add_new(writer, 3, "orders", "g", 3, [Message(b"two", 4)])

    (frame,) = frames_of(written(writer=writer))

    assert list(map(type, frame.items)) == [NewMessages, Ask, NewMessages]


@pytest.mark.parametrize(
    ("commands", "lengths"),
    [
        ([(0, 0, 2)], [1]),
        ([(0, 0, -1)], [1]),
        ([(0, 0, 1)], [5]),
        ([(0, -1, 1)], [1]),
        ([(0, 1, 2)], [5, -4]),
    ],
)
def test_new_messages_with_heads_that_do_not_fit_are_refused(
    commands: list[tuple[int, int, int]], lengths: list[int]
) -> None:
    writer = FrameWriter()
    writer.add_payload(b"four")
    heads = [(length, 1, None, None) for length in lengths]

    with pytest.raises(FrameError):
        (frame,) = frames_of(written(NewMessages(1, "q", "g", commands, heads), writer=writer))
        list(frame.new_messages(frame.items[0]))


def test_numbers_and_texts_of_amqp_arrive_as_plain_ones() -> None:
    message = Message(b"x", 1, Timestamp(5), Symbol("session"))
    message.enqueued_at = Timestamp(7)

    arrived = crossed(Enqueue([message], [Symbol("id")]))

    assert isinstance(arrived, Enqueue)
    (found,) = arrived.messages
    assert (found.expires_at, found.session_id, found.enqueued_at) == (5, "session", 7)
    assert arrived.identities == ["id"]


def test_payload_bytes_are_written_as_they_are() -> None:
    payload = b"x" * 1000
    writer = FrameWriter()
    writer.add(writer.command(1, "orders", "g", 0, Enqueue([Message(payload, 1000)])))

    assert any(piece is payload for piece in writer.take())


@given(st.lists(st.integers(0, 4), max_size=5), st.data())
def test_however_the_bytes_arrive_the_frames_are_the_same(counts: list[int], data) -> None:
    sent = [[Demand("orders", "g", 0, None, number) for number in range(count)] for count in counts]
    stream = b"".join(written(*each) for each in sent)
    reader, frames, at = FrameReader(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        frames += fed(reader, stream[at : at + size])
        at += size

    assert [frame.items for frame in frames] == sent


@pytest.mark.parametrize("size", [10, ROOM_MIN, 3 * ROOM_KEPT])
def test_a_frame_of_any_size_is_read(size: int) -> None:
    reader = FrameReader()
    stream = b""
    for text in (b"x" * size, b"y", b"z" * size):
        writer = FrameWriter()
        stream += written(Payloads(1, [writer.add_payload(text)]), writer=writer)

    found = []
    for frame in fed(reader, stream):
        (item,) = frame.items
        assert isinstance(item, Payloads)
        found += frame.payloads(item.spans)

    assert found == [b"x" * size, b"y", b"z" * size]


def test_the_memory_of_a_large_frame_is_not_kept() -> None:
    reader, writer = FrameReader(), FrameWriter()
    large = written(Payloads(1, [writer.add_payload(b"x" * 3 * ROOM_KEPT)]), writer=writer)

    list(fed(reader, large))

    assert len(reader.room()) == ROOM_MIN


def test_a_frame_that_is_kept_can_be_read_after_the_next_one_has_arrived() -> None:
    reader, frames = FrameReader(), []
    for text in (b"one", b"two"):
        writer = FrameWriter()
        for frame in fed(reader, written(Payloads(1, [writer.add_payload(text)]), writer=writer)):
            frame.keep()
            frames.append(frame)

    assert [frame.payloads(frame.items[0].spans) for frame in frames] == [[b"one"], [b"two"]]


@given(st.binary(max_size=200))
def test_what_is_not_a_frame_is_refused_or_waited_for(noise: bytes) -> None:
    try:
        frames = list(frames_of(noise))
    except FrameError:
        return
    assert not frames


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_malformed_head_is_refused(head: bytes, tail: bytes) -> None:
    data = struct.pack(">2sHII", b"BB", 1, len(head), len(tail)) + head + tail
    try:
        (frame,) = frames_of(data)
        for item in frame.items:
            if isinstance(item, Ask):
                frame.command(item)
    except FrameError:
        pass


@given(st.data())
def test_a_changed_byte_is_refused_or_is_another_frame_of_the_right_types(data) -> None:
    writer = FrameWriter()
    sent = bytearray(written(writer.command(1, "q", "g", 0, Enqueue([Message(b"body", 4)])), writer=writer))
    sent[data.draw(st.integers(12, len(sent) - 1))] = data.draw(st.integers(0, 255))
    try:
        for frame in frames_of(bytes(sent)):
            for item in frame.items:
                if isinstance(item, Ask):
                    frame.command(item)
    except FrameError:
        pass


@pytest.mark.parametrize("sizes", [(HEAD_MAX + 1, 0), (0, TAIL_MAX + 1)])
def test_a_frame_that_announces_too_much_is_refused_before_it_arrives(sizes: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match="at most"):
        list(frames_of(struct.pack(">2sHII", b"BB", 1, *sizes)))


class EarlierCall(msgspec.Struct, array_like=True, tag=14):
    """`Call` as brokers of earlier versions know it."""

    id: int
    name: str
    body: msgspec.Raw


def test_calls_of_brokers_that_do_not_say_who_asked_are_read_and_the_other_way_round() -> None:
    body = msgspec.Raw(msgspec.msgpack.encode("body"))
    earlier = msgspec.msgpack.encode(EarlierCall(1, "unsubscribe", body))
    later = msgspec.msgpack.encode(Call(1, "unsubscribe", body, ("manager", "10.0.0.1:5", "shop")))

    assert msgspec.msgpack.decode(earlier, type=Call).actor is None
    assert msgspec.msgpack.decode(later, type=EarlierCall).name == "unsubscribe"


def test_a_frame_of_another_version_is_refused() -> None:
    data = bytearray(written(Ping()))
    data[3] += 1

    with pytest.raises(FrameError, match="version"):
        list(frames_of(bytes(data)))


@pytest.mark.parametrize("span", [(-1, 2), (0, 99), (5, 1), (2, -1)])
def test_a_payload_outside_of_its_frame_is_refused(span: tuple[int, int]) -> None:
    writer = FrameWriter()
    writer.add_payload(b"four")
    (frame,) = frames_of(written(Ping(), writer=writer))

    with pytest.raises(FrameError, match="outside"):
        frame.payloads([span])


def test_a_command_with_an_unknown_number_is_refused() -> None:
    ask = Ask(1, "q", "g", 0, 9999, FrameWriter().encoded({}))
    (frame,) = frames_of(written(ask))

    with pytest.raises(FrameError, match="9999"):
        frame.command(ask)


def test_every_command_and_reply_crosses_or_is_the_owners_own() -> None:
    assert items.all_of(Command) == {*items.COMMANDS.values(), *items.LOCAL_COMMANDS}
    assert items.all_of(Reply) == {*items.REPLIES.values(), *items.LOCAL_REPLIES}


@pytest.mark.parametrize(
    "error",
    [
        errors.EntityNotFound("orders"),
        errors.QuotaExceeded("too much"),
        errors.StoreUnavailable("away"),
        errors.Unauthorized("no", sub_code=40103),
        errors.InvalidOperation("no", azure="Azure says no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_arrive_as_they_were(error: errors.BrokerError) -> None:
    (frame,) = frames_of(written(refusal_of(5, error)))
    (refusal,) = frame.items
    assert isinstance(refusal, items.Refusal)
    arrived = error_of(refusal)

    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))
    assert (arrived.condition, arrived.status, arrived.sub_code) == (
        error.condition,
        error.status,
        error.sub_code,
    )
