"""The SDK's administration client at topics, subscriptions and rules; and rules over AMQP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from bendybus.amqp.types import Described, ULong
from fix_client import Client, Endpoint
from fix_server import RULES, Kind, ServerProcess, StartServer
from interop.test_administration import Raw, administration, entry, raw  # noqa: F401 - a fixture

_numbers = count()


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with administration(server) as client:
        yield client


@pytest.fixture
def name(admin: ServiceBusAdministrationClient) -> Iterator[str]:
    """Of a topic that is not there yet, and is not there afterwards."""
    name = f"Admin/topic.{next(_numbers)}"
    yield name
    with suppress(ResourceNotFoundError):
        admin.delete_topic(name)


UNLIMITED_DAYS = 10_675_199


def plain(properties: Any) -> dict[str, Any]:
    # The client rounds an unlimited duration when it sends it back, and is then shown what it sent.
    return {
        name: timedelta.max if isinstance(value, timedelta) and value.days == UNLIMITED_DAYS else value
        for name, value in dict(properties).items()
    }


# -- topics ---------------------------------------------------------------------------


@pytest.mark.row("P-01", "P-07", "P-08", "P-32")
@pytest.mark.parametrize("kind", list(Kind))
def test_a_topic_is_created_shown_updated_and_deleted(
    admin: ServiceBusAdministrationClient, name: str, kind: Kind
) -> None:
    partitioned = kind is Kind.PARTITIONED
    made = admin.create_topic(
        name,
        enable_partitioning=partitioned,
        max_size_in_megabytes=2048,
        default_message_time_to_live=timedelta(days=14),
        user_metadata="<mine & yours>",
    )
    assert (made.name, made.enable_partitioning) == (name, partitioned)
    assert made.max_size_in_megabytes == (2048 * 16 if partitioned else 2048)
    assert plain(admin.get_topic(name.upper())) | {"name": name} == plain(made)
    assert name in [topic.name for topic in admin.list_topics()]
    assert name not in [queue.name for queue in admin.list_queues()]

    made.default_message_time_to_live, made.user_metadata = timedelta(hours=1), None
    admin.update_topic(made)
    assert plain(admin.get_topic(name)) == plain(made)
    with pytest.raises(HttpResponseError, match=r"SubCode=40000.*EnablePartitioning"):
        admin.update_topic(made, enable_partitioning=not partitioned)
    with pytest.raises(ResourceExistsError):
        admin.create_topic(name)
    with pytest.raises(ResourceExistsError):
        admin.create_queue(name)
    admin.delete_topic(name)
    for missing in (lambda: admin.get_topic(name), lambda: admin.delete_topic(name)):
        with pytest.raises(ResourceNotFoundError):
            missing()


@pytest.mark.row("P-33")
def test_counts_are_added_up(server: ServerProcess, admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.create_topic(name, enable_partitioning=True)
    for subscription in ("one", "two"):
        admin.create_subscription(name, subscription)
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_topic_sender(name) as sender:
            for number in range(20):
                sender.send_messages(ServiceBusMessage(str(number)))
        with client.get_subscription_receiver(name, "one") as receiver:
            receiver.dead_letter_message(receiver.receive_messages(1)[0])
    topic = admin.get_topic_runtime_properties(name)
    assert (topic.subscription_count, topic.scheduled_message_count) == (2, 0)
    one, two = (admin.get_subscription_runtime_properties(name, each) for each in ("one", "two"))
    assert (one.active_message_count, one.dead_letter_message_count, one.total_message_count) == (19, 1, 20)
    assert (two.active_message_count, two.total_message_count) == (20, 20)
    assert topic.size_in_bytes is not None and topic.size_in_bytes > 40 * 16
    assert {each.name for each in admin.list_subscriptions_runtime_properties(name)} == {"one", "two"}


@pytest.mark.row("P-10")
def test_old_versions_do_not_see_partitioned_topics(
    admin: ServiceBusAdministrationClient,
    name: str,
    raw: Raw,  # noqa: F811
) -> None:
    admin.create_topic(name, enable_partitioning=True)
    admin.create_subscription(name, "s")
    for path in (name, f"{name}/Subscriptions", f"{name}/Subscriptions/s"):
        assert raw("GET", f"/{path}?api-version=2013-08")[0] == 400
        assert raw("GET", f"/{path}?api-version=2013-10")[0] == 200
    body = entry("<EnablePartitioning>true</EnablePartitioning>", "TopicDescription")
    assert raw("PUT", f"/{name}-b?api-version=2013-08", body)[0] == 400


async def test_the_asynchronous_client_does_the_same(
    server: ServerProcess, admin: ServiceBusAdministrationClient, name: str
) -> None:
    async with AsyncAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate), retry_total=0
    ) as client:
        await client.create_topic(name)
        await client.create_subscription(name, "s")
        await client.create_rule(name, "s", "r", filter=SqlRuleFilter("a = 1"))
        assert [rule.name async for rule in client.list_rules(name, "s")] == ["$Default", "r"]


# -- subscriptions --------------------------------------------------------------------


def test_a_subscription_is_created_shown_updated_and_deleted(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    admin.create_topic(name)
    admin.create_queue(f"{name}-dead")
    made = admin.create_subscription(
        name,
        "Sub",
        lock_duration=timedelta(seconds=30),
        max_delivery_count=3,
        default_message_time_to_live=timedelta(days=1),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        forward_dead_lettered_messages_to=f"{name}-dead",
        user_metadata="mine",
    )
    assert plain(admin.get_subscription(name.upper(), "SUB")) | {"name": "Sub"} == plain(made)
    made.max_delivery_count, made.user_metadata, made.forward_dead_lettered_messages_to = 5, None, None
    admin.update_subscription(name, made)
    assert plain(admin.get_subscription(name, "Sub")) == plain(made)
    with pytest.raises(ResourceExistsError):
        admin.create_subscription(name, "sUB")
    with pytest.raises(HttpResponseError, match=r"(?s)allowed maximum of '5' minutes.*LockDuration"):
        admin.update_subscription(name, made, lock_duration=timedelta(minutes=6))
    admin.delete_subscription(name, "sub")
    for missing in (
        lambda: admin.get_subscription(name, "Sub"),
        lambda: admin.update_subscription(name, made),
        lambda: admin.delete_subscription(name, "Sub"),
        lambda: admin.get_subscription("nowhere", "Sub"),
        lambda: admin.create_subscription("nowhere", "Sub"),
    ):
        with pytest.raises(ResourceNotFoundError):
            missing()
    admin.delete_queue(f"{name}-dead")


def test_subscriptions_and_rules_come_in_pages(admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.create_topic(name)
    names = [f"s{number:03d}" for number in range(105)]
    for each in names:
        admin.create_subscription(name, each)
    assert [each.name for each in admin.list_subscriptions(name)] == names
    assert [each.name for each in admin.list_subscriptions(name, max_page_size=10)] == names
    for each in names[1:]:
        admin.create_rule(name, "s000", each)
    assert [rule.name for rule in admin.list_rules(name, "s000")] == ["$Default", *names[1:]]


# -- rules ----------------------------------------------------------------------------


@pytest.mark.row("P-24")
@pytest.mark.parametrize(
    "rule_filter",
    [
        TrueRuleFilter(),
        FalseRuleFilter(),
        SqlRuleFilter("a = @s OR b = @n", parameters={"@s": "<&>", "@n": 5, "@d": 0.5, "@b": True}),
        CorrelationRuleFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            label="l",
            session_id="s",
            reply_to_session_id="rs",
            content_type="ct",
            properties={"text": "x", "long": 2**40, "span": timedelta(seconds=90)},
        ),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("kind", list(Kind))
def test_a_rule_is_created_shown_updated_and_deleted(
    admin: ServiceBusAdministrationClient, name: str, rule_filter: Any, kind: Kind
) -> None:
    admin.create_topic(name, enable_partitioning=kind is Kind.PARTITIONED)
    admin.create_subscription(name, "s")
    admin.create_rule(name, "s", "R1", filter=rule_filter, action=SqlRuleAction("SET x = @p", {"@p": 1}))
    shown = admin.get_rule(name, "S", "r1")
    assert type(shown.filter) is type(rule_filter)
    wanted = {key: value for key, value in vars(rule_filter).items() if key != "requires_preprocessing"}
    got = {key: value for key, value in vars(shown.filter).items() if key != "requires_preprocessing"}
    if not isinstance(rule_filter, TrueRuleFilter | FalseRuleFilter):  # whose text is their own affair
        assert {k: v or None for k, v in got.items()} == {k: v or None for k, v in wanted.items()}
    assert isinstance(shown.action, SqlRuleAction)
    assert (shown.action.sql_expression, dict(shown.action.parameters or {})) == ("SET x = @p", {"@p": 1})
    shown.filter, shown.action = SqlRuleFilter("a > 1"), None
    admin.update_rule(name, "s", shown)
    changed = admin.get_rule(name, "s", "R1")
    assert isinstance(changed.filter, SqlRuleFilter) and changed.filter.sql_expression == "a > 1"
    assert changed.action is None or not isinstance(changed.action, SqlRuleAction)
    assert changed.created_at_utc == shown.created_at_utc
    with pytest.raises(ResourceExistsError):
        admin.create_rule(name, "s", "r1")
    with pytest.raises(HttpResponseError, match="At position"):
        admin.create_rule(name, "s", "r2", filter=SqlRuleFilter("a ="))
    admin.delete_rule(name, "s", "R1")
    for missing in (
        lambda: admin.get_rule(name, "s", "R1"),
        lambda: admin.delete_rule(name, "s", "R1"),
        lambda: admin.update_rule(name, "s", shown),
        lambda: admin.create_rule(name, "none", "r"),
    ):
        with pytest.raises(ResourceNotFoundError):
            missing()


def test_a_subscription_is_born_with_the_rule_it_is_given(
    admin: ServiceBusAdministrationClient,
    name: str,
    raw: Raw,  # noqa: F811
) -> None:
    admin.create_topic(name)
    first = (
        '<DefaultRuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        '<Filter i:type="SqlFilter">'
        "<SqlExpression>a = 1</SqlExpression></Filter><Name>mine</Name></DefaultRuleDescription>"
    )
    status, _ = raw(
        "PUT", f"/{name}/subscriptions/s?api-version=2021-05", entry(first, "SubscriptionDescription")
    )
    assert status == 201
    assert [rule.name for rule in admin.list_rules(name, "s")] == ["mine"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "s", entry("", "QueueDescription"), 400),
        ("PUT", "s", b"<entry/>", 400),
        ("PUT", "s" * 51, entry("", "SubscriptionDescription"), 400),
        ("PUT", "s/rules/r", entry("", "SubscriptionDescription"), 400),
        ("PUT", "s/rules", entry("", "RuleDescription"), 400),
        ("DELETE", "", b"", 400),
        ("GET", "s/rules?$top=x", b"", 400),
        ("DELETE", "s/rules/$default/more", b"", 404),
    ],
)
def test_bad_requests_below_a_topic_are_told_what_is_wrong(
    admin: ServiceBusAdministrationClient,
    name: str,
    raw: Raw,  # noqa: F811
    method: str,
    path: str,
    body: bytes,
    status: int,
) -> None:
    admin.create_topic(name)
    admin.create_subscription(name, "s")
    separator = "&" if "?" in path else "?"
    answered, document = raw(method, f"/{name}/subscriptions/{path}{separator}api-version=2021-05", body)
    assert (answered, document.tag) == (status, "Error")


# -- over AMQP --------------------------------------------------------------------------


@pytest.mark.row("P-35")
async def test_rules_are_added_told_and_removed_over_amqp(
    server: ServerProcess, admin: ServiceBusAdministrationClient, name: str
) -> None:
    admin.create_topic(name, enable_partitioning=True)
    admin.create_subscription(name, "s")

    client = await Client.connect(Endpoint.parse(server.connection_string))
    node = await client.requester(f"{name}/Subscriptions/s/$management")

    async def ask(operation: str, body: object) -> tuple[object, object, Any]:
        answer = await node.ask(f"com.microsoft:{operation}", body)
        told = answer.application_properties
        return told["statusCode"], told.get("errorCondition"), answer.value

    rule = {"sql-filter": {"expression": "n = 1"}, "sql-rule-action": {"expression": "SET m = 2"}}
    assert (await ask("add-rule", {"rule-name": "r", "rule-description": rule}))[0] == 200
    again = await ask("add-rule", {"rule-name": "R", "rule-description": rule})
    assert again[:2] == (409, "com.microsoft:entity-already-exists")
    bad = {"sql-filter": {"expression": "n ="}}
    assert (await ask("add-rule", {"rule-name": "b", "rule-description": bad}))[:2] == (
        *(400, "com.microsoft:argument-error"),
    )
    status, _, body = await ask("enumerate-rules", {"skip": 1, "top": 2**31 - 1})
    (told,) = body["rules"]
    described = told["rule-description"]
    assert isinstance(described, Described) and isinstance(described.descriptor, ULong)
    assert (status, described.value[2], described.value[0].value[0]) == (200, "r", "n = 1")
    assert (await ask("enumerate-rules", {"skip": 5, "top": 10}))[0] == 204
    assert (await ask("remove-rule", {"rule-name": "$Default"}))[0] == 200
    assert (await ask("remove-rule", {"rule-name": "$Default"}))[:2] == (404, "amqp:not-found")
    at_topic = await client.requester(f"{name}/$management")
    refused = await at_topic.ask("com.microsoft:enumerate-rules", {"skip": 0, "top": 1})
    assert refused.application_properties["errorCondition"] == "amqp:not-allowed"
    peeked = await at_topic.ask("com.microsoft:peek-message", {"from-sequence-number": 1, "message-count": 1})
    assert peeked.application_properties["statusCode"] == 400
    client.cut()
    # Who only listens may not change rules.
    key, _ = RULES["Listens"]
    endpoint = Endpoint.parse(server.connection_string)
    listens = await Client.connect(Endpoint(endpoint.host, endpoint.port, "Listens", key))
    node = await listens.requester(f"{name}/Subscriptions/s/$management")
    assert (await ask("add-rule", {"rule-name": "x", "rule-description": rule}))[0] == 401
    listens.cut()
    assert [rule.name for rule in admin.list_rules(name, "s")] == ["r"]


def test_the_basic_tier_has_no_topics(start_server: StartServer) -> None:
    server = start_server({}, None, "--tier", "basic")
    with administration(server) as client:
        with pytest.raises(HttpResponseError, match="does not offer topics"):
            client.create_topic("t")
        assert list(client.list_topics()) == []
