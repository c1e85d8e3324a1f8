"""`AuthorizationRules` in the description of an entity, read and written as the SDKs do.

They contain keys, so only clients that may manage the entity are shown them. Which rules are
valid: domain/access.py. The same as JSON: authorization_rule_routes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bendybus.admin.authorization_rules import check_key, new_key
from bendybus.admin.documents import Element
from bendybus.atom import element
from bendybus.broker.clock import now
from bendybus.domain.access import AuthorizationRule
from bendybus.errors import ArgumentError

__all__ = ["read_rules", "rules_element"]


def rules_element(rules: Sequence[AuthorizationRule]) -> str:
    return f"<AuthorizationRules>{''.join(map(_rule_element, rules))}</AuthorizationRules>"


def _rule_element(rule: AuthorizationRule) -> str:
    rights = "".join(element("AccessRights", right) for right in rule.rights)
    return (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        f"{element('ClaimType', 'SharedAccessKey')}{element('ClaimValue', 'None')}<Rights>{rights}</Rights>"
        f"{element('KeyName', rule.name)}"
        f"{element('PrimaryKey', rule.primary_key)}{element('SecondaryKey', rule.secondary_key)}"
        "</AuthorizationRule>"
    )


def read_rules(rules: Element, current: Sequence[AuthorizationRule]) -> tuple[AuthorizationRule, ...]:
    """The complete rules that a client sends. Keys that it leaves out stay, or are made."""
    present = {rule.name: rule for rule in current}
    return tuple(_read_rule(child, present) for child in rules.children)


def _read_rule(rule: Element, present: dict[str, AuthorizationRule]) -> AuthorizationRule:
    if rule.name != "AuthorizationRule":
        raise ArgumentError(
            f"AuthorizationRules has the element {rule.name[:60]}; expected AuthorizationRule."
        )
    name = _text(rule, "KeyName")
    before = present.get(name)
    kinds = rule.find("Rights")
    at = now()
    read = AuthorizationRule(
        name,
        tuple(right.text.strip() for right in kinds.children) if kinds is not None else (),
        _key(rule, "PrimaryKey", name, before.primary_key if before else ""),
        _key(rule, "SecondaryKey", name, before.secondary_key if before else ""),
        before.created_at if before else at,
        at,
    )
    if before is not None and read.same_but_times(before):
        return replace(read, modified_at=before.modified_at)
    return read


def _key(rule: Element, kind: str, name: str, before: str) -> str:
    given = _text(rule, kind)
    if not given:
        return before or new_key()
    # A rule that is sent back unchanged is not checked again.
    return given if given == before else check_key(name, given)


def _text(rule: Element, name: str) -> str:
    found = rule.find(name)
    return "" if found is None else found.text.strip()
