"""The two most frequent frames, written directly as bytes.

A transfer and a disposition differ from their neighbour in a number or two, so
everything else in the frame is laid out once per batch. All other frames, and
transfers that need several frames, go through `amqp.frames.encode_frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import Final

from bendybus.amqp.codec import encode
from bendybus.amqp.performatives import ACCEPTED, Accepted, DeliveryState
from bendybus.amqp.transaction_codec import encode_transactional

__all__ = ["FRAME_OVERHEAD_MAX", "TransferHead", "pack_dispositions"]

# "up to 32 octets of binary data" [AMQP 2.8.7]
TAG_SIZE_MAX: Final = 32
# The size of a transfer without its payload: frame header 8, descriptor and list 6, handle 5, delivery-id 5,
# tag 2 + 32, message-format 5, seven fields of one byte each.
FRAME_OVERHEAD_MAX: Final = 8 + 6 + 5 + 5 + 34 + 5 + 7

_TRUE: Final = 0x41
_FALSE: Final = 0x42

# doff, type, channel; described 0x14, list8, its size, five fields; handle; code of delivery-id.
_TRANSFER_PREFIX: Final = Struct(">BBH3sBBBBIB")
# message-format as uint, settled.
_TRANSFER_SUFFIX: Final = Struct(">BIB")
# Frame header and descriptor: size, doff, type, channel; described 0x15. Then a list, short or long,
# with its size and the number of fields: role, first, last, settled. The state follows.
_DISPOSITION_8: Final = Struct(">IBBH3sBBBBBIBIB")
_DISPOSITION_32: Final = Struct(">IBBH3sBIIBBIBIB")
# Role 1, first and last 5 each, settled 1.
_DISPOSITION_FIELDS_SIZE: Final = 12
_LIST_8: Final = 0xC0
_LIST_32: Final = 0xD0

_ACCEPTED_BYTES: Final = encode(ACCEPTED)
_NULL: Final = b"\x40"


@lru_cache(maxsize=TAG_SIZE_MAX + 1)
def _head_layout(tag_size: int) -> Struct:
    return Struct(f">I{_TRANSFER_PREFIX.size}sI2s{tag_size}s{_TRANSFER_SUFFIX.size}s")


class TransferHead:
    """The bytes before the payload, for single-frame transfers with tags of one size."""

    __slots__ = ("_message_format", "_settled", "_tag_size", "mark", "pack", "prefix", "size", "suffix")

    def __init__(self, channel: int, handle: int, tag_size: int, settled: bool, message_format: int) -> None:
        assert tag_size <= TAG_SIZE_MAX, tag_size
        self._tag_size = tag_size
        self._settled = settled
        self._message_format = message_format
        layout = _head_layout(tag_size)
        # count 1, handle 5, delivery-id 5, tag 2 + n, message-format 5, settled 1
        list_size = 19 + tag_size
        self.pack: Callable[[int, bytes, int, bytes, bytes, bytes], bytes] = layout.pack
        self.size = layout.size
        self.prefix = _TRANSFER_PREFIX.pack(
            2, 0, channel, b"\x00\x53\x14", 0xC0, list_size, 5, 0x70, handle, 0x70
        )
        self.mark = bytes((0xA0, tag_size))
        self.suffix = _TRANSFER_SUFFIX.pack(0x70, message_format, _TRUE if settled else _FALSE)

    def fits(self, tag_size: int, settled: bool, message_format: int) -> bool:
        """Whether it is for such transfers too."""
        return (
            self._tag_size == tag_size and self._settled == settled and self._message_format == message_format
        )


def pack_dispositions(
    channel: int,
    role: bool,
    ranges: Iterable[tuple[int, int]],
    settled: bool,
    state: DeliveryState | None,
) -> list[bytes]:
    """One disposition for each (first, last)."""
    if type(state) is Accepted:
        state_bytes = _ACCEPTED_BYTES
    elif state is None:
        state_bytes = _NULL
    else:
        state_bytes = encode_transactional(state) or encode(state)
    fields_size = _DISPOSITION_FIELDS_SIZE + len(state_bytes)
    # A list's size counts the number of its fields too: one byte in the short form, four in the long.
    if fields_size < 0xFF:
        layout, code, list_size = _DISPOSITION_8, _LIST_8, fields_size + 1
    else:
        layout, code, list_size = _DISPOSITION_32, _LIST_32, fields_size + 4
    frame_size = layout.size + len(state_bytes)
    role_code = _TRUE if role else _FALSE
    settled_code = _TRUE if settled else _FALSE
    return [
        layout.pack(
            frame_size, 2, 0, channel, b"\x00\x53\x15", code, list_size, 5,
            role_code, 0x70, first, 0x70, last, settled_code,
        )
        + state_bytes
        for first, last in ranges
    ]  # fmt: skip
