"""`AuthorizationRules` in a description, both ways."""

from __future__ import annotations

import pytest

from bendybus.admin.authorization_rules_xml import read_rules, rules_element
from bendybus.admin.documents import Element, parse_entry
from bendybus.domain.access import AuthorizationRule
from bendybus.errors import ArgumentError
from bendybus.names import Instant

SHOP = AuthorizationRule("shop", ("Send",), "first-key-of-the-shop", "short", Instant(1), Instant(2))


def parsed(text: str) -> Element:
    body = (
        '<entry xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><content><QueueDescription>'
        f"{text}</QueueDescription></content></entry>"
    )
    return parse_entry(body.encode()).elements["AuthorizationRules"]


def one(inner: str) -> Element:
    return parsed(f"<AuthorizationRules><AuthorizationRule>{inner}</AuthorizationRule></AuthorizationRules>")


def test_rules_that_come_back_as_shown_are_unchanged_times_and_all() -> None:
    assert read_rules(parsed(rules_element([SHOP])), [SHOP]) == (SHOP,)


def test_keys_that_are_not_given_are_made_and_differ() -> None:
    (rule,) = read_rules(one("<KeyName>n</KeyName><Rights><AccessRights>Send</AccessRights></Rights>"), ())
    assert len(rule.primary_key) == len(rule.secondary_key) == 44
    assert rule.primary_key != rule.secondary_key
    assert rule.created_at == rule.modified_at > 0


def test_a_key_that_is_not_given_for_a_rule_that_exists_stays() -> None:
    sent = one("<KeyName>shop</KeyName><Rights><AccessRights>Listen</AccessRights></Rights>")
    (rule,) = read_rules(sent, [SHOP])
    assert (rule.primary_key, rule.secondary_key) == (SHOP.primary_key, SHOP.secondary_key)
    assert rule.rights == ("Listen",)
    assert rule.created_at == SHOP.created_at and rule.modified_at > SHOP.modified_at


def test_rules_that_are_left_out_are_no_more() -> None:
    assert read_rules(parsed("<AuthorizationRules/>"), [SHOP]) == ()


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ("", "cannot have this name"),
        ("<KeyName>n</KeyName>", "has no right"),
        ("<KeyName>n</KeyName><Rights><AccessRights>Own</AccessRights></Rights>", "has the right 'Own'"),
        (
            "<KeyName>n</KeyName><PrimaryKey>short</PrimaryKey>"
            "<Rights><AccessRights>Send</AccessRights></Rights>",
            "has 5 characters",
        ),
    ],
)
def test_what_no_rule_may_be_is_refused(inner: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        read_rules(one(inner), ())
