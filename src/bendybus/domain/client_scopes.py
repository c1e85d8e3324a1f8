"""The names of client-scoped subscriptions, which JMS clients make by consuming a topic.

A subscription that belongs to a JMS client identifier is called `NAME$CLIENT-ID$D` if it is durable,
and `NAME$CLIENT-ID$ND` if it ends with its last consumer, as on Azure. The client identifier is empty if
clients of any identifier share the subscription. Which clients may consume it:
broker/client_subscriptions.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bendybus.errors import ArgumentError

__all__ = ["ClientScope"]

# "must support a subscription name of at least 128 characters" [Jakarta Messaging 8.3.9]. Client identifiers
# have no limit of their own; those that libraries generate have about 40 characters.
NAME_LENGTH_MAX: Final = 128
CLIENT_ID_LENGTH_MAX: Final = 128

_DURABLE: Final = "D"
_NON_DURABLE: Final = "ND"
# Everything except `$` and what means something else in a path, in a URL or in XML.
_LETTERS: Final = r"[^\x00-\x1f\x7f$/\\%?#\"'<>&|*]"
_PART: Final = re.compile(f"{_LETTERS}*")
_SCOPED: Final = re.compile(f"(?P<name>{_LETTERS}+)[$](?P<client_id>{_LETTERS}*)[$](?P<kind>N?D)")


@dataclass(frozen=True, slots=True)
class ClientScope:
    """`ArgumentError` if the name or the client identifier cannot be part of a subscription's name."""

    name: str
    client_id: str
    """Empty if any client may consume the subscription."""
    durable: bool

    def __post_init__(self) -> None:
        if not self.name:
            raise ArgumentError("A subscription that belongs to a client needs a name.")
        for part, what, limit in (
            (self.name, "subscription name", NAME_LENGTH_MAX),
            (self.client_id, "client identifier", CLIENT_ID_LENGTH_MAX),
        ):
            if len(part) > limit:
                raise ArgumentError(
                    f"The {what} '{part[:40]}...' has {len(part)} characters; at most {limit}."
                )
            if not _PART.fullmatch(part):
                raise ArgumentError(
                    f"The {what} '{part}' is not allowed: it contains a control character or one of "
                    "$ / \\ % ? # \" ' < > & | *"
                )

    def __str__(self) -> str:
        """The name of the subscription."""
        return f"{self.name}${self.client_id}${_DURABLE if self.durable else _NON_DURABLE}"

    @classmethod
    def parse(cls, name: str) -> ClientScope | None:
        """Read the name of a subscription. None for one that is not client-scoped."""
        found = _SCOPED.fullmatch(name)
        return None if found is None else cls(found["name"], found["client_id"], found["kind"] == _DURABLE)
