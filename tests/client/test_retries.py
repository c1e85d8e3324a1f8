"""Retries with a delay, over the wire, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import ArgumentError, MessageNotFound
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, changed_elements, shown_values
from bendybus.operations.deferred import DeferredMessages
from bendybus.testing import Namespace, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(params=[False, True], ids=["unpartitioned", "partitioned"])
def shop(server: Server, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    with server.namespace(queues={"orders": {"enable_partitioning": request.param}}) as made:
        yield made


@pytest.fixture
def client(shop: Namespace) -> Iterator[BusClient]:
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as made:
        yield made


@pytest.mark.row("B-02")
@pytest.mark.parametrize("delay", [30, 30.0, "PT30S"])
def test_a_receiver_says_how_long_an_abandoned_message_rests(
    shop: Namespace, client: BusClient, delay: object
) -> None:
    client.sender("orders").send([encode(b"x", application_properties={"kept": 1})])
    receiver = client.receiver("orders")
    (message,) = receiver.receive(1)
    receiver.abandon([message], {"x-opt-retry-delay": delay, "tried": True})
    shop.clock.advance(timedelta(seconds=29))
    assert receiver.receive(1, timeout_s=0.2) == []
    shop.clock.advance(timedelta(seconds=1))
    (again,) = receiver.receive(1)
    assert again.delivery_count == 1
    # The delay itself is not kept with the message.
    assert again.application_properties == {"kept": 1, "tried": True}


@pytest.mark.row("B-02")
def test_an_entity_says_how_long_and_shows_it_only_then(shop: Namespace, client: BusClient) -> None:
    with ManagementClient(ConnectionString.parse(shop.connection_string)) as management:
        entry = management.get("orders")
        assert not any("retry" in name for name in shown_values(entry))
        wanted = {"RetryDelay": "PT10S", "RetryDelayFactor": 3}
        management.update("orders", QUEUE.element, changed_elements(QUEUE, entry, wanted))
        shown = shown_values(management.get("orders"))
        assert (shown["retryDelay"], shown["retryDelayFactor"]) == ("PT10S", 3)
        # A client that does not know them leaves them as they are.
        known = changed_elements(QUEUE, entry, {})
        management.update("orders", QUEUE.element, known)
        assert shown_values(management.get("orders"))["retryDelay"] == "PT10S"
    client.sender("orders").send([encode(b"x")])
    receiver = client.receiver("orders")
    for seconds in (10, 30):
        receiver.abandon(receiver.receive(1))
        shop.clock.advance(timedelta(seconds=seconds - 1))
        assert receiver.receive(1, timeout_s=0.2) == []
        shop.clock.advance(timedelta(seconds=1))
    assert receiver.receive(1)[0].delivery_count == 2


def test_a_deferred_message_that_is_abandoned_rests_too(shop: Namespace, client: BusClient) -> None:
    client.sender("orders").send([encode(b"x")])
    receiver = client.receiver("orders")
    (message,) = receiver.receive(1)
    receiver.defer([message])
    deferred = DeferredMessages(client, "orders")
    held = deferred.receive([message.sequence_number])
    deferred.settle(held, "abandon", properties={"x-opt-retry-delay": 60})
    with pytest.raises(MessageNotFound):
        deferred.receive([message.sequence_number])
    shop.clock.advance(timedelta(seconds=60))
    (again,) = deferred.receive([message.sequence_number])
    assert again.body == b"x"


@pytest.mark.parametrize("delay", [-1, "soon", True, 8 * 86_400, None])
def test_a_delay_that_is_none_is_refused(client: BusClient, delay: object) -> None:
    client.sender("orders").send([encode(b"x")])
    receiver = client.receiver("orders")
    with pytest.raises(ArgumentError, match="x-opt-retry-delay"):
        receiver.abandon(receiver.receive(1), {"x-opt-retry-delay": delay})
