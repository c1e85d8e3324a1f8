"""Protocol sniffing: which protocol a connection speaks, by its first bytes. Pure.

The bytes so far begin with a known protocol, may still become one, or cannot. TLS is not
here: the listener recognises it before a byte is read, and sniffs the decrypted bytes.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

__all__ = ["SNIFF_LENGTH_MAX", "SUPPORTED_AMQP_HEADER", "TLS_HANDSHAKE", "SniffedProtocol", "sniff"]

# The record type `handshake` [RFC 8446 5.1]: a ClientHello is the first record that a client sends.
TLS_HANDSHAKE: Final = 0x16

AMQP_NAME: Final = b"AMQP"
AMQP_HEADER_LENGTH: Final = 8

# Protocol id 0 is AMQP itself, 3 is SASL before it; version 1.0.0 of both [AMQP 2.2, 5.3.1]. Id 2, TLS
# inside an AMQP connection, is used by no client: TLS comes first here.
AMQP_HEADERS: Final = frozenset({b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"})

# The header that answers an unsupported one. Every client begins with SASL.
SUPPORTED_AMQP_HEADER: Final = b"AMQP\x03\x01\x00\x00"

HTTP_VERBS: Final = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"PATCH ", b"DELETE ", b"OPTIONS ")

# More bytes than this never change the answer.
SNIFF_LENGTH_MAX: Final = max(AMQP_HEADER_LENGTH, *map(len, HTTP_VERBS))


class SniffedProtocol(Enum):
    """What the first bytes show."""

    UNDECIDED = auto()
    AMQP = auto()
    AMQP_UNSUPPORTED = auto()
    """Another version or layer of AMQP: the peer is sent our header before the connection is closed."""
    HTTP = auto()
    UNKNOWN = auto()


def sniff(head: bytes) -> SniffedProtocol:
    """The protocol of a connection whose first bytes are `head`."""
    if head.startswith(AMQP_NAME):
        if len(head) < AMQP_HEADER_LENGTH:
            return SniffedProtocol.UNDECIDED
        known = head[:AMQP_HEADER_LENGTH] in AMQP_HEADERS
        return SniffedProtocol.AMQP if known else SniffedProtocol.AMQP_UNSUPPORTED
    if head.startswith(HTTP_VERBS):
        return SniffedProtocol.HTTP
    if any(opening.startswith(head) for opening in (AMQP_NAME, *HTTP_VERBS)):
        return SniffedProtocol.UNDECIDED
    return SniffedProtocol.UNKNOWN
