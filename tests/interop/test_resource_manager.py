"""Azure Resource Manager: the released `azure-mgmt-servicebus` against a real server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.core.rest import HttpRequest
from azure.mgmt.servicebus import ServiceBusManagementClient
from azure.mgmt.servicebus.models import (
    Action,
    CheckNameAvailability,
    CorrelationFilter,
    RegenerateAccessKeyParameters,
    Rule,
    Ruleproperties,
    SBAuthorizationRule,
    SBAuthorizationRuleProperties,
    SBNamespace,
    SBNamespaceProperties,
    SBNamespaceUpdateParameters,
    SBQueue,
    SBQueueProperties,
    SBSku,
    SBSubscription,
    SBSubscriptionProperties,
    SBTopic,
    SBTopicProperties,
    SqlFilter,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from fix_jwt import ISSUER, OWNER, SENDER, Provider
from fix_server import ServerProcess, namespace

PROVIDER = Provider("ES256", "first")
SUBSCRIPTION: Final = "00000000-0000-0000-0000-000000000001"
GROUP: Final = "infrastructure"
# As fix_server's Config.json calls it.
SHOP: Final = "interop"
# What Azure's management clients ask tokens for.
AUDIENCE: Final = "https://management.azure.com/"


class StaticToken:
    """The three lines of the guide."""

    def __init__(self, token: str) -> None:
        self.token = token

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken(self.token, int(time.time()) + 3600)


@pytest.fixture(scope="module")
def _managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("resource-manager")
    keys = folder / "keys.json"
    keys.write_text(PROVIDER.document)
    options = ["--jwt-issuer", ISSUER, "--jwt-keys", str(keys), "--jwt-role", "clerk=Manage@orders"]
    server = ServerProcess(folder, namespace({"orders": {}, "plain": {}}), options)
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


@pytest.fixture
def managed(_managed: ServerProcess) -> Iterator[ServerProcess]:
    yield _managed
    _managed.refuse_trouble()


def client_with(server: ServerProcess, token: str) -> ServiceBusManagementClient:
    return ServiceBusManagementClient(
        StaticToken(token),
        SUBSCRIPTION,
        base_url=f"https://127.0.0.1:{server.port}",
        connection_verify=str(server.certificate),
        retry_total=0,
    )


@pytest.fixture(scope="module")
def azure(_managed: ServerProcess) -> Iterator[ServiceBusManagementClient]:
    """With the token of an owner, as Entra would issue it for Azure's management."""
    with client_with(_managed, PROVIDER.token(OWNER, aud=AUDIENCE)) as client:
        yield client


def queue(**properties: Any) -> SBQueue:
    return SBQueue(properties=SBQueueProperties(**properties))


def code_of(refusal: pytest.ExceptionInfo[HttpResponseError]) -> str:
    assert refusal.value.error is not None, refusal.value
    return str(refusal.value.error.code)


# -- entities -----------------------------------------------------------------------


def test_a_queue_is_created_shown_updated_and_deleted(azure, managed):
    asked = queue(
        lock_duration=timedelta(seconds=30),
        enable_partitioning=True,
        requires_session=True,
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live=timedelta(days=14),
        max_delivery_count=3,
        forward_dead_lettered_messages_to="plain",
        user_metadata="of the infrastructure",
    )
    made = azure.queues.create_or_update(GROUP, SHOP, "parcels", asked)
    assert made.id == (
        f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.ServiceBus"
        f"/namespaces/{SHOP}/queues/parcels"
    )
    assert (made.name, made.type) == ("parcels", "Microsoft.ServiceBus/namespaces/queues")
    shown = azure.queues.get(GROUP, SHOP, "parcels").properties
    assert shown.lock_duration == timedelta(seconds=30)
    assert shown.default_message_time_to_live == timedelta(days=14)
    assert (shown.enable_partitioning, shown.requires_session, shown.status) == (True, True, "Active")
    assert (shown.max_size_in_megabytes, shown.max_delivery_count) == (16 * 1024, 3)
    assert shown.forward_dead_lettered_messages_to == "plain"
    assert shown.user_metadata == "of the infrastructure"
    assert shown.created_at.tzinfo is not None
    # A PUT describes all of it: the lifetime is unlimited again, and what cannot change stays.
    azure.queues.create_or_update(GROUP, SHOP, "parcels", queue(max_delivery_count=7))
    shown = azure.queues.get(GROUP, SHOP, "parcels").properties
    assert (shown.max_delivery_count, shown.lock_duration) == (7, timedelta(minutes=1))
    assert shown.default_message_time_to_live > timedelta(days=365 * 100)
    assert (shown.enable_partitioning, shown.requires_session) == (True, True)
    assert shown.forward_dead_lettered_messages_to is None
    azure.queues.delete(GROUP, SHOP, "parcels")
    with pytest.raises(ResourceNotFoundError) as refusal:
        azure.queues.get(GROUP, SHOP, "parcels")
    assert code_of(refusal) == "ResourceNotFound"
    azure.queues.delete(GROUP, SHOP, "parcels")


def test_what_is_shown_can_be_sent_back(azure, managed):
    azure.queues.create_or_update(GROUP, SHOP, "returned", queue(enable_partitioning=True))
    shown = azure.queues.get(GROUP, SHOP, "returned")
    again = azure.queues.create_or_update(GROUP, SHOP, "returned", shown.as_dict())
    unchanged = {"updatedAt", "accessedAt"}
    assert {name: value for name, value in again.properties.items() if name not in unchanged} == {
        name: value for name, value in shown.properties.items() if name not in unchanged
    }


def test_counts_are_those_of_all_partitions(azure, managed):
    azure.queues.create_or_update(GROUP, SHOP, "counted", queue(enable_partitioning=True))
    keys = azure.namespaces.list_keys(GROUP, SHOP, "RootManageSharedAccessKey")
    with (
        ServiceBusClient.from_connection_string(keys.primary_connection_string) as messages,
        messages.get_queue_sender("counted") as sender,
    ):
        for number in range(20):
            sender.send_messages(ServiceBusMessage("m", partition_key=f"k{number}"))
    shown = azure.queues.get(GROUP, SHOP, "counted").properties
    assert (shown.message_count, shown.count_details.active_message_count) == (20, 20)
    assert shown.count_details.dead_letter_message_count == 0
    assert shown.size_in_bytes > 0


def test_lists_come_in_pages_and_top_and_skip_limit_them(azure, managed):
    names = [f"many-{number:03}" for number in range(130)]
    for name in names:
        azure.queues.create_or_update(GROUP, SHOP, name, queue())

    def listed(**limits: int) -> list[str]:
        found = azure.queues.list_by_namespace(GROUP, SHOP, **limits)
        return [each.name for each in found if each.name.startswith("many-")]

    pages = list(azure.queues.list_by_namespace(GROUP, SHOP).by_page())
    assert len(pages) == 2
    everything = [each.name for each in azure.queues.list_by_namespace(GROUP, SHOP)]
    assert [name for name in everything if name.startswith("many-")] == names
    skip = everything.index("many-000")
    assert listed(skip=skip, top=110) == names[:110]
    assert listed(skip=skip + 120, top=5) == names[120:125]


def test_a_topic_holds_subscriptions_and_they_hold_rules(azure, managed):
    topic = SBTopic(properties=SBTopicProperties(requires_duplicate_detection=True, support_ordering=True))
    made = azure.topics.create_or_update(GROUP, SHOP, "news", topic)
    assert (made.properties.requires_duplicate_detection, made.properties.support_ordering) == (True, True)
    described = SBSubscriptionProperties(lock_duration=timedelta(seconds=20), forward_to="plain")
    subscription = azure.subscriptions.create_or_update(
        GROUP, SHOP, "news", "all", SBSubscription(properties=described)
    )
    assert subscription.type == "Microsoft.ServiceBus/namespaces/topics/subscriptions"
    assert subscription.properties.lock_duration == timedelta(seconds=20)
    assert subscription.properties.forward_to == "plain"
    assert azure.topics.get(GROUP, SHOP, "news").properties.subscription_count == 1
    assert [each.name for each in azure.topics.list_by_namespace(GROUP, SHOP)] == ["news"]
    assert [each.name for each in azure.subscriptions.list_by_topic(GROUP, SHOP, "news")] == ["all"]

    place = (GROUP, SHOP, "news", "all")
    (first,) = azure.rules.list_by_subscriptions(*place)
    assert (first.name, first.properties.sql_filter.sql_expression) == ("$Default", "1=1")
    sql = Ruleproperties(
        filter_type="SqlFilter",
        sql_filter=SqlFilter(sql_expression="size > 5"),
        action=Action(sql_expression="SET seen = 1"),
    )
    made_rule = azure.rules.create_or_update(*place, "big", Rule(properties=sql))
    assert made_rule.properties.sql_filter.sql_expression == "size > 5"
    assert made_rule.properties.action.sql_expression == "SET seen = 1"
    correlation = CorrelationFilter(label="red", properties={"region": "north"})
    changed = Rule(properties=Ruleproperties(filter_type="CorrelationFilter", correlation_filter=correlation))
    azure.rules.create_or_update(*place, "big", changed)
    shown = azure.rules.get(*place, "big").properties
    assert (shown.filter_type, shown.correlation_filter.label) == ("CorrelationFilter", "red")
    assert shown.correlation_filter.properties == {"region": "north"}
    assert not shown.action
    azure.rules.delete(*place, "$Default")
    assert [each.name for each in azure.rules.list_by_subscriptions(*place)] == ["big"]
    azure.rules.delete(*place, "nothing")

    # An update leaves the rules alone.
    azure.subscriptions.create_or_update(*place, SBSubscription())
    assert azure.subscriptions.get(*place).properties.forward_to is None
    assert [each.name for each in azure.rules.list_by_subscriptions(*place)] == ["big"]
    azure.subscriptions.delete(*place)
    azure.topics.delete(GROUP, SHOP, "news")
    assert list(azure.topics.list_by_namespace(GROUP, SHOP)) == []


def test_a_path_with_slashes_is_one_name(azure, managed):
    made = azure.queues.create_or_update(GROUP, SHOP, "eu~west~orders", queue())
    assert made.name == "eu~west~orders"
    assert made.id.endswith("/queues/eu~west~orders")
    assert azure.queues.get(GROUP, SHOP, "eu/west/orders").id == made.id
    azure.queues.delete(GROUP, SHOP, made.name)


# -- what is refused ----------------------------------------------------------------


def test_refusals_have_the_form_and_the_codes_of_azure(azure, managed):
    azure.topics.create_or_update(GROUP, SHOP, "taken", SBTopic())
    with pytest.raises(ResourceExistsError) as refusal:
        azure.queues.create_or_update(GROUP, SHOP, "taken", queue())
    assert code_of(refusal) == "Conflict"
    with pytest.raises(HttpResponseError) as refusal:
        azure.queues.create_or_update(GROUP, SHOP, "short", queue(lock_duration=timedelta(hours=1)))
    assert (refusal.value.status_code, code_of(refusal)) == (400, "BadRequest")
    with pytest.raises(HttpResponseError) as refusal:
        azure.queues.create_or_update(GROUP, SHOP, "orders", queue(requires_session=True))
    assert (refusal.value.status_code, code_of(refusal)) == (400, "OperationNotAllowed")
    with pytest.raises(HttpResponseError, match="unheardOf") as refusal:
        azure.queues.create_or_update(GROUP, SHOP, "orders", {"properties": {"unheardOf": 1}})
    assert code_of(refusal) == "BadRequest"
    with pytest.raises(ResourceNotFoundError) as refusal:
        azure.queues.get(GROUP, "elsewhere", "orders")
    assert code_of(refusal) == "ParentResourceNotFound"
    with pytest.raises(ResourceNotFoundError) as refusal:
        azure.subscriptions.create_or_update(GROUP, SHOP, "no-topic", "all", SBSubscription())
    assert code_of(refusal) == "ParentResourceNotFound"
    with pytest.raises(ResourceNotFoundError) as refusal:
        azure.namespaces.get(GROUP, "elsewhere")
    assert code_of(refusal) == "ResourceNotFound"


def test_what_only_azure_has_is_refused_and_never_accepted_without_an_effect(azure, managed):
    for refused in (
        lambda: azure.namespaces.get_network_rule_set(GROUP, SHOP),
        lambda: azure.namespaces.create_or_update_network_rule_set(GROUP, SHOP, {}),
        lambda: list(azure.private_endpoint_connections.list(GROUP, SHOP)),
        lambda: azure.private_link_resources.get(GROUP, SHOP),
        lambda: list(azure.disaster_recovery_configs.list(GROUP, SHOP)),
        lambda: azure.disaster_recovery_configs.create_or_update(GROUP, SHOP, "alias", {}),
        lambda: azure.migration_configs.get(GROUP, SHOP, "$default"),
        lambda: azure.namespaces.begin_failover(GROUP, SHOP, {}).result(),
        lambda: azure.namespaces.begin_create_or_update(
            GROUP,
            SHOP,
            SBNamespace(location="local", properties=SBNamespaceProperties(zone_redundant=True)),
        ).result(),
    ):
        with pytest.raises(HttpResponseError) as refusal:
            refused()
        assert (refusal.value.status_code, code_of(refusal)) == (501, "NotSupported")


def test_a_request_names_a_version_of_the_api(azure, managed):
    path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.ServiceBus/namespaces"
    for query, code in (
        ("", "MissingApiVersionParameter"),
        ("?api-version=latest", "InvalidApiVersionParameter"),
    ):
        answer = azure.send_request(HttpRequest("GET", f"https://127.0.0.1:{managed.port}{path}{query}"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_az_login_finds_a_subscription_and_a_queue_may_still_be_called_so(azure, managed):
    root = f"https://127.0.0.1:{managed.port}/subscriptions"
    (shown,) = azure.send_request(HttpRequest("GET", f"{root}?api-version=2022-12-01")).json()["value"]
    assert shown["state"] == "Enabled"
    one = azure.send_request(HttpRequest("GET", f"{root}/{SUBSCRIPTION}?api-version=2022-12-01")).json()
    assert one["subscriptionId"] == SUBSCRIPTION
    azure.queues.create_or_update(GROUP, SHOP, "subscriptions", queue())
    with ServiceBusAdministrationClient.from_connection_string(
        managed.connection_string, connection_verify=str(managed.certificate)
    ) as administration:
        assert administration.get_queue("subscriptions").name == "subscriptions"
    azure.queues.delete(GROUP, SHOP, "subscriptions")


# -- namespaces ---------------------------------------------------------------------


def test_a_namespace_is_created_used_tagged_and_deleted(azure, managed):
    asked = SBNamespace(
        location="West Europe",
        tags={"team": "parcels"},
        sku=SBSku(name="Premium", tier="Premium", capacity=1),
        properties=SBNamespaceProperties(premium_messaging_partitions=2, minimum_tls_version="1.2"),
    )
    made = azure.namespaces.begin_create_or_update(GROUP, "depot", asked).result()
    assert (made.name, made.location, made.tags) == ("depot", "West Europe", {"team": "parcels"})
    assert (made.sku.name, made.sku.capacity) == ("Premium", 1)
    assert made.properties.provisioning_state == "Succeeded"
    assert made.properties.premium_messaging_partitions == 2
    azure.queues.create_or_update(GROUP, "depot", "orders", queue())
    assert azure.queues.get(GROUP, "depot", "orders").properties.enable_partitioning is True
    assert {each.name for each in azure.namespaces.list()} == {SHOP, "depot"}
    assert {each.name for each in azure.namespaces.list_by_resource_group("another")} == {SHOP, "depot"}

    # Its connection string leads to it and to no other.
    keys = azure.namespaces.list_keys(GROUP, "depot", "RootManageSharedAccessKey")
    with (
        ServiceBusClient.from_connection_string(keys.primary_connection_string) as messages,
        messages.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("hello"))
    assert azure.queues.get(GROUP, "depot", "orders").properties.message_count == 1
    assert azure.queues.get(GROUP, SHOP, "orders").properties.message_count == 0

    # The same again is no error; another location, tier or number of partitions is.
    azure.namespaces.begin_create_or_update(GROUP, "depot", asked).result()
    patched = azure.namespaces.update(GROUP, "depot", SBNamespaceUpdateParameters(tags={"team": "letters"}))
    assert patched.tags == azure.namespaces.get(GROUP, "depot").tags == {"team": "letters"}
    for change in (
        {"location": "northeurope"},
        {"location": "westeurope", "sku": SBSku(name="Standard")},
        {"location": "westeurope", "properties": {"premiumMessagingPartitions": 4}},
    ):
        with pytest.raises(HttpResponseError):
            azure.namespaces.begin_create_or_update(GROUP, "depot", SBNamespace(**change)).result()
    azure.namespaces.begin_delete(GROUP, "depot").result()
    azure.namespaces.begin_delete(GROUP, "depot").result()
    assert [each.name for each in azure.namespaces.list()] == [SHOP]


def test_the_first_namespace_cannot_be_deleted(azure, managed):
    with pytest.raises(HttpResponseError, match="data folder"):
        azure.namespaces.begin_delete(GROUP, SHOP).result()


def test_a_name_is_available_or_not(azure, managed):
    def check(name: str) -> tuple[bool, str]:
        answer = azure.namespaces.check_name_availability(CheckNameAvailability(name=name))
        return answer.name_available, answer.reason

    assert check("another") == (True, "None")
    assert check(SHOP.upper()) == (False, "NameInUse")
    assert check("1st_namespace") == (False, "InvalidName")


# -- keys ---------------------------------------------------------------------------


def test_authorization_rules_of_namespaces_queues_and_topics(azure, managed):
    azure.topics.create_or_update(GROUP, SHOP, "ruled", SBTopic())
    rule = SBAuthorizationRule(properties=SBAuthorizationRuleProperties(rights=["Send", "Listen"]))
    for operations, place in (
        (azure.namespaces, (GROUP, SHOP)),
        (azure.queues, (GROUP, SHOP, "orders")),
        (azure.topics, (GROUP, SHOP, "ruled")),
    ):
        made = operations.create_or_update_authorization_rule(*place, "clerks", rule)
        assert (made.name, made.properties.rights) == ("clerks", ["Send", "Listen"])
        assert made.type.lower().endswith("/authorizationrules")
        assert operations.get_authorization_rule(*place, "clerks").id == made.id
        assert "clerks" in [each.name for each in operations.list_authorization_rules(*place)]
        keys = operations.list_keys(*place, "clerks")
        assert keys.key_name == "clerks"
        assert keys.primary_key in keys.primary_connection_string
        assert ("EntityPath=" in keys.primary_connection_string) == (len(place) == 3)
        changed = operations.regenerate_keys(
            *place, "clerks", RegenerateAccessKeyParameters(key_type="PrimaryKey")
        )
        assert changed.primary_key != keys.primary_key
        assert changed.secondary_key == keys.secondary_key
        operations.delete_authorization_rule(*place, "clerks")
        with pytest.raises(ResourceNotFoundError):
            operations.get_authorization_rule(*place, "clerks")
    # Templates often list the root rule.
    root = SBAuthorizationRule(properties=SBAuthorizationRuleProperties(rights=["Manage", "Send", "Listen"]))
    azure.namespaces.create_or_update_authorization_rule(GROUP, SHOP, "RootManageSharedAccessKey", root)


# -- who may ------------------------------------------------------------------------


def test_a_role_says_what_a_token_may_manage(managed):
    with client_with(managed, PROVIDER.token(SENDER, aud=AUDIENCE)) as sender:
        with pytest.raises(HttpResponseError) as refusal:
            sender.queues.get(GROUP, SHOP, "orders")
        assert (refusal.value.status_code, code_of(refusal)) == (403, "AuthorizationFailed")
    with client_with(managed, PROVIDER.token("clerk", aud=AUDIENCE)) as clerk:
        assert clerk.queues.get(GROUP, SHOP, "orders").name == "orders"
        for refused in (
            lambda: clerk.queues.get(GROUP, SHOP, "plain"),
            lambda: clerk.queues.create_or_update(GROUP, SHOP, "orders", queue(forward_to="plain")),
            lambda: clerk.namespaces.begin_create_or_update(GROUP, "depot", SBNamespace(location="x")),
        ):
            with pytest.raises(HttpResponseError) as refusal:
                refused()
            assert refusal.value.status_code == 403


def test_a_token_that_is_not_valid_is_refused(managed):
    for token in (
        "whatever",
        Provider("ES256", "first").token(OWNER, aud=AUDIENCE),
        PROVIDER.token(OWNER, aud="https://graph.microsoft.com/"),
        PROVIDER.token(OWNER, aud=AUDIENCE, exp=1),
    ):
        with client_with(managed, token) as stranger:
            with pytest.raises(ClientAuthenticationError) as refusal:
                stranger.queues.get(GROUP, SHOP, "orders")
            assert code_of(refusal) == "InvalidAuthenticationToken"


def test_the_key_of_a_namespace_is_a_token_for_it(managed):
    with client_with(managed, managed.key) as holder:
        assert [each.name for each in holder.namespaces.list()] == [SHOP]
        holder.queues.create_or_update(GROUP, SHOP, "of-the-holder", queue())
        holder.queues.delete(GROUP, SHOP, "of-the-holder")
        for refused in (
            lambda: holder.namespaces.begin_create_or_update(GROUP, "depot", SBNamespace(location="x")),
            lambda: holder.namespaces.begin_delete(GROUP, SHOP),
        ):
            with pytest.raises(HttpResponseError) as refusal:
                refused()
            assert refusal.value.status_code == 403


def test_a_server_for_development_may_accept_any_token(start_server):
    server = start_server({"orders": {}}, None, "--development", "--arm-any-token")
    with client_with(server, "whatever") as azure:
        made = azure.namespaces.begin_create_or_update(GROUP, "depot", SBNamespace(location="x")).result()
        assert made.sku.name == "Standard"
        azure.queues.create_or_update(GROUP, "depot", "orders", queue())
        azure.namespaces.begin_delete(GROUP, "depot").result()


def test_every_broker_of_a_server_answers_and_creates_no_namespaces(start_server, tmp_path: Path):
    keys = tmp_path / "keys.json"
    keys.write_text(PROVIDER.document)
    options = ("--brokers", "2", "--jwt-issuer", ISSUER, "--jwt-keys", str(keys))
    server = start_server({"orders": {}}, None, *options)
    for number in range(6):
        # A new connection each time: it may be another broker's.
        with client_with(server, PROVIDER.token(OWNER)) as azure:
            azure.queues.create_or_update(GROUP, SHOP, f"made-{number}", queue(enable_partitioning=True))
            assert len(list(azure.queues.list_by_namespace(GROUP, SHOP))) == number + 2
            azure.namespaces.update(GROUP, SHOP, SBNamespaceUpdateParameters(tags={"round": str(number)}))
            assert azure.namespaces.get(GROUP, SHOP).tags == {"round": str(number)}
            with pytest.raises(HttpResponseError, match="one broker") as refusal:
                azure.namespaces.begin_create_or_update(GROUP, "depot", SBNamespace(location="x")).result()
            assert code_of(refusal) == "NotSupported"
