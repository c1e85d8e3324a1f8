"""Authorization rules as data: what a namespace or an entity keeps about who may use it.

A rule has a name, rights and two keys, either of which opens what the rule allows.
Everything that a rule may not be is refused here. Where a signature is checked
against the keys: auth/sas.py. How rules are written and read over HTTP: admin/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bendybus.errors import ArgumentError, QuotaExceeded
from bendybus.names import Instant

__all__ = ["RIGHTS", "RULES_MAX", "AuthorizationRule", "check_rules", "rules_from_record", "with_rule"]

# In the order of the real service. "Manage implies the others".
RIGHTS: Final = ("Manage", "Send", "Listen")

# "Up to 12 authorization rules per entity/namespace."
RULES_MAX: Final = 12

NEVER: Final = Instant(0)

# .NET's client refuses longer names; keys have 44 characters there, and may have more here.
NAME_LENGTH_MAX: Final = 256
KEY_LENGTH_MAX: Final = 256

# What needs no escape in the `skn` of a token, where clients disagree about escapes.
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_KEY: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """One rule. Who has Manage has Send and Listen too, and is shown with all three: .NET's client
    takes a rule with Manage alone for an error."""

    name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(default="", repr=False)
    """Empty for none."""
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
                # The key itself is not shown, not even a bad one.
                raise ArgumentError(
                    f"The {kind} key of the authorization rule '{self.name}' is not allowed: up to "
                    f"{KEY_LENGTH_MAX} visible ASCII characters."
                )
        if not self.primary_key:
            raise ArgumentError(f"The authorization rule '{self.name}' has no primary key.")

    def same_but_times(self, other: AuthorizationRule) -> bool:
        """Whether both say the same, whenever they were made."""
        return _meaning(self) == _meaning(other)

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> AuthorizationRule:
        """What `asdict` gave, and JSON kept."""
        values = dict(record)
        values["rights"] = tuple(values["rights"])  # type: ignore[arg-type]  # a list, or it is refused
        return cls(**values)  # type: ignore[arg-type]  # the constructor checks every value


def check_rules(owner: str, rules: Sequence[AuthorizationRule]) -> tuple[AuthorizationRule, ...]:
    """The rules of one entity or of the namespace; refuses a name twice and too many."""
    if len({rule.name for rule in rules}) < len(rules):
        raise ArgumentError(f"{owner} has two authorization rules of one name.")
    if len(rules) > RULES_MAX:
        raise QuotaExceeded(f"{owner} has {len(rules)} authorization rules; at most {RULES_MAX} are allowed.")
    return tuple(rules)


def rules_from_record(record: object) -> tuple[AuthorizationRule, ...]:
    """The rules as a catalog kept them; none where an earlier version kept none."""
    return tuple(map(AuthorizationRule.from_record, record)) if isinstance(record, list | tuple) else ()


def with_rule(
    rules: Iterable[AuthorizationRule], rule: AuthorizationRule | None, name: str = ""
) -> tuple[AuthorizationRule, ...]:
    """These rules with one more or, where there is one of that name, another in its place.

    With None for the rule, the one called `name` goes.
    """
    held = {each.name: each for each in rules}
    if rule is None:
        held.pop(name, None)
    else:
        held[rule.name] = rule
    return tuple(held.values())


def _meaning(rule: AuthorizationRule) -> tuple[object, ...]:
    return rule.name, rule.rights, rule.primary_key, rule.secondary_key
