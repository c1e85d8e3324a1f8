"""The Premium tier: partitions by the namespace's word, and large messages.

The tier and its partitions are properties of a namespace. They can be set, are kept, and are shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.client import NAMESPACE, ManagementClient
from fix_rows import on_kind, use_entity
from fix_server import Properties, ServerProcess, StartServer, namespace

MEGABYTE = 1 << 20

PREMIUM = ("--tier", "premium")
PARTITIONS = "--premium-messaging-partitions"


def administration(server: ServerProcess, connection_string: str = "") -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string or server.connection_string,
        connection_verify=str(server.certificate),
        retry_total=0,
    )


@contextmanager
def serving(
    folder: Path, options: Sequence[str] = (), said: Properties | None = None
) -> Iterator[ServerProcess]:
    """A server on this folder's data; `said` is what its Config.json says of the namespace."""
    config = namespace({})
    config["UserConfig"]["Namespaces"][0].update(said or {})  # type: ignore[index]
    server = ServerProcess(folder, config, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.refuse_trouble()


def shown(server: ServerProcess) -> tuple[str | None, str | None]:
    """The tier of the namespace and its partitions."""
    with ManagementClient(ConnectionString.parse(server.connection_string)) as client:
        entry = client.get(NAMESPACE)
    return entry.text("MessagingSKU"), entry.text("PremiumMessagingPartitions")


def partitions_of(server: ServerProcess, queue: str, messages: int = 8) -> set[int]:
    """The partitions that messages without a key are sent to; all of them are received and completed."""
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender(queue, keep_alive=0) as sender:
            for number in range(messages):
                sender.send_messages(ServiceBusMessage(str(number)))
        partitions = set()
        with client.get_queue_receiver(queue, max_wait_time=10) as receiver:
            for _ in range(messages):
                (message,) = receiver.receive_messages(1)
                receiver.complete_message(message)
                partitions.add((message.sequence_number or 0) >> 48)
    return partitions


@pytest.mark.row("P-09")
@pytest.mark.parametrize("count", [on_kind(2, 2), on_kind(4, 4)])
def test_in_a_partitioned_namespace_every_entity_is_partitioned(
    start_server: StartServer, count: int
) -> None:
    server = start_server({"described": {}}, None, *PREMIUM, PARTITIONS, str(count))
    assert shown(server) == ("Premium", str(count))
    with administration(server) as admin:
        assert admin.get_namespace_properties().messaging_sku == "Premium"
        admin.create_queue("asked", enable_partitioning=True)
        assert admin.create_queue("silent").enable_partitioning is True
        assert admin.create_topic("news").enable_partitioning is True
        for create in (admin.create_queue, admin.create_topic):
            with pytest.raises(
                HttpResponseError,
                match=r"SubCode=40000\. Non-partitioned entities are not allowed in partitioned namespace",
            ) as refused:
                create("plain", enable_partitioning=False)
            assert refused.value.status_code == 400
        # A name that is taken is said to be, whatever else is asked for.
        for create, name in ((admin.create_queue, "described"), (admin.create_topic, "news")):
            with pytest.raises(ResourceExistsError, match="already exists"):
                create(name, enable_partitioning=False)
        assert {each.name for each in admin.list_queues()} == {"asked", "described", "silent"}
    for queue in ("described", "asked", "silent"):
        use_entity(server, queue)
        assert partitions_of(server, queue) == set(range(count))


@pytest.mark.row("P-09")
@pytest.mark.parametrize("count", [on_kind(1, 1), on_kind(2, 2), on_kind(4, 4)])
def test_premium_has_sizes_of_its_own_for_each_entity_as_a_whole(
    start_server: StartServer, count: int
) -> None:
    server = start_server({}, None, *PREMIUM, PARTITIONS, str(count))
    with administration(server) as admin:
        for gigabytes in (1, 2, 3, 4, 5, 10, 20, 40, 80):
            name, megabytes = f"q{gigabytes}", gigabytes * 1024
            made = admin.create_queue(name, max_size_in_megabytes=megabytes)
            assert made.max_size_in_megabytes == megabytes
            assert admin.get_queue(name).max_size_in_megabytes == megabytes
            use_entity(server, name)
        for gigabytes in (6, 81, 160):
            with pytest.raises(HttpResponseError, match="MaxSizeInMegabytes") as refused:
                admin.create_queue("other", max_size_in_megabytes=gigabytes * 1024)
            assert refused.value.status_code == 400


@pytest.mark.row("P-09")
@pytest.mark.parametrize("count", [on_kind(1, 1)])
def test_in_a_namespace_with_one_partition_none_can_be_asked_for(
    start_server: StartServer, count: int
) -> None:
    server = start_server({"described": {}}, None, *PREMIUM, PARTITIONS, str(count))
    use_entity(server, "described")
    assert shown(server) == ("Premium", "1")
    with administration(server) as admin:
        admin.create_queue("asked", enable_partitioning=False)
        assert admin.create_queue("silent").enable_partitioning is False
        for create in (admin.create_queue, admin.create_topic):
            with pytest.raises(HttpResponseError, match="Partitioned entities are not allowed") as refused:
                create("parts", enable_partitioning=True)
            assert refused.value.status_code == 400
    assert partitions_of(server, "described", 3) == partitions_of(server, "silent", 3) == {0}


@pytest.mark.row("P-09")
def test_partitions_are_kept_and_a_change_leaves_entities_as_they_are(tmp_path: Path) -> None:
    with serving(tmp_path, ("--tier", "standard")) as server, administration(server) as admin:
        admin.create_queue("sixteen", enable_partitioning=True, max_size_in_megabytes=2048)
        assert shown(server) == ("Standard", None)
    with serving(tmp_path, (*PREMIUM, PARTITIONS, "4")) as server, administration(server) as admin:
        admin.create_queue("four")
    with serving(tmp_path) as server:
        assert shown(server) == ("Premium", "4")
    with serving(tmp_path, (PARTITIONS, "1")) as server, administration(server) as admin:
        assert shown(server) == ("Premium", "1")
        assert admin.create_queue("one").enable_partitioning is False
        for name, count in (("sixteen", 16), ("four", 4), ("one", 1)):
            queue = admin.get_queue(name)
            queue.max_delivery_count = 3
            admin.update_queue(queue)
            again = admin.get_queue(name)
            assert (again.enable_partitioning, again.max_delivery_count) == (count > 1, 3)
            assert again.max_size_in_megabytes == (32_768 if count == 16 else 1024)
            assert partitions_of(server, name, 16) == set(range(count))


@pytest.mark.row("P-09")
def test_a_namespace_says_its_own_tier_in_config_json(tmp_path: Path) -> None:
    with serving(tmp_path, said={"Tier": "Premium", "PremiumMessagingPartitions": 4}) as server:
        assert shown(server) == ("Premium", "4")
    # What is set for the whole server is for namespaces that say nothing.
    with serving(tmp_path, ("--tier", "standard"), {"Tier": "Premium"}) as server:
        assert shown(server) == ("Premium", "4")
    with serving(tmp_path, ("--tier", "interop=standard"), {"Tier": "Premium"}) as server:
        assert shown(server) == ("Standard", None)


@pytest.mark.row("P-09")
def test_each_namespace_of_a_server_has_its_own_tier(tmp_path: Path) -> None:
    described = {
        "UserConfig": {
            "Namespaces": [
                {"Name": "one", "Tier": "Premium", "PremiumMessagingPartitions": 1},
                {"Name": "four", "Tier": "premium", "Queues": [{"Name": "q"}]},
                {"Name": "usual"},
                {"Name": "small"},
            ]
        }
    }
    options = (PARTITIONS, "FOUR=4", "--tier", "standard", "--tier", "small=basic")
    server = ServerProcess(tmp_path, described, options)
    server.start()
    try:
        found = {}
        for name in ("one", "four", "usual", "small"):
            # Each namespace has a key of its own, and the key says which is meant.
            folder = server.data if name == "one" else server.data / "namespaces" / name
            key = (folder / "root.key").read_text().strip()
            string = server.connection_string.replace(server.key, key)
            with ManagementClient(ConnectionString.parse(string)) as client:
                entry = client.get(NAMESPACE)
                found[name] = (entry.text("MessagingSKU"), entry.text("PremiumMessagingPartitions"))
        assert found == {
            "one": ("Premium", "1"),
            "four": ("Premium", "4"),
            "usual": ("Standard", None),
            "small": ("Basic", None),
        }
    finally:
        server.stop()
        server.refuse_trouble()


def refused_start(folder: Path, options: Sequence[str], said: Properties | None = None) -> str:
    config = namespace({"plain": {"EnablePartitioning": False}})
    config["UserConfig"]["Namespaces"][0].update(said or {})  # type: ignore[index]
    server = ServerProcess(folder, config, options)
    ended = subprocess.run(server.command(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    return ended.stderr


@pytest.mark.row("P-09")
@pytest.mark.parametrize(
    ("options", "said", "told"),
    [
        ((PARTITIONS, "3"), {}, f"{PARTITIONS} is '3'; allowed are 1, 2, 4"),
        ((PARTITIONS, "4"), {}, "no namespace has the premium tier"),
        (("--tier", "shop=premium"), {}, "no namespace is called 'shop'"),
        ((), {"PremiumMessagingPartitions": 3}, "PremiumMessagingPartitions is 3; expected 1, 2 or 4"),
        ((), {"PremiumMessagingPartitions": 4}, "set to 4, but its tier is standard"),
        ((), {"Tier": "Gold"}, 'Tier is "Gold"; expected Basic, Standard or Premium'),
        (PREMIUM, {}, "leave EnablePartitioning out, or set it to true"),
    ],
)
def test_what_has_no_effect_or_contradicts_the_tier_is_refused_at_the_start(
    tmp_path: Path, options: Sequence[str], said: Properties, told: str
) -> None:
    assert told in refused_start(tmp_path, options, said)


@pytest.mark.row("P-09")
def test_the_message_size_that_is_shown_is_the_one_that_is_enforced(
    start_server: StartServer,
) -> None:
    server = start_server({"described": {}}, None, *PREMIUM)
    with administration(server) as admin:
        admin.create_queue("created")
        admin.create_queue("large", max_message_size_in_kilobytes=2048)
        for wrong in (1023, 102_401):
            with pytest.raises(HttpResponseError, match="MaxMessageSizeInKilobytes"):
                admin.create_queue("wrong", max_message_size_in_kilobytes=wrong)
        sizes = {each.name: each.max_message_size_in_kilobytes for each in admin.list_queues()}
    assert sizes == {"described": 1024, "created": 1024, "large": 2048}
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        for name, kilobytes in sizes.items():
            with client.get_queue_sender(name, keep_alive=0) as sender:
                # Less a little for the sections around the body.
                sender.send_messages(ServiceBusMessage(bytes(kilobytes * 1024 - 512)))
                with pytest.raises(MessageSizeExceededError):
                    sender.send_messages(ServiceBusMessage(bytes(kilobytes * 1024)))


@pytest.mark.row("P-09")
def test_every_queue_is_partitioned_and_takes_large_messages(start_server: StartServer) -> None:
    server = start_server({"big": {"MaxMessageSizeInKilobytes": 102_400}}, None, "--tier", "premium")
    body = bytes(range(256)) * (20 * MEGABYTE // 256)
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender("big", keep_alive=0) as sender:
            sender.send_messages(ServiceBusMessage(body))
            sender.send_messages(ServiceBusMessage(b"small"))
        with client.get_queue_receiver("big", max_wait_time=10) as receiver:
            received = {message.sequence_number >> 48: message for message in receiver.receive_messages(1)}
            received |= {message.sequence_number >> 48: message for message in receiver.receive_messages(1)}
            assert set(received) == {0, 1}
            bodies = sorted((b"".join(message.body) for message in received.values()), key=len)
            assert bodies == [b"small", body]
            for message in received.values():
                receiver.complete_message(message)


def test_a_session_state_of_a_subscription_may_be_as_large_as_a_message_of_its_topic(tmp_path: Path) -> None:
    with serving(tmp_path, PREMIUM) as server, administration(server) as admin:
        topic = admin.create_topic("news")
        admin.create_subscription("news", "s", requires_session=True)
        assert states_kept(server, MEGABYTE, MEGABYTE + 1) == [True, False]
        topic.max_message_size_in_kilobytes = 3072
        admin.update_topic(topic)
        assert states_kept(server, 3 * MEGABYTE, 3 * MEGABYTE + 1) == [True, False]
    with serving(tmp_path) as server:
        assert states_kept(server, 3 * MEGABYTE, 3 * MEGABYTE + 1) == [True, False]


def states_kept(server: ServerProcess, *sizes: int) -> list[bool]:
    """Whether a session of the subscription keeps a state of each of these sizes."""
    kept = []
    with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client,
        client.get_subscription_receiver("news", "s", session_id="a") as receiver,
    ):
        for size in sizes:
            try:
                receiver.session.set_state(bytes(size))
            except MessageSizeExceededError:
                kept.append(False)
            else:
                kept.append(receiver.session.get_state() == bytes(size))
    return kept
