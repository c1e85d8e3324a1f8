"""Delivery: a stored message as it is sent to a receiver or returned by a peek.

This is on the hot path: the broker's header and annotations are packed in one step and put in
front of the sender's bytes. What a settlement has added to a message (`Amendment`) is merged into
its application properties. If the entity limits a message's lifetime below the sender's,
the shorter lifetime is shown, in the header and in the properties. A received message that was deferred
or scheduled says so. A peek shows the current state of a message. As on Azure, the number that a message
first had is shown only if the message came from another entity, and partition 0 is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from bendybus.amqp import annotations as annotation_names
from bendybus.amqp.annotations import entry_start
from bendybus.amqp.codec import encode
from bendybus.amqp.message import map_entries
from bendybus.amqp.sections import scan, section_end
from bendybus.amqp.types import Int, Symbol
from bendybus.domain.messages import Message, MessageState
from bendybus.envelope.stored import (
    COPIED_MAX,
    DELIVERY_ANNOTATIONS,
    DURABLE,
    DURABLE_UNSAID,
    FIRST_ACQUIRER,
    FRONT,
    LONG_LIVED,
    MAP_START,
    NO_TTL,
    NOT_FIRST_ACQUIRER,
    PRIORITY_UNSAID,
    WAS_SCHEDULED,
    amended,
    body_start,
    lifetime_ms,
    with_lifetime,
)
from bendybus.names import PARTITION_SHIFT

__all__ = ["Rendered", "render", "render_browsed", "render_locked", "render_peeked"]

Rendered: TypeAlias = tuple[bytes, bytes]
"""A message to send, in two pieces: the broker's sections, and the sender's."""

_TRUE: Final = 0x41
_FALSE: Final = 0x42
_NULL: Final = 0x40
_UBYTE: Final = 0x50
_UINT: Final = 0x70

# A header section: durable, priority, ttl, first-acquirer, delivery-count. It is a list8 of 10 to 15 bytes,
# because priority and ttl may be absent.
_HEADER: Final = Struct(">4sBBBBB")
_HEADER_PRIORITY: Final = Struct(">4sBBBBBB")
_HEADER_END: Final = Struct(">BBI")
_HEADER_TTL_END: Final = Struct(">IBBI")
_HEADER_START: Final = b"\x00\x53\x70\xc0"


# The broker's annotations, with exactly the types that the SDKs expect.
_ENQUEUED_TIME: Final = entry_start(annotation_names.ENQUEUED_TIME, 0x83)
_SEQUENCE_NUMBER: Final = entry_start(annotation_names.SEQUENCE_NUMBER, 0x81)
_ENQUEUE_SEQUENCE_NUMBER: Final = entry_start(annotation_names.ENQUEUE_SEQUENCE_NUMBER, 0x81)
_PARTITION_ID: Final = entry_start(annotation_names.PARTITION_ID, 0x61)
_LOCKED_UNTIL: Final = entry_start(annotation_names.LOCKED_UNTIL, 0x83)
_MESSAGE_STATE: Final = entry_start(annotation_names.MESSAGE_STATE, 0x71)

# The annotations that every message has. Others follow.
_COMMON: Final = Struct(f">4sII{len(_ENQUEUED_TIME)}sq{len(_SEQUENCE_NUMBER)}sq")
_LONG: Final = Struct(">q")
_SHORT: Final = Struct(">h")
_STATE: Final = Struct(">i")
# The map's size field covers everything after itself.
_BEFORE_COUNT: Final = 8

# 0x71 delivery-annotations: a map8 with the one entry x-opt-lock-token, a uuid; one without
# entries; the start of a map32 for messages with delivery annotations of the sender.
_TOKEN_ENTRY: Final = entry_start(annotation_names.LOCK_TOKEN, 0x98)
_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x24\x02" + _TOKEN_ENTRY
_NO_ANNOTATIONS: Final = b"\x00\x53\x71\xc1\x01\x00"
_ANNOTATIONS: Final = Struct(">4sII")
_ANNOTATIONS_START: Final = b"\x00\x53\x71\xd1"

# The annotation that the JavaScript SDK reads when it has asked for messages without their bodies.
OMITTED_BODY_SIZE: Final = "omitted-message-body-size"

_NO_TOKEN: Final = bytes(16)
_UUID: Final = Struct("16s")
# A lock token is a GUID in .NET's byte order, while an AMQP uuid is in network order: the position of each
# byte of the first three parts. The last eight bytes are the same.
_UUID_BYTES: Final = (3, 2, 1, 0, 5, 4, 7, 6)
# A first delivery from the lock token on, up to the sequence number. All of one kind are the same up to the
# first value, and messages locked together are the same again after the number that they first had.
_BETWEEN_SIZE: Final = _BEFORE_COUNT + 4 + len(_ENQUEUED_TIME)
_FROM_TOKEN: Final = Struct(f">16s{_BETWEEN_SIZE}sq{len(_SEQUENCE_NUMBER)}sq")


# Some time passes between reading a message and enqueueing it. That is not a limit set by the entity.
_SKEW_MS: Final = 1000


def render(message: Message, payload: bytes, *, locked: bool) -> Rendered:
    """A message for a receiver, locked or received and deleted."""
    header, own, count, entries, bare = _open(message, payload)
    if locked:
        own = _delivery_annotations(own, message.lock_token or _NO_TOKEN)
    broker = [_first_number(message), _partition(message)]
    if locked:
        broker.append(_LOCKED_UNTIL + _LONG.pack(message.locked_until))
    if message.state or payload[1] & WAS_SCHEDULED:
        # After the entries of the sender, so that first deliveries of one kind are alike.
        entries += _MESSAGE_STATE + _STATE.pack(message.state or MessageState.SCHEDULED)
        count += 2
    return header + (own or _NO_ANNOTATIONS) + _annotations(message, broker, count, entries), bare


def _annotations(message: Message, broker: Sequence[bytes], count: int, entries: bytes) -> bytes:
    """The message annotations: the broker's, of which some may be absent, and then the sender's `entries`."""
    rest = b"".join(broker) + entries
    count += 4 + sum(2 for entry in broker if entry)
    common = _COMMON.pack(
        MAP_START, _COMMON.size - _BEFORE_COUNT + len(rest), count,
        _ENQUEUED_TIME, message.enqueued_at, _SEQUENCE_NUMBER, message.sequence_number,
    )  # fmt: skip
    return common + rest


def _first_number(message: Message) -> bytes:
    """The number at the entity that the message was sent to; nothing if that is this one."""
    if (origin := message.origin) is None:
        return b""
    return _ENQUEUE_SEQUENCE_NUMBER + _LONG.pack(origin.sequence_number)


def _partition(message: Message) -> bytes:
    partition = message.sequence_number >> PARTITION_SHIFT
    return _PARTITION_ID + _SHORT.pack(partition) if partition else b""


class _Kind(NamedTuple):
    """What first deliveries have in common whose payloads have the same front and lifetime, and whose
    annotations by the broker are the same but for their values.
    """

    start: bytes
    """Up to the lock token."""
    between: bytes
    """From there to the first value of the annotations."""
    bare_at: int
    """Where the bare message starts in the payload. The entries of the sender's annotations precede it."""
    shows_lifetime: bool
    """Whether the lifetime is shown in the properties."""


_KINDS_MAX: Final = 1000
_Kinds: TypeAlias = dict[bytes | tuple[bytes, int, bool], _Kind]
# Of partition 0, which is not shown, and of the others.
_kinds: Final[tuple[_Kinds, _Kinds]] = ({}, {})
# What the front does not tell everything about.
_PECULIAR: Final = DELIVERY_ANNOTATIONS | WAS_SCHEDULED | LONG_LIVED


def render_locked(
    messages: Sequence[Message], payloads: Sequence[bytes]
) -> list[tuple[bytes, bytes, bytes | memoryview]]:
    """Locked messages for a receiver: for each the lock token, then the result of `render`.

    First deliveries of one kind differ in a few numbers, so the rest is cached.
    """
    rendered: list[tuple[bytes, bytes, bytes | memoryview]] = []
    bare: bytes | memoryview
    front_size, pack = FRONT.size, _FROM_TOKEN.pack
    tokens = [message.lock_token or _NO_TOKEN for message in messages]
    partition = until = -1
    # The front of the message before this one, if nothing but that chose its kind.
    same: bytes | None = None
    start = between = b""
    for message, payload, token, (uuid,) in zip(messages, payloads, tokens, _uuids(tokens), strict=True):
        front = payload[:front_size]
        number, origin, expires_at = message.sequence_number, message.origin, message.expires_at
        if number >> PARTITION_SHIFT != partition or message.locked_until != until:
            partition, until = number >> PARTITION_SHIFT, message.locked_until
            locked_together = _partition(message) + _LOCKED_UNTIL + _LONG.pack(until)
            kinds = _kinds[1 if partition else 0]
            same = None
        amendment = message.amendment
        is_plain = not (
            message.delivery_count or message.state or (amendment is not None and amendment.is_shown)
        )
        if front == same and is_plain and origin is None and expires_at is None:
            head = start + pack(uuid, between, message.enqueued_at, _SEQUENCE_NUMBER, number)
            bare = payload[front_size:] if len(payload) <= COPIED_MAX else memoryview(payload)[front_size:]
            rendered.append((token, head + locked_together, bare))
            continue
        key: bytes | tuple[bytes, int, bool] = front
        lifetime = 0
        if origin is not None or expires_at is not None:
            lifetime = -1 if expires_at is None else max(0, expires_at - message.enqueued_at)
            key = front, lifetime, origin is None
        kind = kinds.get(key)
        same = None
        if kind is not None and is_plain:
            start, between, bare_at, shows_lifetime = kind
            head = start + pack(uuid, between, message.enqueued_at, _SEQUENCE_NUMBER, number)
            if origin is not None:
                head += _first_number(message)
            head += locked_together
            bare = payload[bare_at:] if len(payload) <= COPIED_MAX else memoryview(payload)[bare_at:]
            if bare_at > front_size:
                head += payload[front_size:bare_at]
            elif key is front and not shows_lifetime:
                same = front
            if shows_lifetime:
                bare = with_lifetime(payload[bare_at:], message.enqueued_at, lifetime)
        else:
            head, bare = render(message, payload, locked=True)
            if is_plain and not front[1] & _PECULIAR:
                if len(kinds) >= _KINDS_MAX:
                    kinds.clear()
                after = len(_first_number(message)) + len(locked_together)
                kinds[key] = _kind_of(message, front, head, after)
        rendered.append((token, head, bare))
    return rendered


def _kind_of(message: Message, front: bytes, head: bytes, after: int) -> _Kind:
    """The kind of a message, from its first delivery; `after` bytes follow its sequence number."""
    _, _, _, ttl, _, length = FRONT.unpack(front)
    token_at = len(head) - length - after - _FROM_TOKEN.size
    between_at = token_at + _UUID.size
    return _Kind(
        head[:token_at],
        head[between_at : between_at + _BETWEEN_SIZE],
        FRONT.size + length,
        _shown_lifetime(message, front, ttl) is not None,
    )


def render_peeked(message: Message, payload: bytes, *, without_body: bool = False) -> bytes:
    """A message for a peek, with its state and the end of its lock (1970 if it has none).

    Without the body, the delivery annotations give the size of the body.
    """
    header, own, count, entries, bare = _open(message, payload)
    if without_body:
        bare, size = _bodiless(bare)
        own = _with_annotation(own, encode(Symbol(OMITTED_BODY_SIZE)) + encode(Int(size)))
    broker = [
        _first_number(message),
        _partition(message),
        _MESSAGE_STATE + _STATE.pack(message.state),
        _LOCKED_UNTIL + _LONG.pack(message.locked_until),
    ]
    return header + (own or _NO_ANNOTATIONS) + _annotations(message, broker, count, entries) + bare


def render_browsed(message: Message, payload: bytes) -> bytes:
    """A message for a reader that may copy it: with its state, and the lifetime as it was sent."""
    header, own, count, entries, bare = _open(message, payload, as_sent=True)
    number, origin = message.sequence_number, message.origin
    first = number if origin is None else origin.sequence_number
    broker = [
        _ENQUEUE_SEQUENCE_NUMBER + _LONG.pack(first),
        _PARTITION_ID + _SHORT.pack(number >> PARTITION_SHIFT),
        _MESSAGE_STATE + _STATE.pack(message.state),
    ]
    return header + own + _annotations(message, broker, count, entries) + bare


def _shown_lifetime(message: Message, payload: bytes, ttl: int) -> int | None:
    """The lifetime that the entity allows, in milliseconds; None if the sender's own applies."""
    if message.expires_at is None:
        return None
    lifetime = max(0, message.expires_at - message.enqueued_at)
    own = lifetime_ms(payload, ttl)
    return lifetime if own is None or own - lifetime > _SKEW_MS else None


def _open(
    message: Message, payload: bytes, *, as_sent: bool = False
) -> tuple[bytes, bytes, int, bytes, bytes]:
    """Split a stored payload into the new header section, the sender's delivery annotations (a section or
    nothing), the sender's message annotations (their number and their entries) and the bare message.
    """
    _, flags, priority, ttl, count, length = FRONT.unpack_from(payload)
    lifetime = None if as_sent else _shown_lifetime(message, payload, ttl)
    if lifetime is not None:
        # The header can hold 49 days. Longer lifetimes are only in the properties.
        ttl = min(lifetime, NO_TTL)
    deliveries = message.delivery_count
    durable, first = _TRUE if flags & DURABLE else _FALSE, _NULL
    if flags & DURABLE_UNSAID:
        durable = _NULL
    if flags & (FIRST_ACQUIRER | NOT_FIRST_ACQUIRER):
        first = _TRUE if flags & FIRST_ACQUIRER else _FALSE
    limit, size = (_NULL, 11) if ttl == NO_TTL else (_UINT, 15)
    if flags & PRIORITY_UNSAID:
        header = _HEADER.pack(_HEADER_START, size - 1, 5, durable, _NULL, limit)
    else:
        header = _HEADER_PRIORITY.pack(_HEADER_START, size, 5, durable, _UBYTE, priority, limit)
    if ttl == NO_TTL:
        header += _HEADER_END.pack(first, _UINT, deliveries)
    else:
        header += _HEADER_TTL_END.pack(ttl, first, _UINT, deliveries)
    start = FRONT.size + length
    bare, own = payload[start:], b""
    if flags & DELIVERY_ANNOTATIONS:
        end = section_end(bare, 0)
        own, bare = bare[:end], bare[end:]
    if lifetime is not None:
        bare = with_lifetime(bare, message.enqueued_at, lifetime)
    if message.amendment is not None and message.amendment.is_shown:
        bare = amended(bare, message.amendment)
    return header, own, count, payload[FRONT.size : start] if length else b"", bare


def _delivery_annotations(own: bytes, token: bytes) -> bytes:
    """The section with the lock token and the sender's own entries."""
    ((uuid,),) = _uuids((token,))
    return _with_annotation(own, _TOKEN_ENTRY + uuid) if own else _LOCK_TOKEN + uuid


def _uuids(tokens: Sequence[bytes]) -> Iterator[tuple[bytes]]:
    """Lock tokens as AMQP uuids: byte by byte for all of them at once, so that the loops run in C."""
    guids = b"".join(tokens)
    uuids = bytearray(guids)
    for position, source in enumerate(_UUID_BYTES):
        uuids[position::16] = guids[source::16]
    return _UUID.iter_unpack(uuids)


def _with_annotation(own: bytes, entry: bytes) -> bytes:
    """The section of the sender's delivery annotations, which may be empty, with an entry of ours."""
    entries, count = map_entries(own, 0 if own else -1)
    entries += entry
    return _ANNOTATIONS.pack(_ANNOTATIONS_START, len(entries) + 4, count + 2) + entries


def _bodiless(bare: bytes) -> tuple[bytes, int]:
    """A bare message without its body, and the size of the body."""
    sections = scan(bare)
    start = body_start(sections)
    end = sections.end if sections.footer < 0 else sections.footer
    return bare[:start] + bare[end:], end - start
