"""Composite types of AMQP 1.0: frame bodies, SASL, termini, outcomes, transactions.

Field names and their order are the standard's. A field without a default is
mandatory in the standard: bytes without it are a `WireError`. Every other
absent field is `None`; the engine knows what its absence means. The table
at the end gives each class its descriptor and its fields' wire types. How a
composite becomes bytes: composite.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from bendybus.amqp.composite import (
    ANY,
    BINARY,
    BOOLEAN,
    COMPOSITE,
    FIELDS,
    MAP,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    register,
)
from bendybus.amqp.types import Described

__all__ = [
    "ACCEPTED",
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Coordinator",
    "Declare",
    "Declared",
    "DeleteOnClose",
    "DeleteOnNoLinks",
    "DeleteOnNoLinksOrMessages",
    "DeleteOnNoMessages",
    "DeliveryState",
    "Detach",
    "Discharge",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Performative",
    "RCV_FIRST",
    "RCV_SECOND",
    "RECEIVER",
    "RELEASED",
    "Received",
    "Rejected",
    "Released",
    "SASL_AUTH",
    "SASL_OK",
    "SASL_SYS",
    "SENDER",
    "SND_MIXED",
    "SND_SETTLED",
    "SND_UNSETTLED",
    "SaslChallenge",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "SaslResponse",
    "Source",
    "Target",
    "Terminus",
    "TransactionalState",
    "Transfer",
]

# role [2.8.1]
SENDER: Final = False
RECEIVER: Final = True

# sender-settle-mode [2.8.2]
SND_UNSETTLED: Final = 0
SND_SETTLED: Final = 1
SND_MIXED: Final = 2

# receiver-settle-mode [2.8.3]
RCV_FIRST: Final = 0
RCV_SECOND: Final = 1

# sasl-code [5.3.3.6]
SASL_OK: Final = 0
SASL_AUTH: Final = 1
SASL_SYS: Final = 2


# -- errors and outcomes ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Error:
    condition: str
    description: str | None = None
    info: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Received:
    section_number: int
    section_offset: int


@dataclass(frozen=True, slots=True)
class Accepted:
    pass


@dataclass(frozen=True, slots=True)
class Rejected:
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Released:
    pass


@dataclass(frozen=True, slots=True)
class Modified:
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: dict[str, object] | None = None


@dataclass(slots=True)
class Declared:
    txn_id: bytes


@dataclass(slots=True)
class TransactionalState:
    txn_id: bytes
    outcome: DeliveryState | None = None


DeliveryState: TypeAlias = (
    Received | Accepted | Rejected | Released | Modified | Declared | TransactionalState | Described
)

# All instances are equal, and every settled message needs one.
ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


# -- transactions: the bodies of messages to a coordinator --------------------------


@dataclass(slots=True)
class Declare:
    global_id: object = None


@dataclass(slots=True)
class Discharge:
    txn_id: bytes
    fail: bool | None = None


# -- termini ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeleteOnClose:
    pass


@dataclass(frozen=True, slots=True)
class DeleteOnNoLinks:
    pass


@dataclass(frozen=True, slots=True)
class DeleteOnNoMessages:
    pass


@dataclass(frozen=True, slots=True)
class DeleteOnNoLinksOrMessages:
    pass


@dataclass(slots=True)
class Source:
    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: dict[str, object] | None = None
    distribution_mode: str | None = None
    filter: dict[str, object] | None = None
    default_outcome: DeliveryState | None = None
    outcomes: list[str] | None = None
    capabilities: list[str] | None = None


@dataclass(slots=True)
class Target:
    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: dict[str, object] | None = None
    capabilities: list[str] | None = None


@dataclass(slots=True)
class Coordinator:
    capabilities: list[str] | None = None


Terminus: TypeAlias = Source | Target | Coordinator | Described


# -- frame bodies ---------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Open:
    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: list[str] | None = None
    incoming_locales: list[str] | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: dict[str, object] | None = None


@dataclass(slots=True, kw_only=True)
class Begin:
    remote_channel: int | None = None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: dict[str, object] | None = None


@dataclass(slots=True, kw_only=True)
class Attach:
    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Terminus | None = None
    target: Terminus | None = None
    unsettled: dict[object, object] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: dict[str, object] | None = None


@dataclass(slots=True, kw_only=True)
class Flow:
    next_incoming_id: int | None = None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[str, object] | None = None


@dataclass(slots=True, kw_only=True)
class Transfer:
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


@dataclass(slots=True, kw_only=True)
class Disposition:
    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: DeliveryState | None = None
    batchable: bool | None = None


@dataclass(slots=True, kw_only=True)
class Detach:
    handle: int
    closed: bool | None = None
    error: Error | None = None


@dataclass(slots=True, kw_only=True)
class End:
    error: Error | None = None


@dataclass(slots=True, kw_only=True)
class Close:
    error: Error | None = None


@dataclass(slots=True)
class SaslMechanisms:
    sasl_server_mechanisms: list[str]


@dataclass(slots=True)
class SaslInit:
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@dataclass(slots=True)
class SaslChallenge:
    challenge: bytes


@dataclass(slots=True)
class SaslResponse:
    response: bytes


@dataclass(slots=True)
class SaslOutcome:
    code: int
    additional_data: bytes | None = None


Performative: TypeAlias = (
    Open
    | Begin
    | Attach
    | Flow
    | Transfer
    | Disposition
    | Detach
    | End
    | Close
    | SaslMechanisms
    | SaslInit
    | SaslChallenge
    | SaslResponse
    | SaslOutcome
)


# -- descriptors and wire types, in the order of the fields -----------------------------

register(
    Open, 0x10, "amqp:open:list",
    STRING, STRING, UINT, USHORT, UINT, SYMBOLS, SYMBOLS, SYMBOLS, SYMBOLS, FIELDS,
)  # fmt: skip
register(Begin, 0x11, "amqp:begin:list", USHORT, UINT, UINT, UINT, UINT, SYMBOLS, SYMBOLS, FIELDS)
register(
    Attach, 0x12, "amqp:attach:list",
    STRING, UINT, BOOLEAN, UBYTE, UBYTE, COMPOSITE(Source, Described),
    COMPOSITE(Target, Coordinator, Described), MAP, BOOLEAN, UINT, ULONG, SYMBOLS, SYMBOLS, FIELDS,
)  # fmt: skip
register(
    Flow, 0x13, "amqp:flow:list",
    UINT, UINT, UINT, UINT, UINT, UINT, UINT, UINT, BOOLEAN, BOOLEAN, FIELDS,
)  # fmt: skip

_STATE: Final = COMPOSITE(
    Received, Accepted, Rejected, Released, Modified, Declared, TransactionalState, Described
)
_ERROR: Final = COMPOSITE(Error)

register(
    Transfer, 0x14, "amqp:transfer:list",
    UINT, UINT, BINARY, UINT, BOOLEAN, BOOLEAN, UBYTE, _STATE, BOOLEAN, BOOLEAN, BOOLEAN,
)  # fmt: skip
register(Disposition, 0x15, "amqp:disposition:list", BOOLEAN, UINT, UINT, BOOLEAN, _STATE, BOOLEAN)
register(Detach, 0x16, "amqp:detach:list", UINT, BOOLEAN, _ERROR)
register(End, 0x17, "amqp:end:list", _ERROR)
register(Close, 0x18, "amqp:close:list", _ERROR)

register(Error, 0x1D, "amqp:error:list", SYMBOL, STRING, FIELDS)
register(Received, 0x23, "amqp:received:list", UINT, ULONG)
register(Accepted, 0x24, "amqp:accepted:list")
register(Rejected, 0x25, "amqp:rejected:list", _ERROR)
register(Released, 0x26, "amqp:released:list")
register(Modified, 0x27, "amqp:modified:list", BOOLEAN, BOOLEAN, FIELDS)

register(
    Source, 0x28, "amqp:source:list",
    STRING, UINT, SYMBOL, UINT, BOOLEAN, FIELDS, SYMBOL, FIELDS, _STATE, SYMBOLS, SYMBOLS,
)  # fmt: skip
register(Target, 0x29, "amqp:target:list", STRING, UINT, SYMBOL, UINT, BOOLEAN, FIELDS, SYMBOLS)
register(DeleteOnClose, 0x2B, "amqp:delete-on-close:list")
register(DeleteOnNoLinks, 0x2C, "amqp:delete-on-no-links:list")
register(DeleteOnNoMessages, 0x2D, "amqp:delete-on-no-messages:list")
register(DeleteOnNoLinksOrMessages, 0x2E, "amqp:delete-on-no-links-or-messages:list")

register(Coordinator, 0x30, "amqp:coordinator:list", SYMBOLS)
register(Declare, 0x31, "amqp:declare:list", ANY)
register(Discharge, 0x32, "amqp:discharge:list", BINARY, BOOLEAN)
register(Declared, 0x33, "amqp:declared:list", BINARY)
register(TransactionalState, 0x34, "amqp:transactional-state:list", BINARY, _STATE)

register(SaslMechanisms, 0x40, "amqp:sasl-mechanisms:list", SYMBOLS)
register(SaslInit, 0x41, "amqp:sasl-init:list", SYMBOL, BINARY, STRING)
register(SaslChallenge, 0x42, "amqp:sasl-challenge:list", BINARY)
register(SaslResponse, 0x43, "amqp:sasl-response:list", BINARY)
register(SaslOutcome, 0x44, "amqp:sasl-outcome:list", UBYTE, BINARY)
