"""Fast path for what a client and a coordinator say about a transaction.

Each transaction takes two requests and several states, and all of them are a few bytes around its id. Reading
returns None if a value is not in its usual encoding; then decode_composite decides. Writing returns None for
the rarer states; then `encode` writes them. The classes: performatives.py.
"""

from __future__ import annotations

import struct
from typing import Final

from bendybus.amqp.decoder import MALFORMED
from bendybus.amqp.performatives import (
    ACCEPTED,
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    TransactionalState,
)

__all__ = ["encode_transactional", "read_request", "read_transactional"]

_LIST_8: Final = 0xC0
_LIST_32: Final = 0xD0
_BINARY_8: Final = 0xA0
_NULL: Final = b"\x40"
_ACCEPTED: Final = b"\x00\x53\x24\x45"

_STATE: Final = b"\x53\x34"
_DECLARED: Final = b"\x00\x53\x33"
_TRANSACTIONAL: Final = b"\x00\x53\x34"
# A message with nothing but a value: an empty declare, or the start of a discharge with two fields.
_DECLARE: Final = frozenset((b"\x00\x53\x77\x00\x53\x31\x45", b"\x00\x53\x77\x00\x53\x31\xc0\x02\x01\x40"))
_DISCHARGE: Final = b"\x00\x53\x77\x00\x53\x32\xc0"
_BOOLEANS: Final = {0x40: None, 0x41: True, 0x42: False}

# Size and count of the list, code and length of the id.
_list_8: Final = struct.Struct(">BBBB").unpack_from
_list_32: Final = struct.Struct(">IIBB").unpack_from
_head: Final = struct.Struct(">3sBBBBB").pack
# An id that is longer than this makes the list longer than its short form allows.
_ID_MAX: Final = 200


def read_transactional(buffer: bytes, pos: int) -> tuple[TransactionalState, int] | None:
    """The transactional state whose descriptor follows the 0x00 before `pos`, and the offset after it.

    Its outcome is absent or `accepted`.
    """
    try:
        if not buffer.startswith(_STATE, pos):
            return None
        if buffer[pos + 2] == _LIST_8:
            size, count, code, length = _list_8(buffer, pos + 3)
            end, pos = pos + 4 + size, pos + 7
        elif buffer[pos + 2] == _LIST_32:
            size, count, code, length = _list_32(buffer, pos + 3)
            end, pos = pos + 7 + size, pos + 13
        else:
            return None
    except MALFORMED:
        return None
    after = pos + length
    if code != _BINARY_8 or end > len(buffer):
        return None
    if after == end and count == 1:
        return TransactionalState(buffer[pos:after]), end
    if count != 2:
        return None
    outcome = buffer[after:end]
    if outcome == _ACCEPTED:
        return TransactionalState(buffer[pos:after], ACCEPTED), end
    return (TransactionalState(buffer[pos:after]), end) if outcome == _NULL else None


def read_request(message: bytes) -> Declare | Discharge | None:
    """The request in a message to a coordinator."""
    if message in _DECLARE:
        return Declare()
    if not message.startswith(_DISCHARGE):
        return None
    try:
        size, count, code, length = _list_8(message, 7)
    except MALFORMED:
        return None
    after = 11 + length
    if count != 2 or code != _BINARY_8 or after != 7 + size or len(message) != 8 + size:
        return None
    fail = message[after]
    return Discharge(message[11:after], _BOOLEANS[fail]) if fail in _BOOLEANS else None


def encode_transactional(state: DeliveryState) -> bytes | None:
    """The state that declares a transaction, or that says `accepted` within one."""
    if type(state) is TransactionalState and type(state.outcome) is Accepted:
        length = len(state.txn_id)
        if length <= _ID_MAX:
            head = _head(_TRANSACTIONAL, _LIST_8, length + 7, 2, _BINARY_8, length)
            return head + state.txn_id + _ACCEPTED
    elif type(state) is Declared:
        length = len(state.txn_id)
        if length <= _ID_MAX:
            return _head(_DECLARED, _LIST_8, length + 3, 1, _BINARY_8, length) + state.txn_id
    return None
