"""Paths: what a resource URI means, and what covers what."""

from __future__ import annotations

import pytest

from bendybus.auth.paths import ancestry, covers, entity_path, resource_path
from bendybus.errors import Unauthorized


@pytest.mark.parametrize(
    "uri",
    [
        "sb://localhost/orders",
        "amqp://localhost:5672/orders",
        "amqps://LOCALHOST/Orders",
        "https://namespace.servicebus.windows.net/orders/",
        "https://localhost:5300/orders?api-version=2021-05&enrich=true",
        "localhost:5672/orders",
        "localhost:5672/orders?back=https://elsewhere/",
        "sb://localhost//orders",
        "sb://localhost/%6Frders",
    ],
)
def test_scheme_host_port_case_and_query_do_not_count(uri: str) -> None:
    assert resource_path(uri) == "orders"


@pytest.mark.parametrize("prefix", ["", "sb://"])
def test_a_uri_in_the_path_does_not_lead_out_of_it(prefix: str) -> None:
    assert covers("orders", resource_path(f"{prefix}localhost/orders/://localhost/"))


@pytest.mark.parametrize("uri", ["sb://localhost", "sb://localhost:5672/", "ns.servicebus.windows.net", ""])
def test_a_uri_without_a_path_is_the_namespace(uri: str) -> None:
    assert resource_path(uri) == ""


@pytest.mark.parametrize(
    "path", ["orders/../x", "..", "orders/./x", "orders/%2e%2e/x", "orders/%252E%252e/x", "orders\\..\\x"]
)
def test_dots_that_could_lead_elsewhere_are_refused_however_encoded(path: str) -> None:
    with pytest.raises(Unauthorized, match=r"'\.\.'"):
        entity_path(path)


def test_names_may_hold_dots() -> None:
    assert entity_path("queue.1/a..b") == "queue.1/a..b"


def test_a_path_that_no_entity_could_have_is_refused_unread() -> None:
    with pytest.raises(Unauthorized, match="longer than"):
        entity_path("q" * 5000)


@pytest.mark.parametrize("path", ["q", "q/$management", "q/$deadletterqueue", "q/subscriptions/s"])
def test_a_path_covers_itself_and_what_lies_below(path: str) -> None:
    assert covers("q", path)
    assert covers("", path)


@pytest.mark.parametrize("path", ["q2", "q-other", "", "other/q"])
def test_a_path_does_not_cover_its_neighbours(path: str) -> None:
    assert not covers("q", path)


def test_ancestry_climbs_to_the_namespace() -> None:
    assert list(ancestry("a/b/c")) == ["a/b/c", "a/b", "a", ""]
