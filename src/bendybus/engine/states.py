"""Every lifecycle of an AMQP connection as a table, and nothing else.

A table maps (state, input) to the next state; an input is a frame that goes out
(`SEND_…`) or comes in (`RECV_…`). A missing key is the error, which the object
that owns the state turns into a `ProtocolError`: sasl.py, connection.py,
session.py and link.py own one machine each.

`RECV_FRAME` stands for the ordinary frames of a session or link (flow, transfer, disposition). After our own
end or detach they map to the same state and are discarded: "the peer's in-flight frames" [AMQP 2.5.5,
DISCARDING] no longer need an answer.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = [
    "CONNECTION",
    "LINK",
    "SASL",
    "SESSION",
    "ConnectionInput",
    "ConnectionState",
    "LinkInput",
    "LinkState",
    "SaslInput",
    "SaslState",
    "SessionInput",
    "SessionState",
]


# -- SASL [AMQP 5.3] ------------------------------------------------------------


class SaslState(Enum):
    START = "not started"
    HEADER_SENT = "waiting for the SASL header"
    HEADER_RECEIVED = "about to offer mechanisms"
    HEADERS_EXCHANGED = "waiting for the mechanisms"
    MECHANISMS_SENT = "waiting for the choice of a mechanism"
    MECHANISMS_RECEIVED = "about to choose a mechanism"
    INIT_SENT = "waiting for the outcome"
    INIT_RECEIVED = "deciding the outcome"
    CHALLENGE_SENT = "waiting for the response"
    DONE = "done"


class SaslInput(Enum):
    SEND_HEADER = "our SASL header"
    RECV_HEADER = "the peer's SASL header"
    SEND_MECHANISMS = "our sasl-mechanisms"
    RECV_MECHANISMS = "sasl-mechanisms"
    SEND_INIT = "our sasl-init"
    RECV_INIT = "sasl-init"
    SEND_CHALLENGE = "our sasl-challenge"
    RECV_CHALLENGE = "sasl-challenge"
    RECV_RESPONSE = "sasl-response"
    SEND_OUTCOME = "our sasl-outcome"
    RECV_OUTCOME = "sasl-outcome"


SASL: Final[dict[tuple[SaslState, SaslInput], SaslState]] = {
    # The server offers and decides ...
    (SaslState.START, SaslInput.RECV_HEADER): SaslState.HEADER_RECEIVED,
    (SaslState.HEADER_RECEIVED, SaslInput.SEND_MECHANISMS): SaslState.MECHANISMS_SENT,
    (SaslState.MECHANISMS_SENT, SaslInput.RECV_INIT): SaslState.INIT_RECEIVED,
    (SaslState.INIT_RECEIVED, SaslInput.SEND_CHALLENGE): SaslState.CHALLENGE_SENT,
    (SaslState.CHALLENGE_SENT, SaslInput.RECV_RESPONSE): SaslState.INIT_RECEIVED,
    (SaslState.INIT_RECEIVED, SaslInput.SEND_OUTCOME): SaslState.DONE,
    # ... the client begins and chooses.
    (SaslState.START, SaslInput.SEND_HEADER): SaslState.HEADER_SENT,
    (SaslState.HEADER_SENT, SaslInput.RECV_HEADER): SaslState.HEADERS_EXCHANGED,
    (SaslState.HEADERS_EXCHANGED, SaslInput.RECV_MECHANISMS): SaslState.MECHANISMS_RECEIVED,
    (SaslState.MECHANISMS_RECEIVED, SaslInput.SEND_INIT): SaslState.INIT_SENT,
    (SaslState.INIT_SENT, SaslInput.RECV_OUTCOME): SaslState.DONE,
}


# -- connection [AMQP 2.4.6] ----------------------------------------------------


class ConnectionState(Enum):
    START = "not started"
    HEADER_SENT = "waiting for the AMQP header"
    HEADER_RECEIVED = "about to answer the AMQP header"
    HEADERS_EXCHANGED = "waiting for open"
    OPEN_PIPELINED = "waiting for the AMQP header, open already sent"
    OPEN_SENT = "waiting for the answer to open"
    OPEN_RECEIVED = "about to answer open"
    OPENED = "open"
    OPEN_CLOSE_PIPELINED = "waiting for the AMQP header, close already sent"
    CLOSE_PIPELINED = "waiting for the answer to open, close already sent"
    CLOSE_SENT = "waiting for the answer to close"
    CLOSE_RECEIVED = "about to answer close"
    END = "closed"


class ConnectionInput(Enum):
    SEND_HEADER = "our AMQP header"
    RECV_HEADER = "the AMQP header"
    SEND_OPEN = "our open"
    RECV_OPEN = "open"
    SEND_CLOSE = "our close"
    RECV_CLOSE = "close"


CONNECTION: Final[dict[tuple[ConnectionState, ConnectionInput], ConnectionState]] = {
    (ConnectionState.START, ConnectionInput.SEND_HEADER): ConnectionState.HEADER_SENT,
    (ConnectionState.START, ConnectionInput.RECV_HEADER): ConnectionState.HEADER_RECEIVED,
    (ConnectionState.HEADER_RECEIVED, ConnectionInput.SEND_HEADER): ConnectionState.HEADERS_EXCHANGED,
    (ConnectionState.HEADER_SENT, ConnectionInput.RECV_HEADER): ConnectionState.HEADERS_EXCHANGED,
    (ConnectionState.HEADER_SENT, ConnectionInput.SEND_OPEN): ConnectionState.OPEN_PIPELINED,
    (ConnectionState.OPEN_PIPELINED, ConnectionInput.RECV_HEADER): ConnectionState.OPEN_SENT,
    (ConnectionState.HEADERS_EXCHANGED, ConnectionInput.SEND_OPEN): ConnectionState.OPEN_SENT,
    (ConnectionState.HEADERS_EXCHANGED, ConnectionInput.RECV_OPEN): ConnectionState.OPEN_RECEIVED,
    (ConnectionState.OPEN_RECEIVED, ConnectionInput.SEND_OPEN): ConnectionState.OPENED,
    (ConnectionState.OPEN_SENT, ConnectionInput.RECV_OPEN): ConnectionState.OPENED,
    (ConnectionState.OPENED, ConnectionInput.SEND_CLOSE): ConnectionState.CLOSE_SENT,
    (ConnectionState.OPENED, ConnectionInput.RECV_CLOSE): ConnectionState.CLOSE_RECEIVED,
    (ConnectionState.CLOSE_RECEIVED, ConnectionInput.SEND_CLOSE): ConnectionState.END,
    (ConnectionState.CLOSE_SENT, ConnectionInput.RECV_CLOSE): ConnectionState.END,
    # A close that is sent before the peer has answered our open.
    (ConnectionState.OPEN_PIPELINED, ConnectionInput.SEND_CLOSE): ConnectionState.OPEN_CLOSE_PIPELINED,
    (ConnectionState.OPEN_CLOSE_PIPELINED, ConnectionInput.RECV_HEADER): ConnectionState.CLOSE_PIPELINED,
    (ConnectionState.OPEN_SENT, ConnectionInput.SEND_CLOSE): ConnectionState.CLOSE_PIPELINED,
    (ConnectionState.CLOSE_PIPELINED, ConnectionInput.RECV_OPEN): ConnectionState.CLOSE_SENT,
}


# -- session [AMQP 2.5.5] -------------------------------------------------------


class SessionState(Enum):
    UNMAPPED = "unmapped"
    BEGIN_SENT = "waiting for the answer to begin"
    BEGIN_RECEIVED = "about to answer begin"
    MAPPED = "mapped"
    END_PIPELINED = "waiting for the answer to begin, end already sent"
    END_SENT = "waiting for the answer to end"
    END_RECEIVED = "about to answer end"


class SessionInput(Enum):
    SEND_BEGIN = "our begin"
    RECV_BEGIN = "begin"
    RECV_FRAME = "a frame"
    SEND_END = "our end"
    RECV_END = "end"


SESSION: Final[dict[tuple[SessionState, SessionInput], SessionState]] = {
    (SessionState.UNMAPPED, SessionInput.SEND_BEGIN): SessionState.BEGIN_SENT,
    (SessionState.UNMAPPED, SessionInput.RECV_BEGIN): SessionState.BEGIN_RECEIVED,
    (SessionState.BEGIN_SENT, SessionInput.RECV_BEGIN): SessionState.MAPPED,
    (SessionState.BEGIN_RECEIVED, SessionInput.SEND_BEGIN): SessionState.MAPPED,
    (SessionState.MAPPED, SessionInput.RECV_FRAME): SessionState.MAPPED,
    (SessionState.MAPPED, SessionInput.SEND_END): SessionState.END_SENT,
    (SessionState.MAPPED, SessionInput.RECV_END): SessionState.END_RECEIVED,
    (SessionState.END_RECEIVED, SessionInput.SEND_END): SessionState.UNMAPPED,
    (SessionState.END_SENT, SessionInput.RECV_FRAME): SessionState.END_SENT,
    (SessionState.END_SENT, SessionInput.RECV_END): SessionState.UNMAPPED,
    # An end that is sent before the peer has answered our begin.
    (SessionState.BEGIN_SENT, SessionInput.SEND_END): SessionState.END_PIPELINED,
    (SessionState.END_PIPELINED, SessionInput.RECV_BEGIN): SessionState.END_SENT,
}


# -- link [AMQP 2.6.1 to 2.6.6] -------------------------------------------------


class LinkState(Enum):
    DETACHED = "detached"
    ATTACH_SENT = "waiting for the answer to attach"
    ATTACH_RECEIVED = "not yet accepted"
    ATTACHED = "attached"
    DETACH_PIPELINED = "waiting for the answer to attach, detach already sent"
    DETACH_SENT = "waiting for the answer to detach"
    DETACH_RECEIVED = "about to answer detach"


class LinkInput(Enum):
    SEND_ATTACH = "our attach"
    RECV_ATTACH = "attach"
    RECV_FRAME = "a frame"
    SEND_DETACH = "our detach"
    RECV_DETACH = "detach"


LINK: Final[dict[tuple[LinkState, LinkInput], LinkState]] = {
    (LinkState.DETACHED, LinkInput.SEND_ATTACH): LinkState.ATTACH_SENT,
    (LinkState.DETACHED, LinkInput.RECV_ATTACH): LinkState.ATTACH_RECEIVED,
    (LinkState.ATTACH_SENT, LinkInput.RECV_ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACH_RECEIVED, LinkInput.SEND_ATTACH): LinkState.ATTACHED,
    # Clients may grant credit before we have answered their attach.
    (LinkState.ATTACH_RECEIVED, LinkInput.RECV_FRAME): LinkState.ATTACH_RECEIVED,
    (LinkState.ATTACHED, LinkInput.RECV_FRAME): LinkState.ATTACHED,
    (LinkState.ATTACHED, LinkInput.SEND_DETACH): LinkState.DETACH_SENT,
    (LinkState.ATTACHED, LinkInput.RECV_DETACH): LinkState.DETACH_RECEIVED,
    (LinkState.DETACH_RECEIVED, LinkInput.SEND_DETACH): LinkState.DETACHED,
    (LinkState.DETACH_SENT, LinkInput.RECV_FRAME): LinkState.DETACH_SENT,
    (LinkState.DETACH_SENT, LinkInput.RECV_DETACH): LinkState.DETACHED,
    # A detach that is sent before the peer has answered our attach.
    (LinkState.ATTACH_SENT, LinkInput.SEND_DETACH): LinkState.DETACH_PIPELINED,
    (LinkState.DETACH_PIPELINED, LinkInput.RECV_ATTACH): LinkState.DETACH_SENT,
}
