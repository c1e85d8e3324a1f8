"""The key ring: all authorization rules of a namespace, as tokens are checked against them.

A rule is a named pair of keys with rights over the namespace or one entity. The `KeyRing`
answers one question: which rules of this name could have signed for this path? sas.py finds
out which of them did.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bendybus.auth.paths import ancestry, entity_path
from bendybus.auth.rights import Right
from bendybus.names import Instant

__all__ = ["ROOT_RULE_NAME", "AccessRule", "Issuer", "KeyRing"]

# "Namespace rule `RootManageSharedAccessKey` always exists."
ROOT_RULE_NAME = "RootManageSharedAccessKey"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One rule. Either key is accepted, so one can be changed while the other is in use."""

    name: str
    primary_key: str
    secondary_key: str
    rights: Right
    scope: str = ""
    """The entity's path, or nothing for the whole namespace."""

    @classmethod
    def root(cls, key: str) -> AccessRule:
        return cls(ROOT_RULE_NAME, key, key, Right.SEND | Right.LISTEN | Right.MANAGE)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that count; an empty key is no key at all."""
        return tuple(key for key in (self.primary_key, self.secondary_key) if key)

    @property
    def holder(self) -> str:
        """Who has one of its keys, as the audit log shows it."""
        return f"{self.name}@{self.scope}" if self.scope else self.name

    def __repr__(self) -> str:
        return f"<AccessRule {self.name!r} on {self.scope or 'the namespace'!r}: {self.rights.label}>"


class Issuer(Protocol):
    """An identity provider whose tokens are accepted (jwt.py, which is loaded only if one is set)."""

    def reaching(self, path: str) -> Issuer:
        """Only with what it may say about `path` and above."""

    def of_resource_manager(self) -> Issuer:
        """For requests to the resource manager, whose clients ask for tokens with another audience."""

    def rights(self, text: str, path: str, now: Instant) -> tuple[Right, Instant, str]:
        """What a token gives over `path`, until when, and to whom; `Unauthorized` when nothing."""

    def scopes(self, text: str, now: Instant) -> Iterator[tuple[str, Right, Instant, str]]:
        """The same for each path over which it gives anything; the path comes first."""


class KeyRing:
    """All authorization rules of a namespace, and the trusted identity provider."""

    __slots__ = ("_rules", "issuer", "local_auth")

    def __init__(
        self, rules: Iterable[AccessRule] = (), issuer: Issuer | None = None, *, local_auth: bool = True
    ) -> None:
        self.issuer = issuer
        """The issuer whose JSON Web Tokens are accepted; None for none."""
        self.local_auth = local_auth
        """Whether keys open anything: by a login, or by a token that they sign."""
        self._rules: dict[str, dict[str, AccessRule]] = {}
        """scope -> name -> rule, the scope in comparable form."""
        for rule in rules:
            self.put(rule)

    def __iter__(self) -> Iterator[AccessRule]:
        for by_name in self._rules.values():
            yield from by_name.values()

    def put(self, rule: AccessRule) -> None:
        """Add a rule, or replace the one with that name and scope. Keys are changed in this way."""
        self._rules.setdefault(entity_path(rule.scope), {})[rule.name] = rule

    def replace(self, scope: str, rules: Iterable[AccessRule]) -> None:
        """Replace all rules of `scope` by these."""
        path = entity_path(scope)
        self._rules.pop(path, None)
        for rule in rules:
            self.put(rule)

    def remove(self, name: str, scope: str = "") -> None:
        """Remove a rule; its tokens stop working at once. An unknown rule is no error."""
        self._rules.get(entity_path(scope), {}).pop(name, None)

    def named(self, name: str, path: str) -> Iterator[AccessRule]:
        """The rules of this name whose scope covers `path` (in comparable form), nearest first."""
        for scope in ancestry(path):
            rule = self._rules.get(scope, {}).get(name)
            if rule is not None:
                yield rule

    def reaching(self, path: str) -> KeyRing:
        """Only the rules whose scope covers `path`: who signs for a URL below it needs one of these."""
        issuer = None if self.issuer is None else self.issuer.reaching(path)
        ring = KeyRing(issuer=issuer, local_auth=self.local_auth)
        for scope in ancestry(entity_path(path)):
            if scope in self._rules:
                ring._rules[scope] = self._rules[scope]
        return ring

    def opened_by(self, name: str, key: str) -> list[AccessRule]:
        """The rules that a login with this name and key proves: SASL PLAIN names no path."""
        offered = key.encode()
        proven = []
        for rule in self:
            if rule.name == name:
                # Every key is compared, and each in constant time.
                matches = [hmac.compare_digest(offered, known.encode()) for known in rule.keys]
                if any(matches):
                    proven.append(rule)
        return proven
