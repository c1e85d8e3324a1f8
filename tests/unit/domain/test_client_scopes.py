"""The names of client-scoped subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.client_scopes import ClientScope
from bendybus.domain.entities import Tier
from bendybus.domain.filters import DEFAULT_RULE_NAME, RuleDescription, SelectorFilter, SqlFilter
from bendybus.domain.topic_entities import SubscriptionDescription, check_client_scope
from bendybus.errors import ArgumentError, InvalidOperation

letters = st.text("abcXYZ019 ._-:@äß", max_size=20)


@given(letters.filter(bool), letters, st.booleans())
def test_a_name_says_what_was_put_into_it(name: str, client_id: str, durable: bool) -> None:
    scope = ClientScope(name, client_id, durable)
    assert ClientScope.parse(str(scope)) == scope
    assert SubscriptionDescription.of("topic", str(scope)).scope == scope


def test_names_are_azures() -> None:
    assert str(ClientScope("sub", "client", durable=True)) == "sub$client$D"
    assert str(ClientScope("sub", "", durable=False)) == "sub$$ND"


@pytest.mark.parametrize("name", ["sub", "sub$D", "a$b$c", "$c$D", "a$b$c$D", "a$b/c$D", "a$b$d"])
def test_other_names_are_not_client_scoped(name: str) -> None:
    assert ClientScope.parse(name) is None


@pytest.mark.parametrize(
    ("name", "client_id"), [("", "c"), ("a$b", ""), ("a", "b$c"), ("a/b", ""), ("a", "x\n"), ("n" * 129, "")]
)
def test_what_could_be_read_otherwise_is_refused(name: str, client_id: str) -> None:
    with pytest.raises(ArgumentError):
        ClientScope(name, client_id, durable=True)


def test_only_premium_has_them_and_nobody_makes_one_that_would_end_at_once() -> None:
    durable = SubscriptionDescription.of("t", "s$c$D")
    check_client_scope(Tier.PREMIUM, durable)
    check_client_scope(Tier.STANDARD, SubscriptionDescription.of("t", "plain"))
    with pytest.raises(InvalidOperation, match="standard tier"):
        check_client_scope(Tier.STANDARD, durable)
    with pytest.raises(ArgumentError, match="first consumer"):
        check_client_scope(Tier.PREMIUM, SubscriptionDescription.of("t", "s$c$ND"))
    check_client_scope(Tier.PREMIUM, SubscriptionDescription.of("t", "s$c$ND", temporary=True))


def test_a_description_survives_its_record() -> None:
    rule = RuleDescription(DEFAULT_RULE_NAME, SelectorFilter("a BETWEEN 1 AND 2"))
    description = SubscriptionDescription.of("t", "s$c$ND", rules=(rule,), shared=True, temporary=True)
    again = SubscriptionDescription.from_record(description.to_record())
    assert again == description
    assert again.selector == "a BETWEEN 1 AND 2"


def test_rules_of_an_administrator_are_no_selector() -> None:
    assert SubscriptionDescription.of("t", "s$c$D").selector == ""
    for rules in ((), (RuleDescription("r", SqlFilter("a = 1")),)):
        assert SubscriptionDescription.of("t", "s$c$D", rules=rules).selector is None
