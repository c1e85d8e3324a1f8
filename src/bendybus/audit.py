"""The audit log: who created, changed or deleted what, and who was refused.

`EVENTS` has every event with its fields; docs/reference/audit.md shows the same table. Code that changes
something calls `record`. Who is acting is part of the context: the HTTP application and the AMQP nodes say so
once for each request (`acting`), and what the server does by itself is done by "server". Keys, tokens
and message bodies have no field, so they cannot get into the log. How records are written, and that
refusals which repeat are counted: server/logs.py.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bendybus.errors import BrokerError, Unauthorized

__all__ = [
    "COMMON_FIELDS",
    "EVENTS",
    "REASONS",
    "Actor",
    "acting",
    "claimed_name",
    "current_actor",
    "enter",
    "peer_name",
    "record",
    "record_refused_change",
    "token_reason",
]

logger = logging.getLogger(__name__)

# A path has at most 260 characters; names that strangers send may have any length.
VALUE_LENGTH_MAX: Final = 300


class Event(NamedTuple):
    meaning: str
    fields: tuple[str, ...] = ()
    counted: bool = False
    """Whether repetitions are counted: strangers can cause it, or it is a part of a longer job."""


COMMON_FIELDS: Final[Mapping[str, str]] = {
    "event": "the name of the event",
    "by": "the authorization rule whose key was used, `NAME` or `NAME@ENTITY`; `jwt:SUBJECT` for a JSON Web "
    "Token; `server`, `Config.json`, `AutoDeleteOnIdle` or `temporary` (the end of a temporary entity) for "
    "what the server does itself; `any-token` for a client that `--arm-any-token` let in; empty if the "
    "client has not proved who it is",
    "peer": "the address of the client",
    "namespace": "the namespace, as far as it is known",
}

EVENTS: Final[Mapping[str, Event]] = {
    "server-started": Event("the server accepts connections", ("version", "namespaces", "ports")),
    "server-stopping": Event("the server was told to stop"),
    "queue-created": Event("a queue was created", ("entity", "partitions")),
    "queue-updated": Event("properties of a queue were changed", ("entity", "changed")),
    "queue-deleted": Event("a queue was deleted with its messages", ("entity", "forced")),
    "topic-created": Event("a topic was created", ("entity", "partitions")),
    "topic-updated": Event("properties of a topic were changed", ("entity", "changed")),
    "topic-deleted": Event(
        "a topic was deleted with its subscriptions", ("entity", "forced", "subscriptions")
    ),
    "subscription-created": Event("a subscription was created", ("entity", "partitions")),
    "subscription-updated": Event("properties of a subscription were changed", ("entity", "changed")),
    "subscription-deleted": Event("a subscription was deleted with its messages", ("entity", "forced")),
    "rule-created": Event("a rule was added to a subscription", ("entity", "rule")),
    "rule-updated": Event("the filter or action of a rule was changed", ("entity", "rule")),
    "rule-deleted": Event("a rule was removed from a subscription", ("entity", "rule")),
    "authorization-rule-created": Event(
        "an authorization rule was created", ("entity", "authorization_rule", "rights")
    ),
    "authorization-rule-updated": Event(
        "the rights of an authorization rule were changed", ("entity", "authorization_rule", "rights")
    ),
    "authorization-rule-deleted": Event(
        "an authorization rule was deleted", ("entity", "authorization_rule")
    ),
    "key-changed": Event(
        "a key of an authorization rule was replaced", ("entity", "authorization_rule", "which")
    ),
    "messages-deleted": Event(
        "a batch of messages was deleted by request, as `bendybus purge` does", ("entity", "messages"), True
    ),
    "messages-replayed": Event(
        "completed messages were put back by request, as `bendybus replay` does", ("entity", "messages"), True
    ),
    "messages-inserted": Event(
        "messages were inserted by request, as `bendybus pipeline repartition` does",
        ("entity", "messages"),
        True,
    ),
    "namespace-emptied": Event("all messages of all entities were deleted (`POST /$reset`)"),
    "namespace-created": Event("a namespace was created while the server runs"),
    "namespace-updated": Event("the location or the tags of a namespace were changed"),
    "namespace-deleted": Event("a namespace was deleted with all its entities and messages"),
    "store-attached": Event("a messaging store was attached", ("store",)),
    "broker-drain-begun": Event("a broker gives its messaging stores to others", ("broker",)),
    "broker-drain-ended": Event("a broker that was drained takes part again", ("broker",)),
    "store-drain-begun": Event("a messaging store is being emptied", ("store",)),
    "store-drain-ended": Event("a messaging store that was being emptied is used again", ("store",)),
    "store-retired": Event("an empty messaging store was retired", ("store",)),
    "store-forgotten": Event(
        "a lost messaging store was given up with its messages",
        ("store", "partitions", "messages", "uncounted"),
    ),
    "fault-switched": Event("a fault of a messaging store was switched on or off", ("store", "fault")),
    "entity-fault-switched": Event("a test made an entity fail, or healed it", ("entity", "fault")),
    "backup-begun": Event("a backup was begun", ("folder",)),
    "backup-completed": Event("a backup is complete", ("folder",)),
    "backup-failed": Event("a backup could not be made", ("folder",)),
    "change-refused": Event(
        "a request to change something was refused; `error` is a name from the list of errors",
        ("request", "error"),
        True,
    ),
    "operation-refused": Event(
        "a client with an accepted token lacks the right for a link or request",
        ("reason", "resource", "right"),
        True,
    ),
    "connection-closed": Event("an operator closed a client's connection", ("connection", "client")),
    "token-refused": Event("a token was not accepted", ("reason", "claimed", "resource"), True),
    "login-refused": Event("a login by SASL PLAIN was not accepted", ("reason", "claimed"), True),
    "connection-refused": Event("a connection was refused or closed by the server", ("reason",), True),
}

# Why something was refused: the values of the field `reason`.
REASONS: Final[Mapping[str, str]] = {
    "no-token": "the request has no token, or none was accepted within 30 seconds of connecting",
    "wrong-key": "the signature or the login was not made with a known key",
    "wrong-audience": "the token is for another resource",
    "malformed": "the token or login cannot be read",
    "expired": "the token has expired, or is not valid yet",
    "local-auth-disabled": "a key or SAS token was used in a namespace that refuses them",
    "no-right": "the token or login lacks the right",
    "other-namespace": "the login is for another namespace than the host name",
    "flood": "more than a thousand frames without an accepted token",
    "slow-handshake": "nothing, or not enough, was sent in time to open the connection",
    "too-many-connections": "the server has reached its limit of connections",
    "unknown-protocol": "the connection speaks neither AMQP 1.0, HTTP nor TLS",
    "tls-failed": "the TLS handshake failed",
    "tls-required": "a connection without TLS to a server that requires it",
    "memory": "the connection held too much of the server's memory",
}

# Of `Unauthorized.sub_code`.
_TOKEN_REASONS: Final = {
    40100: "no-right",
    40102: "no-token",
    40103: "wrong-key",
    40104: "wrong-audience",
    40105: "malformed",
    40106: "expired",
    40107: "local-auth-disabled",
}

# The names that an authorization rule may have. A key that stands in a name's place by mistake ends with "=".
_RULE_NAME: Final = re.compile(r"[\w.-]{1,60}")

_PLAIN: Final = re.compile(r"[\w.,/:@$+-]+")


@dataclass(frozen=True, slots=True)
class Actor:
    by: str = "server"
    peer: str = ""
    namespace: str = ""


_SERVER: Final = Actor()
_acting: ContextVar[Actor] = ContextVar("bendybus_actor", default=_SERVER)


def current_actor() -> Actor:
    return _acting.get()


def enter(*, by: str | None = None, peer: str | None = None, namespace: str | None = None) -> None:
    """From here on, in this task and those that it starts, this is who acts; None leaves a part as it is."""
    given = {"by": by, "peer": peer, "namespace": namespace}
    _acting.set(replace(_acting.get(), **{name: value for name, value in given.items() if value is not None}))


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    before = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(before)


def record(event: str, actor: Actor | None = None, /, **fields: str | int) -> None:
    """Something has happened. `actor`: who did it, if it is not the one in the context."""
    if not logger.isEnabledFor(logging.INFO):
        return
    described = EVENTS[event]
    assert set(fields) <= set(described.fields), f"{event} has other fields than {sorted(fields)}"
    who = actor or _acting.get()
    values: dict[str, str | int] = {"event": event}
    for name, value in (("by", who.by), ("peer", who.peer), ("namespace", who.namespace), *fields.items()):
        values[name] = value if isinstance(value, int) else value[:VALUE_LENGTH_MAX]
    kind = f"{event} {fields.get('reason') or fields.get('error', '')}" if described.counted else None
    logger.info(_text(values), extra={"audit": values, "kind": kind})


def record_refused_change(method: str, path: str, error: BrokerError) -> None:
    """A request that would have changed something; reading, and tokens, are not recorded here."""
    if method not in ("GET", "HEAD") and not isinstance(error, Unauthorized):
        record("change-refused", request=f"{method[:60]} /{path.strip('/')}", error=type(error).__name__)


def token_reason(refusal: Unauthorized) -> str:
    return _TOKEN_REASONS.get(refusal.sub_code, "no-right")


def claimed_name(name: str) -> str:
    """The rule that a client names, which need not exist; empty if no rule can have that name."""
    return name if _RULE_NAME.fullmatch(name) else ""


def peer_name(address: object) -> str:
    """The address of a peer as a socket gives it: `host:port`, IPv6 addresses in brackets."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "" if address is None else str(address)
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _text(values: Mapping[str, str | int]) -> str:
    """The event, and `name=value` for what is known; a value that could be taken for more is quoted."""
    parts = [str(values["event"])]
    for name, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name != "event" and text:
            parts.append(f"{name}={text if _PLAIN.fullmatch(text) else json.dumps(text)}")
    return " ".join(parts)
