"""Every HTTP request brings its token, and each is checked for its path, its right and its time."""

from __future__ import annotations

import pytest

from bendybus.auth.http import authorise
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.sas import make_token
from bendybus.errors import Unauthorized
from bendybus.names import Instant

NOW = Instant(1_700_000_000_000)
LATER_S = 1_700_000_600
KEYS = KeyRing(
    [
        AccessRule.root("root-key"),
        AccessRule("Sends", "send-key", "", Right.SEND),
        AccessRule("OfOrders", "orders-key", "", Right.LISTEN, "orders"),
        AccessRule("OfOdd", "odd-key", "", Right.SEND, "orders/messages"),
    ]
)
PATH = "/orders/messages/head"


def headers(uri: str, name: str = "RootManageSharedAccessKey", key: str = "root-key", until: int = LATER_S):
    return {"Authorization": make_token(uri, name, key, until)}


@pytest.mark.parametrize(
    "uri",
    [
        "https://host",
        "http://host:5300/",
        "sb://host/Orders",
        "host",
        "https://host/orders/messages/head?timeout=60",
    ],
)
def test_a_token_for_the_namespace_the_entity_or_the_url_will_do(uri):
    authorise(headers(uri), KEYS, PATH, Right.LISTEN, NOW)


def test_the_name_of_the_header_is_found_in_any_case():
    (token,) = headers("https://host").values()
    authorise({"authorization": token}, KEYS, PATH, Right.LISTEN, NOW)


@pytest.mark.parametrize(
    "refused",
    [
        {},
        {"Authorization": "Bearer a.b.c"},
        {"Authorization": "nonsense"},
        headers("https://host", key="wrong"),
        headers("https://host/other"),
        headers("https://host/orders2"),
        headers("https://host", until=1_600_000_000),
        headers("https://host", "Sends", "send-key"),
        headers("https://host", "OfOrders", "orders-key"),
    ],
    ids=["none", "bearer", "junk", "wrong key", "other entity", "longer name", "expired", "right", "scope"],
)
def test_what_is_not_enough_is_unauthorized(refused):
    with pytest.raises(Unauthorized):
        authorise(refused, KEYS, PATH, Right.LISTEN, NOW)


def test_a_rule_of_an_entity_signs_for_urls_below_it():
    authorise(headers("https://host/orders", "OfOrders", "orders-key"), KEYS, PATH, Right.LISTEN, NOW)


def test_a_rule_of_a_queue_named_like_a_url_opens_no_other_queue():
    """`POST /orders/messages` sends to `orders`, though a queue `orders/messages` may have a rule."""
    token = headers("https://host/orders/messages", "OfOdd", "odd-key")
    authorise(token, KEYS, "/orders/messages", Right.SEND, NOW)
    with pytest.raises(Unauthorized):
        authorise(token, KEYS.reaching("orders"), "/orders/messages", Right.SEND, NOW)


def test_a_path_that_holds_a_uri_is_still_a_path():
    authorise(headers("https://host/orders"), KEYS, "/orders/messages/http://x/y", Right.LISTEN, NOW)
