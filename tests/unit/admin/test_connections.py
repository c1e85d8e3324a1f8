"""The connections of a namespace over HTTP: who is connected, and closing one."""

from __future__ import annotations

import pytest

from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import BrokerError
from bendybus.testing import Server
from unit.admin.test_overview import ask


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def shop(server):
    with server.namespace(queues=["orders"]) as made:
        yield made


def test_a_connection_shows_who_it_is_and_its_links(shop):
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("orders").send([encode(b"one"), encode(b"two")])
        status, told = ask(shop, "/$connections")
    assert status == 200
    (connection,) = told["connections"]
    assert connection["peer"].startswith("127.0.0.1:")
    assert "RootManageSharedAccessKey" in connection["key"]
    link = next(each for each in connection["links"] if each["entity"] == "orders")
    assert (link["role"], link["messages"]) == ("sender", 1)
    assert link["credit"] > 0


def test_connections_are_shown_a_page_at_a_time(shop):
    settings = ClientSettings.from_connection_string(shop.connection_string)
    with BusClient(settings) as one, BusClient(settings) as two, BusClient(settings) as three:
        for client in (one, two, three):
            client.sender("orders").check()
        pages = [ask(shop, f"/$connections?skip={skip}&top=2")[1] for skip in (0, 2)]
        assert [told["count"] for told in pages] == [3, 3]
        seen = [each["id"] for told in pages for each in told["connections"]]
        assert len(set(seen)) == len(seen) == 3
        assert ask(shop, "/$connections?skip=x")[0] == 400


def test_a_closed_connection_is_told_why_and_may_come_back(shop):
    settings = ClientSettings.from_connection_string(shop.connection_string)
    with BusClient(settings) as client:
        receiver = client.receiver("orders")
        receiver.check()
        number = ask(shop, "/$connections")[1]["connections"][0]["id"]
        assert ask(shop, f"/$connections/{number}", "DELETE") == (200, {"id": number, "closed": True})
        with pytest.raises(BrokerError):
            receiver.receive(1, timeout_s=5)
        client.sender("orders").send([encode(b"again")])
    assert ask(shop, f"/$connections/{number}", "DELETE")[0] == 404


def test_connections_of_other_namespaces_are_neither_shown_nor_closed(server, shop):
    with (
        server.namespace(queues=["accounts"]) as bank,
        BusClient(ClientSettings.from_connection_string(bank.connection_string)) as client,
    ):
        client.receiver("accounts").check()
        number = ask(bank, "/$connections")[1]["connections"][0]["id"]
        assert ask(shop, "/$connections")[1]["connections"] == []
        assert ask(shop, f"/$connections/{number}", "DELETE")[0] == 404
