"""Bytes that real clients sent, and bytes no client of ours sends yet, mean what is written beside them.

Each file in corpus/ holds a remark, the bytes in hex, and their meaning as
`describe` renders it: one line per value, with its AMQP type. `python-*` were
recorded from azure-servicebus 7.15.0 (only the name of the operating system was
replaced); the others were put together by hand from the standard to show forms
that clients in other languages use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from bendybus.amqp.codec import encode
from bendybus.amqp.composite import composed, decode_composite
from bendybus.amqp.frames import AMQP, PROTOCOL_HEADER, FrameSplitter, decode_performative, decode_transfer
from bendybus.amqp.message import BATCH_FORMAT, decode_message, split_batch
from bendybus.amqp.performatives import Transfer
from bendybus.amqp.types import Array, Described

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(CORPUS.glob("*.txt"))

_TYPE_NAMES: dict[type[object], str] = {
    bool: "boolean",
    int: "long",
    float: "double",
    bytes: "binary",
    str: "string",
}


def describe(value: object, indent: str = "") -> Iterator[str]:
    """One line per value; what is absent is left out."""
    value = composed(value)
    deeper = indent + "  "
    if dataclasses.is_dataclass(value) and not isinstance(value, (Array, Described, type)):
        yield type(value).__name__
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if type(item) in (bool, int, str, bytes):
                yield f"{deeper}{field.name}: {_text(item)}"  # the field says the type
            elif item is not None and item != [] and item != {}:
                yield from _named(field.name, item, deeper)
    elif isinstance(value, dict):
        yield "map"
        for key, item in value.items():
            yield from _named(f"{_type_name(key)} {key}", item, deeper)
    elif isinstance(value, list):
        yield "list"
        for item in value:
            yield from _named("-", item, deeper)
    elif isinstance(value, Array):
        yield f"array of {value.element.__name__}"
        for item in value.values:
            yield from _named("-", item, deeper)
    elif isinstance(value, Described):
        yield f"described by {_type_name(value.descriptor)} {value.descriptor}"
        yield from _named("value", value.value, deeper)
    else:
        yield f"{_type_name(value)} {_text(value)}"


def _named(name: str, value: object, indent: str) -> Iterator[str]:
    first, *rest = describe(value, indent)
    yield f"{indent}{name}: {first}"
    yield from rest


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__.lower())


def _text(value: object) -> str:
    if isinstance(value, bytes) and len(value) > 64:
        return f"{len(value)} bytes starting {value[:16]!r}"
    return str(value) if isinstance(value, (int, float, UUID)) else repr(value)


def meaning(frame: bytes) -> str:
    """What one frame says, and the message in it when it carries a whole one."""
    ((frame_type, channel, buffer, start, end),) = FrameSplitter(1 << 20).feed(frame)
    assert frame_type != PROTOCOL_HEADER
    performative, payload = decode_performative(buffer, start, end)
    kind = "amqp" if frame_type == AMQP else "sasl"
    lines = [f"{kind} frame on channel {channel}", *describe(performative)]
    if isinstance(performative, Transfer) and not performative.more:
        message = buffer[payload:end]
        lines += ["with payload", *describe(decode_message(message))]
        if performative.message_format == BATCH_FORMAT:
            for inner in split_batch(message):
                lines += ["with message", *describe(decode_message(inner))]
    return "\n".join(lines)


def _load(path: Path) -> tuple[bytes, str]:
    remark, octets, expected = path.read_text(encoding="utf-8").split("\n\n")
    assert remark.startswith("# ")
    return bytes.fromhex(octets), expected.rstrip("\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_frame_means_what_is_written_beside_it(path: Path) -> None:
    frame, expected = _load(path)
    assert meaning(frame) == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kept_frame_written_by_us_means_the_same(path: Path) -> None:
    frame, _ = _load(path)
    ((_, _, buffer, start, end),) = FrameSplitter(1 << 20).feed(frame)
    performative, _ = decode_performative(buffer, start, end)
    assert decode_composite(encode(performative), 0)[0] == performative


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*transfer*.txt")), ids=lambda path: path.stem)
def test_the_short_way_to_a_transfer_reads_what_the_long_way_reads(path: Path) -> None:
    frame, _ = _load(path)
    transfer, payload = decode_performative(frame, 8, len(frame))
    assert isinstance(transfer, Transfer)
    assert decode_transfer(frame, 8, len(frame)) == (
        transfer.handle, transfer.delivery_id, transfer.delivery_tag, transfer.message_format,
        transfer.settled is True, transfer.more is True, transfer.rcv_settle_mode, transfer.state,
        transfer.aborted is True, payload,
    )  # fmt: skip


def test_the_corpus_is_there() -> None:
    assert len(FILES) >= 30
