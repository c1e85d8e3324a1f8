"""The changes of a description, for the audit log, found by comparing before and after.

So every way to make a change is recorded alike: the management API, rules over AMQP, transactions,
Config.json. Names are recorded and values are not, because some values are keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bendybus import audit
from bendybus.domain.access import AuthorizationRule
from bendybus.domain.entities import EntityDescription
from bendybus.domain.topic_entities import SubscriptionDescription
from bendybus.store.catalog import EntityKind

__all__ = ["record_authorization_rules", "record_change"]

# These have events of their own, or only say how a client has written other properties.
_ELSEWHERE: Final = frozenset({"authorization_rules", "rules", "as_sent"})


def record_change(kind: EntityKind, before: EntityDescription, after: EntityDescription) -> None:
    """An entity has a new description."""
    old, new = before.to_record(), after.to_record()
    changed = [name for name in new if name not in _ELSEWHERE and new[name] != old[name]]
    if changed:
        audit.record(f"{kind}-updated", entity=after.path, changed=",".join(changed))
    record_authorization_rules(after.path, before.authorization_rules, after.authorization_rules)
    if isinstance(before, SubscriptionDescription) and isinstance(after, SubscriptionDescription):
        _record_rules(before, after)


def _record_rules(before: SubscriptionDescription, after: SubscriptionDescription) -> None:
    old = {rule.name: rule for rule in before.rules}
    new = {rule.name: rule for rule in after.rules}
    for name in old.keys() - new.keys():
        audit.record("rule-deleted", entity=after.path, rule=name)
    for name, rule in new.items():
        if name not in old:
            audit.record("rule-created", entity=after.path, rule=name)
        elif rule != old[name]:
            audit.record("rule-updated", entity=after.path, rule=name)


def record_authorization_rules(
    scope: str, before: Sequence[AuthorizationRule], after: Sequence[AuthorizationRule]
) -> None:
    """The authorization rules of an entity, or of the namespace if the scope is empty, have changed."""
    old = {rule.name: rule for rule in before}
    new = {rule.name: rule for rule in after}
    for name in old.keys() - new.keys():
        audit.record("authorization-rule-deleted", entity=scope, authorization_rule=name)
    for name, rule in new.items():
        known, rights = old.get(name), ",".join(rule.rights)
        if known is None:
            audit.record("authorization-rule-created", entity=scope, authorization_rule=name, rights=rights)
            continue
        if known.rights != rule.rights:
            audit.record("authorization-rule-updated", entity=scope, authorization_rule=name, rights=rights)
        for which in ("primary", "secondary"):
            if getattr(known, f"{which}_key") != getattr(rule, f"{which}_key"):
                audit.record("key-changed", entity=scope, authorization_rule=name, which=which)
