"""Topics, sessions and faults in the hands of a test, with the Azure SDK on the other side."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, SessionLockLostError

from bendybus.errors import ArgumentError, EntityNotFound
from bendybus.testing import Namespace, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def news(server: Server) -> Iterator[Namespace]:
    with server.namespace(topics={"news": {"all": {}, "brief": {"lock_duration_s": 5}}}) as namespace:
        yield namespace


def connect(namespace: Namespace) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)


def publish(namespace: Namespace, *texts: str, topic: str = "news", **properties: object) -> None:
    with connect(namespace) as client, client.get_topic_sender(topic, keep_alive=0) as sender:
        sender.send_messages([ServiceBusMessage(text, **properties) for text in texts])


def texts(namespace: Namespace, subscription: str) -> list[str]:
    return [str(message) for message in namespace.messages("news", subscription)]


def test_topics_and_subscriptions_are_made_seen_and_taken_away(news: Namespace) -> None:
    news.create_topic("other", enable_partitioning=True)
    news.create_subscription("other", "late")
    assert (news.topics(), news.subscriptions("news")) == (["news", "other"], ["all", "brief"])
    publish(news, "hello")
    assert (texts(news, "all"), texts(news, "brief")) == (["hello"], ["hello"])
    assert [str(message) for message in news.messages("news/Subscriptions/all")] == ["hello"]
    news.delete_subscription("news", "brief")
    news.delete_topic("other")
    assert (news.topics(), news.subscriptions("news")) == (["news"], ["all"])
    with pytest.raises(EntityNotFound):
        news.messages("news", "brief")


def test_rules_select_and_change_what_a_subscription_gets(news: Namespace) -> None:
    news.delete_rule("news", "brief")
    news.create_rule("news", "brief", "urgent", "urgency > 3", "SET seen = true")
    publish(news, "calm", application_properties={"urgency": 1})
    publish(news, "fire", application_properties={"urgency": 9})
    assert texts(news, "all") == ["calm", "fire"]
    (message,) = news.messages("news", "brief")
    assert str(message) == "fire"
    assert message.application_properties == {"urgency": 9, "seen": True, "RuleName": "urgent"}


@pytest.mark.row("B-08")
def test_a_reset_brings_topics_subscriptions_and_rules_back(news: Namespace) -> None:
    news.create_rule("news", "all", "more", "1 = 1")
    news.create_subscription("news", "extra")
    news.create_topic("other")
    news.delete_subscription("news", "brief")
    publish(news, "gone")
    news.reset()
    assert (news.topics(), news.subscriptions("news")) == (["news"], ["all", "brief"])
    assert texts(news, "all") == texts(news, "brief") == []
    publish(news, "kept")
    assert texts(news, "all") == texts(news, "brief") == ["kept"]


def test_what_is_scheduled_at_a_topic_comes_when_the_clock_is_moved(news: Namespace) -> None:
    publish(news, "later", scheduled_enqueue_time_utc=news.clock.now() + timedelta(hours=2))
    assert texts(news, "all") == []
    news.clock.advance(timedelta(hours=3))
    assert texts(news, "all") == ["later"]


def test_a_sessions_lock_ends_when_the_clock_is_moved(server: Server) -> None:
    orders = {"requires_session": True, "lock_duration_s": 30}
    with server.namespace(queues={"orders": orders}) as namespace, connect(namespace) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("a", session_id="s"))
        with client.get_queue_receiver("orders", session_id="s") as receiver:
            (message,) = receiver.receive_messages(1, 10)
            namespace.clock.advance(31)
            with pytest.raises(SessionLockLostError):
                receiver.complete_message(message)
        with client.get_queue_receiver("orders", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            (again,) = receiver.receive_messages(1, 10)
            assert again.delivery_count == 1


@pytest.mark.row("B-09")
def test_a_store_can_be_made_to_fail_and_healed(server: Server) -> None:
    with server.namespace(queues=["orders"]) as namespace, connect(namespace) as client:
        with client.get_queue_sender("orders") as sender:
            namespace.faults.fail("store-0", "disk full")
            with pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("refused"))
            # A reset heals, and waits until the store is back.
            namespace.reset()
            sender.send_messages(ServiceBusMessage("taken"))
        assert [str(message) for message in namespace.messages("orders")] == ["taken"]
        with pytest.raises(ArgumentError, match="there are store-0"):
            namespace.faults.pause("store-9")
