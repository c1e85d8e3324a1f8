"""The same node, however a client writes it."""

from __future__ import annotations

import pytest

from bendybus.domain.messages import SubQueue
from bendybus.errors import ArgumentError, EntityNotFound
from bendybus.gateway.addresses import Address, NodeKind, with_host


@pytest.mark.parametrize(
    "text",
    ["Shop/Orders", "/Shop/Orders", "amqps://host:5671/Shop/Orders", "sb://h/Shop%2FOrders", "Shop/Orders/"],
)
def test_scheme_host_slashes_and_escapes_do_not_matter(text):
    assert Address.parse(text) == Address(NodeKind.ENTITY, "Shop/Orders", "Shop/Orders")


@pytest.mark.parametrize(
    ("text", "kind", "path", "subqueue"),
    [
        ("$cbs", NodeKind.CBS, "", SubQueue.MAIN),
        ("amqps://host/$CBS", NodeKind.CBS, "", SubQueue.MAIN),
        ("q/$management", NodeKind.MANAGEMENT, "q", SubQueue.MAIN),
        ("q/$DeadLetterQueue", NodeKind.ENTITY, "q", SubQueue.DEAD_LETTER),
        ("q/$deadletterqueue/$management", NodeKind.MANAGEMENT, "q", SubQueue.DEAD_LETTER),
        ("q/$Transfer/$DeadLetterQueue", NodeKind.ENTITY, "q", SubQueue.TRANSFER_DEAD_LETTER),
    ],
)
def test_nodes_beside_an_entity_are_told_apart(text, kind, path, subqueue):
    address = Address.parse(text)
    assert (address.kind, address.path, address.subqueue) == (kind, path, subqueue)


def test_a_token_for_a_subqueue_alone_is_enough_for_it():
    assert Address.parse("amqps://h/q/$DeadLetterQueue").resource == "q/$DeadLetterQueue"


@pytest.mark.parametrize("text", [None, "", 7])
def test_a_link_without_an_address_is_refused(text):
    with pytest.raises(ArgumentError):
        Address.parse(text)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("ns.example.com", "ns.example.com"), ("localhost:5672", "localhost"), ("[::1]:5671", "[::1]")],
)
def test_a_missing_entity_is_named_by_its_address_without_a_port(host: str, shown: str) -> None:
    told = with_host(EntityNotFound("Orders/new"), host)
    assert told.description == f"The messaging entity 'sb://{shown}/Orders/new' could not be found."
    other = ArgumentError("no")
    assert with_host(other, host) is other
