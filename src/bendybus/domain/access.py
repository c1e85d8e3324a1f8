"""Authorization rules as data: who may do what with a namespace or an entity.

A rule has a name, rights and two keys. A client may sign with either key.
Every check of a rule's values is here. auth/sas.py checks signatures against
the keys; admin/ reads and writes rules over HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bendybus.errors import ArgumentError, QuotaExceeded
from bendybus.names import Instant

__all__ = ["RIGHTS", "RULES_MAX", "AuthorizationRule", "check_rules", "rules_from_record", "with_rule"]

# In the order the real service uses. "Manage implies the others".
RIGHTS: Final = ("Manage", "Send", "Listen")

# "Up to 12 authorization rules per entity/namespace."
RULES_MAX: Final = 12

NEVER: Final = Instant(0)

# .NET's client refuses longer names. Its keys have 44 characters; keys here may be longer.
NAME_LENGTH_MAX: Final = 256
KEY_LENGTH_MAX: Final = 256

# Characters that need no escaping in the `skn` of a token. Clients disagree about escaping.
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_KEY: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """One rule. Manage implies Send and Listen, and such a rule is shown with all three rights:
    .NET's client treats a rule with Manage alone as an error."""

    name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    """Empty if there is none."""
    created_at: Instant = NEVER
    modified_at: Instant = NEVER

    def __post_init__(self) -> None:
        if len(self.name) > NAME_LENGTH_MAX or not _NAME.fullmatch(self.name):
            raise ArgumentError(
                f"The authorization rule '{self.name[:60]}' cannot have this name: up to {NAME_LENGTH_MAX} "
                "letters, digits, '.', '-' and '_', with a letter or digit at both ends."
            )
        for right in self.rights:
            if right not in RIGHTS:
                raise ArgumentError(
                    f"The authorization rule '{self.name}' has the right '{right[:60]}'; "
                    f"allowed are {', '.join(RIGHTS)}."
                )
        if not self.rights:
            raise ArgumentError(f"The authorization rule '{self.name}' has no right; it needs at least one.")
        given = RIGHTS if "Manage" in self.rights else self.rights
        object.__setattr__(self, "rights", tuple(right for right in RIGHTS if right in given))
        for kind, key in (("primary", self.primary_key), ("secondary", self.secondary_key)):
            if len(key) > KEY_LENGTH_MAX or (key and not _KEY.fullmatch(key)):
                # Never show a key, not even an invalid one.
                raise ArgumentError(
                    f"The {kind} key of the authorization rule '{self.name}' is not allowed: up to "
                    f"{KEY_LENGTH_MAX} visible ASCII characters."
                )
        if not self.primary_key:
            raise ArgumentError(f"The authorization rule '{self.name}' has no primary key.")

    def same_but_times(self, other: AuthorizationRule) -> bool:
        """Whether both rules are the same apart from their timestamps."""
        return _meaning(self) == _meaning(other)

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> AuthorizationRule:
        """The rule that was recorded with `asdict` and stored as JSON."""
        values = dict(record)
        values["rights"] = tuple(values["rights"])  # type: ignore[arg-type]  # a list, or it is refused
        return cls(**values)  # type: ignore[arg-type]  # the constructor checks every value


def check_rules(owner: str, rules: Sequence[AuthorizationRule]) -> tuple[AuthorizationRule, ...]:
    """Check the rules of one entity or of the namespace: no duplicate names, not too many rules."""
    if len({rule.name for rule in rules}) < len(rules):
        raise ArgumentError(f"{owner} has two authorization rules of one name.")
    if len(rules) > RULES_MAX:
        raise QuotaExceeded(f"{owner} has {len(rules)} authorization rules; at most {RULES_MAX} are allowed.")
    return tuple(rules)


def rules_from_record(record: object) -> tuple[AuthorizationRule, ...]:
    """The rules from a catalog record. Records of earlier versions have none."""
    return tuple(map(AuthorizationRule.from_record, record)) if isinstance(record, list | tuple) else ()


def with_rule(
    rules: Iterable[AuthorizationRule], rule: AuthorizationRule | None, name: str = ""
) -> tuple[AuthorizationRule, ...]:
    """Add this rule, or replace the rule that has its name.

    If `rule` is None, the rule called `name` is removed.
    """
    held = {each.name: each for each in rules}
    if rule is None:
        held.pop(name, None)
    else:
        held[rule.name] = rule
    return tuple(held.values())


def _meaning(rule: AuthorizationRule) -> tuple[object, ...]:
    return rule.name, rule.rights, rule.primary_key, rule.secondary_key
