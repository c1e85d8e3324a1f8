"""Frames between brokers: items <-> bytes. No I/O.

    "BB" | version, 2 bytes | length of the head, 4 | length of the tail, 4 | head | tail

The head is a MessagePack array of items (items.py). The tail is the payloads of all messages in the frame,
one after the other; a message in the head says where its payload lies. So a payload is neither encoded nor
escaped. Everything is bounded and typed; what does not fit is a `FrameError`, and the connection is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from bendybus import errors
from bendybus.cluster.heads import FrameError, MessageHead
from bendybus.cluster.items import COMMANDS, REPLIES, Ask, Item, NewMessages, Refusal, Stored, kind_of
from bendybus.cluster.new_messages import NewHead, messages_of
from bendybus.domain.commands import Command, Enqueue, Enqueued, Reply
from bendybus.domain.evaluation import Evaluated
from bendybus.domain.messages import Message, Origin
from bendybus.domain.session_commands import SessionAccepted, SetSessionState
from bendybus.errors import BrokerError, MessageSizeExceeded

__all__ = ["FRAME_VERSION", "HEAD_MAX", "TAIL_MAX", "Frame", "FrameError", "FrameReader", "FrameWriter"]

FRAME_VERSION: Final = 1

# The largest message of the Premium tier has 100 MB. Frames of more than one message are much smaller.
TAIL_MAX: Final = 128 * 1024 * 1024
# A head has a hundred bytes for a message, and a command has a few thousand messages at most. But session
# states are in heads too, and one may be as large as a message.
HEAD_MAX: Final = TAIL_MAX
# The rest is for what is in the frame already, and for the heads.
COMMIT_BYTES_MAX: Final = TAIL_MAX - 8 * 1024 * 1024

# Of the memory for what arrives. It grows to hold the whole of a larger frame, and is kept up to this size.
ROOM_MIN: Final = 256 * 1024
ROOM_KEPT: Final = 2 * 1024 * 1024

_PREFIX: Final = Struct(">2sHII")
_MARK: Final = b"BB"

T = TypeVar("T")


_ERRORS: Final = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, BrokerError)
}


class FrameWriter:
    """Collects items and makes frames of them. One for each connection."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._payloads: list[bytes] = []
        self.size = 0
        """Of the tail, in bytes."""
        self.encoded_size = 0
        """Of the values in the head, in bytes. Session states and requests over HTTP are there."""
        self._tail_max = TAIL_MAX
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._shown)

    @property
    def is_empty(self) -> bool:
        return not self._items

    def add(self, item: Item) -> None:
        self._items.append(item)

    def add_new_messages(
        self,
        request: int,
        path: str,
        generation: str,
        number: int,
        heads: Sequence[NewHead],
        payloads: Sequence[bytes],
        deliveries: Sequence[int] = (),
    ) -> None:
        """A command that enqueues messages that are new. Commands that follow each other are one item."""
        last = self._items[-1] if self._items else None
        if (
            isinstance(last, NewMessages)
            and last.id + len(last.commands) == request
            and last.path == path
            and last.generation == generation
        ):
            item = last
        else:
            item = NewMessages(request, path, generation, [], [], {})
            self.add(item)
        if deliveries:
            usual = len(deliveries) == len(heads)
            item.deliveries[len(item.commands)] = [] if usual else list(deliveries)
        item.commands.append((number, self.size, len(heads)))
        item.heads.extend(heads)
        self._payloads.extend(payloads)
        self.size += sum(map(len, payloads))

    def add_stored(self, request: int, reply: Enqueued) -> None:
        """The answer to a command. Answers that follow each other are one item."""
        last = self._items[-1] if self._items else None
        if isinstance(last, Stored):
            item = last
        else:
            item = Stored([])
            self.add(item)
        item.answers.append((request, reply.first, reply.count, reply.scheduled))

    def command(self, request: int, path: str, generation: str, number: int, command: Command) -> Ask:
        """A command, to be added to this frame."""
        return Ask(request, path, generation, number, kind_of(command), self.encoded(command))

    def encoded(self, value: object, payload_bytes_max: int = TAIL_MAX) -> Raw:
        """A command, a reply or messages, for an item of this frame. Payloads go into its tail.

        Beyond `payload_bytes_max` messages go without: the other broker reads those from the store.
        """
        self._tail_max = self.size + payload_bytes_max
        return self._counted(self._encoder.encode(value))

    def encoded_messages(self, messages: Sequence[Message], payloads: Sequence[bytes] | None = None) -> Raw:
        """Messages, for an item of this frame. `payloads`: those that are not in memory, and all others."""
        self._tail_max = TAIL_MAX
        if payloads is None:
            return self._counted(self._encoder.encode(messages))
        pairs = zip(messages, payloads, strict=True)
        heads = [self._head(message, payload) for message, payload in pairs]
        return self._counted(self._encoder.encode(heads))

    def _counted(self, body: bytes) -> Raw:
        self.encoded_size += len(body)
        return Raw(body)

    def add_payload(self, payload: bytes) -> tuple[int, int]:
        """Put a payload into the tail. Returns its span: where it begins, and its length."""
        at = self.size
        self._payloads.append(payload)
        self.size += len(payload)
        return at, len(payload)

    def take(self) -> list[bytes]:
        """The frame as pieces that are to be written in this order. The next frame begins."""
        head = self._encoder.encode(self._items)
        if len(head) > HEAD_MAX or self.size > TAIL_MAX:
            raise FrameError(f"a frame of {len(head)} and {self.size} bytes is too large")
        pieces = [_PREFIX.pack(_MARK, FRAME_VERSION, len(head), self.size) + head, *self._payloads]
        self._items, self._payloads, self.size, self.encoded_size = [], [], 0, 0
        return pieces

    def _shown(self, value: object) -> object:
        if isinstance(value, Message):
            return self._head(value, value.payload)
        if isinstance(value, Evaluated):
            return None
        # Numbers and texts that remember their type in AMQP, such as a timestamp.
        if isinstance(value, int):
            return int(value)
        if isinstance(value, str):
            return str(value)
        raise NotImplementedError(f"{type(value).__name__} does not cross brokers")

    def _head(self, message: Message, payload: bytes | None) -> tuple[object, ...]:
        fits = payload is not None and self.size + len(payload) <= self._tail_max
        at, length = self.add_payload(payload) if payload is not None and fits else (None, 0)
        origin = message.origin
        return (
            at,
            length,
            message.size,
            message.expires_at,
            message.session_id,
            None if origin is None else (origin.sequence_number, origin.hops, origin.body),
            message.sequence_number,
            message.enqueued_at,
            message.delivery_count,
            message.state,
            message.subqueue,
            message.lock_token,
            message.locked_until,
            message.amendment,
            message.row_id,
        )


class Frame:
    """A frame that has been read: its items, and what their bodies mean."""

    __slots__ = ("_decoders", "_tail", "items")

    def __init__(self, head: bytes, tail: memoryview, decoders: _Decoders) -> None:
        self._tail = tail
        self._decoders = decoders
        self.items: list[Item] = decoders.items(head)

    def keep(self) -> None:
        """For a frame that is read later: the connection's buffer will have the next frame by then."""
        self._tail = memoryview(bytes(self._tail))

    def command(self, ask: Ask) -> Command:
        decoded: Command = self._decoded(COMMANDS, ask.kind, ask.body)
        return decoded

    def reply(self, kind: int, body: Raw) -> Reply:
        decoded: Reply = self._decoded(REPLIES, kind, body)
        return decoded

    def messages(self, body: Raw) -> list[Message]:
        return self.decoded(list[Message], body)

    def accepted(self, body: Raw) -> SessionAccepted:
        return self.decoded(SessionAccepted, body)

    def decoded(self, kind: type[T], body: Raw) -> T:
        """The value in this body, which must be of this type."""
        found: T = self._decoders.decode(kind, body, self._tail)
        return found

    def payloads(self, spans: Iterable[tuple[int, int] | None]) -> list[bytes | None]:
        return [None if span is None else payload_at(self._tail, *span) for span in spans]

    def new_messages(self, item: NewMessages) -> Iterator[tuple[int, int, Enqueue]]:
        """The number of each command, its partition, and the command."""
        first = 0
        for index, (number, at, count) in enumerate(item.commands):
            heads = item.heads[first : first + count]
            if len(heads) != count:
                raise FrameError(f"a command of {count} messages has the heads of {len(heads)}")
            payloads = payload_at(self._tail, at, sum([length for length, *_ in heads]))
            command = Enqueue(messages_of(heads, payloads))
            if index in item.deliveries:
                command.deliveries = deliveries = item.deliveries[index] or [1] * count
                if sum(deliveries) != count:
                    raise FrameError(f"a command of {count} messages has deliveries of {sum(deliveries)}")
            yield item.id + index, number, command
            first += count

    def _decoded(self, table: dict[int, type], kind: int, body: Raw) -> Any:
        found = table.get(kind)
        if found is None:
            raise FrameError(f"there is no command or reply with the number {kind}")
        return self.decoded(found, body)


class FrameReader:
    """Cuts what a connection brings into frames.

    The connection writes into a buffer that is reused (`room`), because a new large buffer is expensive. So a
    frame can be read until the next call, and later only if it is `kept`. The limits may be changed between
    two frames.
    """

    def __init__(self, head_max: int = HEAD_MAX, tail_max: int = TAIL_MAX) -> None:
        """The limits say how large a frame may be."""
        self.head_max = head_max
        self.tail_max = tail_max
        self._memory = memoryview(bytearray(ROOM_MIN))
        self._filled = 0
        """The number of bytes that have arrived and are not read yet: the beginning of a frame."""
        self._decoders = _Decoders()

    def room(self) -> memoryview:
        """Where the bytes that arrive next are to be written."""
        return self._memory[self._filled :]

    def arrived(self, count: int) -> Iterator[Frame]:
        """The frames that are complete, now that this many bytes were written into the room."""
        memory, filled = self._memory, self._filled + count
        self._filled = filled
        at = 0
        while (end := self._end(memory, at, filled)) <= filled:
            head_at = at + _PREFIX.size
            _, _, head_size, _ = _PREFIX.unpack_from(memory, at)
            tail_at = head_at + head_size
            yield Frame(bytes(memory[head_at:tail_at]), memory[tail_at:end], self._decoders)
            at = end
        self._begin_with(memory[at:filled], end - at)

    def _begin_with(self, rest: memoryview, size: int) -> None:
        """Continue with a frame of this size, as far as is known, of which this has arrived."""
        if size > len(self._memory) or ROOM_KEPT < len(self._memory) >= 2 * size:
            self._memory = memoryview(bytearray(max(size, ROOM_MIN)))
        self._memory[: len(rest)] = rest
        self._filled = len(rest)

    def _end(self, memory: memoryview, at: int, filled: int) -> int:
        """Where the frame that begins here ends, as far as is known."""
        if filled - at < _PREFIX.size:
            return at + _PREFIX.size
        mark, version, head_size, tail_size = _PREFIX.unpack_from(memory, at)
        if mark != _MARK or version != FRAME_VERSION:
            raise FrameError("this is not a frame of a broker of this version")
        if head_size > self.head_max or tail_size > self.tail_max:
            raise FrameError(
                f"a frame of {head_size} and {tail_size} bytes; at most {self.head_max} and {self.tail_max}"
            )
        end: int = at + _PREFIX.size + head_size + tail_size
        return end


class _Decoders:
    """Decoders by type. Making one takes longer than using it."""

    def __init__(self) -> None:
        self._by_type: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
        self._items = msgspec.msgpack.Decoder(list[Item])
        self._tail = memoryview(b"")

    def items(self, head: bytes) -> list[Item]:
        try:
            return self._items.decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as refusal:
            raise FrameError(f"a head is malformed: {refusal}") from refusal

    def decode(self, kind: Any, body: Raw, tail: memoryview) -> Any:
        decoder = self._by_type.get(kind)
        if decoder is None:
            decoder = self._by_type[kind] = msgspec.msgpack.Decoder(kind, dec_hook=self._built)
        self._tail = tail
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BrokerError) as refusal:
            raise FrameError(f"a {kind} is malformed: {refusal}") from refusal

    def _built(self, kind: type, value: object) -> object:
        if kind is not Message:
            # Plain values, where a type says `object`: those of the settings of an entity.
            return value
        head = msgspec.convert(value, MessageHead)
        at, origin = head.payload_at, head.origin
        message = Message(
            None if at is None else payload_at(self._tail, at, head.payload_size),
            head.size,
            head.expires_at,
            head.session_id,
            origin=None if origin is None else Origin(origin[0], hops=origin[1], body=origin[2]),
        )
        message.sequence_number = head.sequence_number
        message.enqueued_at = head.enqueued_at
        message.delivery_count = head.delivery_count
        message.state = head.state
        message.subqueue = head.subqueue
        message.lock_token = head.lock_token
        message.locked_until = head.locked_until
        message.amendment = head.amendment
        message.row_id = head.row_id
        return message


def payload_at(tail: memoryview, at: int, length: int) -> bytes:
    if not 0 <= at <= at + length <= len(tail):
        raise FrameError(f"a payload is outside of its frame: {length} bytes at {at} of {len(tail)}")
    return bytes(tail[at : at + length])


def refuse_beyond_frame(work: Sequence[Command]) -> None:
    """The commands of a transaction are in one frame. Single commands always fit."""
    size = 0
    for command in work:
        if isinstance(command, Enqueue):
            size += sum([message.size for message in command.messages])
        elif isinstance(command, SetSessionState):
            size += len(command.state or b"")
    if size > COMMIT_BYTES_MAX:
        raise MessageSizeExceeded(
            f"The transaction has {size} bytes. On a server with several brokers, at most {COMMIT_BYTES_MAX} "
            "bytes can be committed together."
        )


def refusal_of(request: int, error: BrokerError) -> Refusal:
    """An error, to be raised again at the other broker."""
    name = type(error).__name__ if type(error).__name__ in _ERRORS else "Unavailable"
    details = {key: each for key, each in vars(error).items() if isinstance(each, str | int)}
    return Refusal(request, name, str(error), details)


def error_of(refusal: Refusal) -> BrokerError:
    kind = _ERRORS.get(refusal.error, errors.Unavailable)
    error = kind.__new__(kind, refusal.text)
    error.__dict__.update(refusal.details)
    return error
