"""What the portal reads of a namespace: rights, entities at a glance, partitions."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest

from bendybus.auth.sas import make_token
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.testing import Server
from fix_client import Endpoint


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def shop(server):
    queues = {"orders": {"enable_partitioning": True}, "plain": {}, "a/b": {}}
    with server.namespace(queues=queues, stores=2) as made:
        yield made


def ask(
    namespace: Any, path: str, method: str = "GET", key: tuple[str, str] | None = None
) -> tuple[int, Any]:
    endpoint = Endpoint.parse(namespace.connection_string)
    name, secret = key or (endpoint.key_name, endpoint.key)
    token = make_token("sb://127.0.0.1/", name, secret, int(time.time()) + 600)
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=20)
    try:
        connection.request(method, path, headers={"Authorization": token})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def send(namespace: Any, entity: str, count: int) -> None:
    with BusClient(ClientSettings.from_connection_string(namespace.connection_string)) as client:
        sender = client.sender(entity)
        for number in range(count):
            sender.post([encode(b"body", message_id=str(number))])
        sender.flush()


def test_the_overview_has_counts_sizes_and_availability(shop):
    send(shop, "orders", 20)
    status, told = ask(shop, "/$overview")
    assert status == 200
    assert [each["name"] for each in told["entities"]] == ["a/b", "orders", "plain"]
    orders = told["entities"][1]
    assert (orders["kind"], orders["active"], orders["deadLetters"], orders["arrived"]) == (
        "queue",
        20,
        0,
        20,
    )
    assert (orders["partitions"], orders["available"], orders["limited"]) == (16, 16, False)
    assert orders["maxSizeBytes"] == 16 * 1024**3
    assert orders["sizeBytes"] > 0


def test_the_overview_is_searched_sorted_and_paged(shop):
    send(shop, "plain", 3)
    found = ask(shop, "/$overview?search=RDER")[1]
    assert [each["name"] for each in found["entities"]] == ["orders"]
    assert (found["matching"], found["queues"]) == (1, 3)
    by_count = ask(shop, "/$overview?sort=active&descending=true&top=1")[1]
    assert [each["name"] for each in by_count["entities"]] == ["plain"]
    assert by_count["matching"] == 3
    second = ask(shop, "/$overview?skip=1&top=1")[1]
    assert [each["name"] for each in second["entities"]] == ["orders"]


@pytest.mark.parametrize("query", ["sort=color", "skip=-1", "top=many"])
def test_an_overview_that_makes_no_sense_is_refused(shop, query):
    status, told = ask(shop, f"/$overview?{query}")
    assert status == 400
    assert "must be" in told["error"]


def test_each_partition_shows_its_store_its_state_and_its_oldest_message(shop):
    send(shop, "orders", 32)
    status, told = ask(shop, "/orders/$partitions")
    assert status == 200
    partitions = told["partitions"]
    assert [each["partition"] for each in partitions] == list(range(16))
    assert {each["store"] for each in partitions} == {"store-0", "store-1"}
    assert all(each["available"] and each["storeState"] == "available" for each in partitions)
    assert sum(each["active"] for each in partitions) == 32
    assert all(0 < each["oldestEnqueuedAt"] <= told["at"] for each in partitions if each["active"])
    assert ask(shop, "/a/b/$partitions")[1]["partitions"][0]["oldestEnqueuedAt"] is None
    assert ask(shop, "/nothing/$partitions")[0] == 404


def test_a_topic_shows_a_page_of_its_subscriptions_with_their_counts(shop):
    shop.create_topic("events")
    for name in ("audit", "Billing", "shipping"):
        shop.create_subscription("events", name, max_delivery_count=3)
    send(shop, "events", 4)
    status, told = ask(shop, "/events/$partitions?skip=1&top=1")
    assert status == 200
    assert (told["kind"], told["subscriptionCount"]) == ("topic", 3)
    (billing,) = told["subscriptions"]
    assert (billing["name"], billing["active"], billing["deadLetters"]) == ("Billing", 4, 0)
    assert (billing["maxDeliveryCount"], billing["forwardTo"], billing["status"]) == (3, None, "Active")
    assert (told["active"], told["deadLetters"]) == (12, 0) and told["sizeBytes"] > 0
    assert "subscriptions" not in ask(shop, "/orders/$partitions")[1]


def test_a_store_tells_which_partitions_it_keeps(shop):
    for name, others in (("store-0", "store-1"), ("store-1", "store-0")):
        told = ask(shop, f"/$stores/{name}")[1]
        assert others != told["name"] == name
        placed = {each["entity"]: each["partitions"] for each in told["placement"]}
        assert len(placed["orders"]) == 8
        assert told["entityCount"] == len(placed)
        assert sum(map(len, placed.values())) == told["partitions"]
    assert len(ask(shop, "/$stores/store-0?top=1")[1]["placement"]) == 1


def test_a_key_is_told_its_rights(shop):
    assert ask(shop, "/$rights")[1]["rights"] == ["Send", "Listen", "Manage"]
    assert ask(shop, "/$rights", key=("RootManageSharedAccessKey", "wrong"))[0] == 401
