"""Role assignments: what a principal of an identity provider may do, and where.

    clerk=Send,Listen                                   a role that the token names
    oid:GUID=Azure Service Bus Data Sender@orders       a user, a managed identity or a service principal
    appid:GUID=Listen@news/subscriptions/all            an application (`appid` or `azp` in its tokens)
    group:GUID=Azure Service Bus Data Owner             the members of a group

Azure keeps such assignments itself, and its tokens do not have them. Here the operator gives them to
the server. How a token is verified: jwt.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Final

from bendybus.auth.paths import entity_path
from bendybus.auth.rights import Right
from bendybus.errors import ArgumentError, Unauthorized

__all__ = ["DATA_OWNER", "DATA_RECEIVER", "DATA_SENDER", "WELL_KNOWN_ROLES", "Principal", "Role"]

DATA_OWNER: Final = "Azure Service Bus Data Owner"
DATA_SENDER: Final = "Azure Service Bus Data Sender"
DATA_RECEIVER: Final = "Azure Service Bus Data Receiver"

_BUILT_IN: Final[Mapping[str, Right]] = {
    DATA_OWNER: Right.SEND | Right.LISTEN | Right.MANAGE,
    DATA_SENDER: Right.SEND,
    DATA_RECEIVER: Right.LISTEN,
}


class Principal(StrEnum):
    """What a role is assigned to, as the option writes it."""

    ROLE = "role"
    OBJECT = "oid"
    APPLICATION = "appid"
    GROUP = "group"


# Where a token says it. Version 2 of Entra's tokens has `azp` for `appid`.
_CLAIMS: Final[Mapping[Principal, tuple[str, ...]]] = {
    Principal.ROLE: ("roles",),
    Principal.OBJECT: ("oid",),
    Principal.APPLICATION: ("appid", "azp"),
    Principal.GROUP: ("groups",),
}


@dataclass(frozen=True, slots=True)
class Role:
    """The rights that a principal has over a scope."""

    name: str
    """The role, or the id of the object, the application or the group."""
    rights: Right
    scope: str = ""
    """The path of an entity or a subscription, or nothing for the whole namespace."""
    principal: Principal = Principal.ROLE

    @classmethod
    def parse(cls, text: str) -> Role:
        """`WHO=WHAT` or `WHO=WHAT@SCOPE`; `ArgumentError` if it is neither."""
        who, _, rest = text.rpartition("=")
        what, _, scope = rest.partition("@")
        return cls.of(who, what, scope)

    @classmethod
    def of(cls, who: str, what: str, scope: str = "") -> Role:
        """`what` is one of Azure's three roles, or rights with commas between them."""
        kind, colon, name = who.strip().partition(":")
        principal = Principal.ROLE
        if colon and kind in list(Principal):
            principal = Principal(kind)
        else:
            name = who
        if not name.strip():
            raise ArgumentError(
                f"'{who}' names nobody: expected a role of tokens, or oid:, appid:, group: or role: and an id"
            )
        try:
            path = entity_path(scope.strip())
        except Unauthorized as error:
            raise ArgumentError(str(error)) from error
        return cls(name.strip(), _rights(what.strip()), path, principal)

    def is_held(self, claims: Mapping[str, object]) -> bool:
        """Whether the principal of this assignment is the bearer of a token with these claims."""
        return any(self._is_in(claims.get(claim)) for claim in _CLAIMS[self.principal])

    def _is_in(self, claimed: object) -> bool:
        held = claimed if isinstance(claimed, list) else [claimed]
        if self.principal is Principal.ROLE:
            return isinstance(claimed, list) and self.name in held
        # Ids are GUIDs, which are the same in either case.
        return any(isinstance(each, str) and each.lower() == self.name.lower() for each in held)


def _rights(what: str) -> Right:
    built_in = next((rights for name, rights in _BUILT_IN.items() if name.lower() == what.lower()), None)
    if built_in is not None:
        return built_in
    rights = [Right.named(right.strip()) for right in what.split(",")]
    known = [right for right in rights if right is not None]
    if len(known) < len(rights):
        raise ArgumentError(
            f"'{what}' is no role of Azure Service Bus ({', '.join(_BUILT_IN)}) and no list of rights (Send, "
            "Listen, Manage with commas between them)"
        )
    return reduce(or_, known)


# Tokens may name Azure's roles themselves, as other identity providers do.
WELL_KNOWN_ROLES: Final = tuple(Role(name, rights) for name, rights in _BUILT_IN.items())
