"""Finding a namespace: by host name, by token, by login; and what may name one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bendybus.auth.key_ring import ROOT_RULE_NAME, AccessRule, KeyRing
from bendybus.auth.sas import make_token
from bendybus.broker.broker import Broker
from bendybus.errors import ArgumentError
from bendybus.namespaces import Namespace, Namespaces, check_namespace_name


def made(name: str, key: str) -> Namespace:
    return Namespace(name, cast(Broker, SimpleNamespace()), KeyRing([AccessRule.root(key)]))


SHOP, BANK = made("Shop", "key-of-the-shop"), made("bank", "key-of-the-bank")


@pytest.fixture
def two() -> Namespaces:
    namespaces = Namespaces()
    namespaces.add(SHOP)
    namespaces.add(BANK)
    return namespaces


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        (["shop.localhost"], SHOP),
        (["SHOP.localhost:5672"], SHOP),
        (["bank"], BANK),
        (["bank:5672"], BANK),
        (["bank.servicebus.windows.net"], BANK),
        (["localhost", "", None, "bank.example"], BANK),
        (["shop.localhost", "bank.localhost"], SHOP),
        (["localhost"], None),
        (["127.0.0.1:5672"], None),
        (["[::1]:5672"], None),
        ([None], None),
        ([".bank"], None),
        (["not.bank"], None),
    ],
)
def test_the_first_label_of_a_host_name_names_a_namespace(two: Namespaces, hosts: Any, found: Any) -> None:
    assert two.named_by(*hosts) is found


def test_the_key_that_made_a_token_finds_its_namespace(two: Namespaces) -> None:
    def token(key: str, expires_at_s: int = 1) -> str:
        return make_token("sb://localhost/orders", ROOT_RULE_NAME, key, expires_at_s)

    assert two.signed_by(token("key-of-the-shop")) is SHOP
    assert two.signed_by(token("key-of-the-bank")) is BANK
    for text in (token("another"), "SharedAccessSignature sr=a&sr=b", "SharedAccessSignature ", "ey.J.x", ""):
        assert two.signed_by(text) is None


def test_a_login_finds_its_namespace(two: Namespaces) -> None:
    assert two.opened_by(ROOT_RULE_NAME, "key-of-the-bank") is BANK
    assert two.opened_by(ROOT_RULE_NAME, "another") is None
    assert two.opened_by("another", "key-of-the-bank") is None


def test_of_several_that_share_a_key_the_first_is_meant(two: Namespaces) -> None:
    two.add(made("branch", "key-of-the-bank"))
    assert two.opened_by(ROOT_RULE_NAME, "key-of-the-bank") is BANK


def test_one_alone_is_meant_whatever_a_client_says(two: Namespaces) -> None:
    two.remove(SHOP)
    assert two.only is BANK
    assert two.named_by("shop.localhost") is two.signed_by("") is two.opened_by("", "") is BANK
    two.remove(BANK)
    assert two.only is two.named_by("bank") is two.signed_by("") is two.opened_by("", "") is None


def test_names_are_known_in_any_case(two: Namespaces) -> None:
    assert "SHOP" in two and "Bank" in two and "other" not in two


@pytest.mark.parametrize(
    "name", ["", "1st", "a.b", "a/b", "-a", "a-", "a" * 64, "localhost", "LocalHost", "ä"]
)
def test_what_cannot_begin_a_host_name_cannot_name_a_namespace(name: str) -> None:
    with pytest.raises(ArgumentError, match="cannot name one of several"):
        check_namespace_name(name)


@pytest.mark.parametrize("name", ["a", "test-1", "Sbemulatorns", "a" * 63])
def test_a_label_names_a_namespace(name: str) -> None:
    assert check_namespace_name(name) == name
