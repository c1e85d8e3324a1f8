"""The key ring: which rules could have signed for a path, and which a login proves."""

from __future__ import annotations

from bendybus.auth.key_ring import ROOT_RULE_NAME, AccessRule, KeyRing
from bendybus.auth.rights import Right

NAMESPACE_RULE = AccessRule("app", "namespace-key", "", Right.LISTEN)
QUEUE_RULE = AccessRule("app", "queue-key", "queue-key-2", Right.SEND, "Orders")


def test_rules_are_found_from_the_nearest_scope_outwards() -> None:
    ring = KeyRing([NAMESPACE_RULE, QUEUE_RULE])
    assert list(ring.named("app", "orders/$management")) == [QUEUE_RULE, NAMESPACE_RULE]
    assert list(ring.named("app", "orders2")) == [NAMESPACE_RULE]
    assert list(ring.named("other", "orders")) == []


def test_putting_a_rule_again_changes_its_keys() -> None:
    ring = KeyRing([QUEUE_RULE])
    ring.put(AccessRule("app", "new-key", "", Right.SEND, "ORDERS"))
    assert ring.opened_by("app", "queue-key") == []
    assert len(ring.opened_by("app", "new-key")) == 1


def test_a_removed_rule_opens_nothing() -> None:
    ring = KeyRing([QUEUE_RULE])
    ring.remove("app", "orders")
    ring.remove("never", "was")
    assert list(ring) == []


def test_a_login_is_proven_by_either_key() -> None:
    ring = KeyRing([NAMESPACE_RULE, QUEUE_RULE])
    assert ring.opened_by("app", "queue-key") == [QUEUE_RULE]
    assert ring.opened_by("app", "queue-key-2") == [QUEUE_RULE]
    assert ring.opened_by("app", "namespace-key") == [NAMESPACE_RULE]


def test_an_empty_key_opens_nothing() -> None:
    assert KeyRing([NAMESPACE_RULE]).opened_by("app", "") == []


def test_the_root_rule_may_do_everything_everywhere() -> None:
    rule = AccessRule.root("secret")
    assert rule.name == ROOT_RULE_NAME
    assert rule.scope == ""
    assert rule.rights.allows(Right.MANAGE)


def test_keys_do_not_show_in_logs() -> None:
    assert "queue-key" not in repr(QUEUE_RULE)
