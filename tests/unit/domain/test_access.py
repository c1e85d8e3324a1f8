"""Authorization rules as data: what a rule may be, and how it is kept."""

from __future__ import annotations

import json

import pytest

from bendybus.domain.access import AuthorizationRule, check_rules, rules_from_record, with_rule
from bendybus.domain.entities import QueueDescription
from bendybus.errors import ArgumentError, QuotaExceeded
from bendybus.names import EntityPath, Instant

RULE = AuthorizationRule("shop", ("Send",), "first", "second", Instant(1), Instant(2))


def test_manage_implies_send_and_listen_and_is_shown_so() -> None:
    assert AuthorizationRule("r", ("Manage",), "k").rights == ("Manage", "Send", "Listen")


def test_rights_are_kept_in_one_order_and_once() -> None:
    assert AuthorizationRule("r", ("Listen", "Send", "Listen"), "k").rights == ("Send", "Listen")


@pytest.mark.parametrize(
    "name", ["", "-a", "a.", "a b", "a/b", "a&b", "é", "a" * 257, "a\n", "$a"], ids=lambda name: name[:9]
)
def test_a_name_that_clients_would_have_to_escape_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="cannot have this name"):
        AuthorizationRule(name, ("Send",), "k")


@pytest.mark.parametrize(
    ("rights", "first", "second", "reason"),
    [
        ((), "k", "", "has no right"),
        (("send",), "k", "", "has the right 'send'; allowed are Manage, Send, Listen"),
        (("Send",), "", "", "no primary key"),
        (("Send",), "with space", "", "primary key"),
        (("Send",), "k", "s\u00e9cret", "secondary key"),
        (("Send",), "k" * 257, "", "primary key"),
    ],
)
def test_a_refusal_names_the_rule_and_never_the_key(
    rights: tuple[str, ...], first: str, second: str, reason: str
) -> None:
    with pytest.raises(ArgumentError, match=reason) as refused:
        AuthorizationRule("shop", rights, first, second)
    assert "'shop'" in str(refused.value)
    assert not any(key in str(refused.value) for key in ("with space", "s\u00e9cret"))


def test_keys_are_not_in_the_text_that_logs_show() -> None:
    assert "first" not in repr(RULE) and "second" not in repr(RULE)


def test_twelve_rules_are_allowed_and_no_more() -> None:
    rules = [AuthorizationRule(f"r{number}", ("Send",), "k") for number in range(13)]
    assert len(check_rules("Queue 'q'", rules[:12])) == 12
    with pytest.raises(QuotaExceeded, match="Queue 'q' has 13 authorization rules; at most 12"):
        QueueDescription(EntityPath("q"), authorization_rules=tuple(rules))
    with pytest.raises(ArgumentError, match="two authorization rules of one name"):
        QueueDescription(EntityPath("q"), authorization_rules=(RULE, RULE))


def test_rules_come_back_from_the_catalog_as_they_were() -> None:
    queue = QueueDescription(EntityPath("q"), authorization_rules=(RULE,))
    kept = json.loads(json.dumps(queue.to_record()))
    assert QueueDescription.from_record(kept) == queue
    del kept["authorization_rules"]  # as a version before rules kept it
    assert QueueDescription.from_record(kept).authorization_rules == rules_from_record(None) == ()


def test_a_rule_is_added_replaced_and_taken_away_by_its_name() -> None:
    other = AuthorizationRule("other", ("Listen",), "k")
    changed = AuthorizationRule("shop", ("Listen",), "k")
    assert with_rule((RULE,), other) == (RULE, other)
    assert with_rule((RULE, other), changed) == (changed, other)
    assert with_rule((RULE, other), None, "shop") == (other,)
