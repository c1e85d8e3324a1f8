"""Topics, subscriptions and rules with the unmodified SDK: what is published, and who gets it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeAlias

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from bendybus.auth.sas import make_token
from fix_server import Kind, ServerProcess, StartServer
from interop.conftest import CloseLater
from interop.sdk import PATIENCE_S, Sdk, bodies, receive
from interop.test_administration import administration

PARTITION_SHIFT = 48

_numbers = count()


class SdkTopic:
    """One topic, its subscriptions, and a client of either SDK."""

    def __init__(
        self,
        sdk: Sdk,
        server: ServerProcess,
        admin: ServiceBusAdministrationClient,
        kind: Kind | None,
        **options: Any,
    ) -> None:
        """Without a kind, the namespace decides."""
        self.name = f"Topics/t{next(_numbers)}"
        self.admin = admin
        self.client: ServiceBusClient = sdk.client(server.connection_string)
        if kind is not None:
            options["enable_partitioning"] = kind is Kind.PARTITIONED
        admin.create_topic(self.name, **options)
        self._handles: list[Any] = []
        # Without the thread that would keep an idle link alive, and that closing would wait for.
        self.sender = self.client.get_topic_sender(self.name, keep_alive=0)
        self._handles.append(self.sender)

    def subscribe(self, name: str, *rules: tuple[str, Any, Any], **options: Any) -> None:
        """With these rules (name, filter, action) instead of the default one, if there are any."""
        self.admin.create_subscription(self.name, name, **options)
        for rule_name, rule_filter, action in rules:
            self.admin.create_rule(self.name, name, rule_name, filter=rule_filter, action=action)
        if rules:
            self.admin.delete_rule(self.name, name, "$Default")

    def send(self, content: str, **properties: Any) -> None:
        self.sender.send_messages(ServiceBusMessage(content, **properties))

    def receiver(self, name: str, **options: Any) -> Any:
        self._handles.append(self.client.get_subscription_receiver(self.name, name, **options))
        return self._handles[-1]

    def receive(self, name: str, number: int) -> list[ServiceBusReceivedMessage]:
        """So many, completed."""
        receiver = self.receiver(name)
        messages = receive(receiver, number)
        for message in messages:
            receiver.complete_message(message)
        return messages

    def counts(self, name: str) -> tuple[int, int]:
        """Active messages and dead letters."""
        told = self.admin.get_subscription_runtime_properties(self.name, name)
        return told.active_message_count, told.dead_letter_message_count

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        self.client.close()
        with suppress(ResourceNotFoundError):
            self.admin.delete_topic(self.name)


MakeTopic: TypeAlias = Callable[..., SdkTopic]


@pytest.fixture(scope="module")
def admin(_namespace_server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with administration(_namespace_server) as client:
        yield client


@pytest.fixture
def make_topic(
    sdk: Sdk, server: ServerProcess, admin: ServiceBusAdministrationClient, close_later: CloseLater
) -> Iterator[MakeTopic]:
    topics: list[SdkTopic] = []

    def make(kind: Kind, **options: Any) -> SdkTopic:
        topics.append(SdkTopic(sdk, server, admin, kind, **options))
        return topics[-1]

    yield make
    for topic in topics:
        close_later(topic.close)


@pytest.fixture
def topic(make_topic: MakeTopic, kind: Kind) -> SdkTopic:
    return make_topic(kind)


# -- publishing -----------------------------------------------------------------------


@pytest.mark.row("P-01", "P-05", "P-12", "P-18")
def test_every_subscription_gets_its_own_copy(topic: SdkTopic) -> None:
    topic.subscribe("first")
    topic.subscribe("second", max_delivery_count=1)
    batch = topic.sender.create_message_batch()
    for text in "abc":
        batch.add_message(ServiceBusMessage(text, partition_key="ada"))
    topic.sender.send_messages(batch)
    topic.send("d", partition_key="ada", subject="s", application_properties={"n": 1})
    first = topic.receive("first", 4)
    assert bodies(first) == list("abcd")  # P-12, P-18: one key, one partition, in order
    assert (first[3].subject, first[3].application_properties) == ("s", {b"n": 1})
    assert len({message.sequence_number >> PARTITION_SHIFT for message in first}) == 1
    # Settling a copy touches no other.
    assert topic.counts("first") == (0, 0)
    assert topic.counts("second") == (4, 0)
    receiver = topic.receiver("second")
    receiver.abandon_message(receive(receiver, 1)[0])
    assert topic.counts("second") == (3, 1)
    dead = topic.receiver("second", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    (letter,) = receive(dead, 1)
    assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_what_nobody_subscribed_to_is_accepted_and_gone(topic: SdkTopic) -> None:
    topic.send("unheard")
    topic.subscribe("late")
    topic.send("heard")
    assert bodies(topic.receive("late", 1)) == ["heard"]
    assert topic.counts("late") == (0, 0)


@pytest.mark.row("P-16", "P-31")
def test_messages_without_a_key_use_all_partitions(make_topic: MakeTopic) -> None:
    topic = make_topic(Kind.PARTITIONED)
    topic.subscribe("all")
    for number in range(20):
        topic.send(str(number))
    numbers = [message.sequence_number or 0 for message in topic.receive("all", 20)]
    assert {number >> PARTITION_SHIFT for number in numbers} == set(range(16))


@pytest.mark.row("P-13", "P-14")
def test_keys_are_checked_at_a_topic_too(topic: SdkTopic) -> None:
    topic.subscribe("all")
    with pytest.raises(ServiceBusError, match="must be equal"):
        message = ServiceBusMessage("x", session_id="s")
        message.partition_key = None
        message._raw_amqp_message.annotations = {b"x-opt-partition-key": "other"}
        topic.sender.send_messages(message)
    topic.send("x", session_id="s")
    assert topic.receive("all", 1)[0].session_id == "s"


@pytest.mark.row("P-15")
def test_duplicates_are_dropped_before_they_reach_a_subscription(make_topic: MakeTopic, kind: Kind) -> None:
    topic = make_topic(kind, requires_duplicate_detection=True)
    topic.subscribe("all")
    for text, message_id in (("a", "1"), ("again", "1"), ("b", "2")):
        topic.send(text, message_id=message_id)
    assert sorted(bodies(topic.receive("all", 2))) == ["a", "b"]
    assert topic.counts("all") == (0, 0)


@pytest.mark.row("P-35")
def test_a_copy_is_deferred_peeked_and_renewed_like_any_message(topic: SdkTopic) -> None:
    topic.subscribe("all")
    topic.send("x")
    receiver = topic.receiver("all")
    (message,) = receive(receiver, 1)
    receiver.renew_message_lock(message)
    receiver.defer_message(message)
    (peeked,) = receiver.peek_messages(1, sequence_number=1)
    assert str(peeked) == "x"
    (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
    receiver.complete_message(deferred)
    topic.send("y")
    deleting = topic.receiver("all", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(receive(deleting, 1)) == ["y"]


@pytest.mark.row("P-09")
def test_the_premium_tier_partitions_topics_by_itself(start_server: StartServer, sdk: Sdk) -> None:
    server = start_server({}, None, "--tier", "premium")
    with administration(server) as admin:
        topic = SdkTopic(sdk, server, admin, None)
        topic.subscribe("all")
        assert admin.get_topic(topic.name).enable_partitioning is True
        for number in range(4):
            topic.send(str(number))
        numbers = [message.sequence_number or 0 for message in topic.receive("all", 4)]
        assert {number >> PARTITION_SHIFT for number in numbers} == {0, 1}
        topic.close()


@pytest.mark.row("P-05", "P-13")
def test_sessions_are_received_from_a_subscription(topic: SdkTopic) -> None:
    topic.subscribe("sessions", requires_session=True)
    for text, session in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        topic.send(text, session_id=session)
    receiver = topic.receiver("sessions", session_id="a")
    messages = receive(receiver, 2)
    assert bodies(messages) == ["a1", "a2"]
    assert len({message.sequence_number >> PARTITION_SHIFT for message in messages}) == 1
    receiver.session.set_state("seen")
    assert receiver.session.get_state() == b"seen"
    for message in messages:
        receiver.complete_message(message)
    topic.send("nobody's")
    assert topic.counts("sessions") == (1, 1)


# -- rules ----------------------------------------------------------------------------


def test_rules_decide_who_gets_what(topic: SdkTopic) -> None:
    topic.subscribe("red", ("r", SqlRuleFilter("colour = @c", parameters={"@c": "red"}), None))
    topic.subscribe("large", ("r", SqlRuleFilter("size > 10 AND sys.Label LIKE 'order%'"), None))
    topic.subscribe("exact", ("r", CorrelationRuleFilter(label="orders", properties={"size": 12}), None))
    for text, colour, size in (("a", "red", 5), ("b", "blue", 12), ("c", "red", 20)):
        properties = {"colour": colour, "size": size}
        topic.send(text, application_properties=properties, subject="orders", partition_key="k")
    assert bodies(topic.receive("red", 2)) == ["a", "c"]
    assert bodies(topic.receive("large", 2)) == ["b", "c"]
    assert bodies(topic.receive("exact", 1)) == ["b"]


def test_each_rule_with_an_action_makes_its_own_copy(topic: SdkTopic) -> None:
    topic.subscribe(
        "all",
        ("plain", SqlRuleFilter("n = 1"), None),
        ("also", SqlRuleFilter("n < 2"), None),
        ("first", SqlRuleFilter("n = 1"), SqlRuleAction("SET n = n + 1; SET sys.To = 'there'")),
        ("second", SqlRuleFilter("n = 1"), SqlRuleAction("REMOVE n")),
    )
    topic.send("x", application_properties={"n": 1})
    got = topic.receive("all", 3)
    assert [(message.to, message.application_properties) for message in got] == [
        (None, {b"n": 1}),
        ("there", {b"n": 2, b"RuleName": b"first"}),
        (None, {b"RuleName": b"second"}),
    ]
    assert len({message.enqueued_sequence_number for message in got}) == 1
    assert topic.counts("all") == (0, 0)


def test_a_filter_that_fails_dead_letters_if_asked_for(topic: SdkTopic) -> None:
    bad = ("bad", SqlRuleFilter("n > 5"), None)
    topic.subscribe("asked", bad)
    topic.subscribe("silent", bad, dead_lettering_on_filter_evaluation_exceptions=False)
    topic.send("x", application_properties={"n": "text"})
    (letter,) = receive(topic.receiver("asked", sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    assert letter.dead_letter_reason == "FilterException"
    assert "Rule 'bad'" in (letter.dead_letter_error_description or "")
    assert topic.counts("silent") == (0, 0)


# -- scheduled ------------------------------------------------------------------------


@pytest.mark.row("P-35")
def test_scheduled_messages_wait_at_the_topic(topic: SdkTopic) -> None:
    topic.subscribe("all")

    def schedule(text: str, due: datetime) -> int:
        return topic.sender.schedule_messages(ServiceBusMessage(text, partition_key="k"), due)[0]

    later = datetime.now(UTC) + timedelta(hours=1)
    first, second = schedule("a", later), schedule("b", later)
    told = topic.admin.get_topic_runtime_properties(topic.name)
    assert (told.scheduled_message_count, topic.counts("all")) == (2, (0, 0))
    topic.sender.cancel_scheduled_messages(first)
    with pytest.raises(MessageNotFoundError):
        topic.sender.cancel_scheduled_messages(first)
    topic.sender.cancel_scheduled_messages(second)
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    third = schedule("c", due)
    (message,) = topic.receive("all", 1)
    assert (str(message), datetime.now(UTC) >= due) == ("c", True)
    assert message.enqueued_sequence_number is not None and message.enqueued_sequence_number > third


# -- what is refused ------------------------------------------------------------------


def test_senders_and_receivers_are_told_where_they_belong(topic: SdkTopic, sdk: Sdk) -> None:
    topic.subscribe("all")
    path = f"{topic.name}/Subscriptions/all"
    with pytest.raises(ServiceBusError, match="nobody can send"):
        topic.client.get_queue_sender(path).send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match="is a topic"):
        topic.client.get_queue_receiver(topic.name).receive_messages(max_wait_time=PATIENCE_S)
    for missing in ("none", "all/more"):
        with pytest.raises(MessagingEntityNotFoundError):
            topic.client.get_subscription_receiver(topic.name, missing).receive_messages(
                max_wait_time=PATIENCE_S
            )
    receiver = topic.client.get_subscription_receiver(topic.name.upper(), "ALL")
    topic.send("found")
    assert bodies(receive(receiver, 1)) == ["found"]
    receiver.close()


def test_links_end_with_their_topic(topic: SdkTopic) -> None:
    topic.subscribe("all")
    receiver = topic.receiver("all")
    topic.send("x")
    receive(receiver, 1)
    topic.admin.delete_topic(topic.name)
    with pytest.raises(ServiceBusAuthenticationError):
        topic.client.get_subscription_receiver(topic.name, "all").receive_messages(max_wait_time=PATIENCE_S)


def test_a_token_for_the_topic_reaches_its_subscriptions_and_one_for_a_subscription_no_further(
    server: ServerProcess, admin: ServiceBusAdministrationClient
) -> None:
    name = f"Topics/t{next(_numbers)}"
    admin.create_topic(name)
    for subscription in ("one", "two"):
        admin.create_subscription(name, subscription)

    def send(path: str, resource: str) -> int:
        token = make_token(
            f"https://h/{resource}", "RootManageSharedAccessKey", server.key, int(time.time()) + 600
        )
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("DELETE", f"/{path}/messages/head?timeout=0", headers={"Authorization": token})
        status = connection.getresponse().status
        connection.close()
        return status

    assert send(f"{name}/subscriptions/one", name) == 204
    assert send(f"{name}/subscriptions/one", f"{name}/Subscriptions/one") == 204
    assert send(f"{name}/subscriptions/two", f"{name}/Subscriptions/one") == 401
    admin.delete_topic(name)


def test_a_connection_string_that_only_listens_cannot_publish(server: ServerProcess, topic: SdkTopic) -> None:
    listens = server.connection_string.replace(server.key, "key-of-those-who-listen").replace(
        "RootManageSharedAccessKey", "Listens"
    )
    with (
        ServiceBusClient.from_connection_string(listens, retry_total=0) as client,
        pytest.raises(ServiceBusAuthorizationError),
    ):
        client.get_topic_sender(topic.name).send_messages(ServiceBusMessage("x"))


# -- over HTTP, through restarts, from a file -------------------------------------------


def test_http_clients_publish_and_receive(topic: SdkTopic, server: ServerProcess) -> None:
    topic.subscribe("red", ("r", SqlRuleFilter("colour = 'red'"), None))
    token = make_token("https://h", "RootManageSharedAccessKey", server.key, int(time.time()) + 600)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for body, colour in (("a", "blue"), ("b", "red")):
        headers = {
            "Authorization": token,
            "colour": f'"{colour}"',
            "BrokerProperties": '{"PartitionKey": "k"}',
        }
        connection.request("POST", f"/{topic.name}/messages", body, headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (201, b"")
    connection.request(
        "POST", f"/{topic.name}/Subscriptions/red/messages/head", headers={"Authorization": token}
    )
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (201, b"b")
    told = json.loads(answer.headers["BrokerProperties"])
    assert told["EnqueuedSequenceNumber"] == told["SequenceNumber"] + 1
    place = answer.headers["Location"]
    assert f"/{topic.name}/subscriptions/red/messages/" in place
    connection.request("DELETE", place.partition(f":{server.port}")[2], headers={"Authorization": token})
    assert connection.getresponse().read() == b""
    connection.request("POST", f"/{topic.name}/messages/head", headers={"Authorization": token})
    assert connection.getresponse().status == 400
    connection.close()
    assert topic.counts("red") == (0, 0)


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_topic_of_a_config_file_survives_being_killed(start_server: StartServer, partitioned: bool) -> None:
    rules = [
        {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "n = 1"}}},
    ]
    described = {
        "Name": "news",
        "Properties": {"EnablePartitioning": partitioned},
        "Subscriptions": [{"Name": "all"}, {"Name": "some", "Rules": rules}],
    }
    server = start_server({}, None, topics=[described])
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_topic_sender("news") as sender,
    ):
        for number in (0, 1):
            properties = {"n": number}
            message = ServiceBusMessage(str(number), application_properties=properties, partition_key="k")
            sender.send_messages(message)
    server.kill()
    server.start()
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        for name, expected in (("all", ["0", "1"]), ("some", ["1"])):
            with client.get_subscription_receiver("news", name) as receiver:
                assert bodies(receive(receiver, len(expected))) == expected
