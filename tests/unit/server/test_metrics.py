"""`/metrics`: who sees it, what is in it, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from bendybus.auth.sas import make_token
from bendybus.broker import turns
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.domain.tally import Tally
from bendybus.errors import InvalidOperation, MessageLockLost, MessageSizeExceeded
from bendybus.operations.peeking import session_filter
from bendybus.server import figures
from bendybus.server.metric_families import FAMILIES
from bendybus.server.metrics import exposition
from bendybus.server.metrics_page import _from_this_machine
from bendybus.testing import Server
from fix_client import Endpoint


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def shop(server):
    with server.namespace(queues={"orders": {"enable_partitioning": True}, "plain": {}}, stores=2) as made:
        yield made


@pytest.fixture
def bank(server, shop):
    with server.namespace(queues=["accounts"]) as made:
        yield made


def token(namespace) -> str:
    endpoint = Endpoint.parse(namespace.connection_string)
    return make_token("sb://127.0.0.1/", endpoint.key_name, endpoint.key, int(time.time()) + 600)


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): each for name, each in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(text: str, name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


# -- what is in it ----------------------------------------------------------------------


def test_an_entity_is_counted_as_a_whole_unless_partitions_are_asked_for(server, shop):
    with (
        ServiceBusClient.from_connection_string(shop.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for number in range(5):
            sender.send_messages(ServiceBusMessage(b"x", partition_key=str(number)))
    text = get(server.port)[1]
    counted = samples(text, "bendybus_messages")
    where = {"namespace": shop.name, "entity": "orders", "subqueue": "main", "state": "active"}
    assert counted[labels(**where)] == 5
    assert not any(name == "partition" for each in counted for name, _ in each)
    assert samples(text, "bendybus_partitions")[labels(namespace=shop.name, entity="orders")] == 16
    assert samples(text, "bendybus_partitions_available")[labels(namespace=shop.name, entity="orders")] == 16
    apart = get(server.port, "/metrics?partitions=1")[1]
    by_partition = samples(apart, "bendybus_messages")
    assert sum(by_partition[labels(**where, partition=str(number))] for number in range(16)) == 5
    # One or the other: a sum over a metric counts nothing twice.
    assert labels(**where) not in by_partition
    assert len(samples(apart, "bendybus_partition_available")) == 17


def counts(text: str, namespace, entity: str) -> dict[str, float]:
    """What an entity has counted, by the middle of the metric's name."""
    where = labels(namespace=namespace.name, entity=entity)
    names = (
        *("incoming_messages", "outgoing_messages", "completed_messages", "abandoned_messages"),
        *("dead_lettered_messages", "expired_messages", "lost_locks", "refused_sends", "throttled_sends"),
    )
    found = {name: samples(text, f"bendybus_{name}_total").get(where) for name in names}
    return {name: value for name, value in found.items() if value}


def test_what_happens_to_messages_is_counted(server, shop):
    shop.create_queue("brief", default_message_ttl_s=60, dead_letter_on_expiry=True, lock_duration_s=30)
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("brief").send([encode(b"x")] * 7)
        receiver = client.receiver("brief")
        one, two, three, four = receiver.receive(4)
        receiver.complete([one])
        receiver.abandon([two])
        receiver.dead_letter([three], "why")
        shop.clock.advance(timedelta(seconds=31))
        with pytest.raises(MessageLockLost):
            receiver.complete([four])
        shop.clock.advance(timedelta(seconds=31))
        with pytest.raises(MessageSizeExceeded):
            client.sender("brief").send([encode(b"x" * 300_000)])
        deleting = client.receiver("brief/$DeadLetterQueue", deletes=True)
        assert len(deleting.receive(10)) == 6
        text = get(server.port)[1]
    assert counts(text, shop, "brief") == {
        "incoming_messages": 7,
        "outgoing_messages": 4,
        "completed_messages": 1,
        "abandoned_messages": 1,
        "lost_locks": 1,
        "expired_messages": 5,
        "dead_lettered_messages": 6,
    }


def test_a_send_that_is_refused_is_counted(server, shop):
    shop.create_queue("sessions", requires_session=True)
    settings = ClientSettings.from_connection_string(shop.connection_string)
    with BusClient(settings) as client, pytest.raises(InvalidOperation):
        client.sender("sessions").send([encode(b"x")])
    assert counts(get(server.port)[1], shop, "sessions") == {"refused_sends": 1}


def test_topics_and_subscriptions_are_counted(server, shop):
    shop.create_topic("news")
    shop.create_subscription("news", "all")
    shop.create_subscription("news", "none")
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("news").send([encode(b"x")] * 3)
        receiver = client.receiver("news/Subscriptions/all")
        receiver.complete(receiver.receive(2))
        text = get(server.port)[1]
    assert counts(text, shop, "news") == {"incoming_messages": 3}
    assert counts(text, shop, "news/Subscriptions/none") == {"incoming_messages": 3}
    assert counts(text, shop, "news/Subscriptions/all") == {
        "incoming_messages": 3,
        "outgoing_messages": 2,
        "completed_messages": 2,
    }


def test_a_partition_has_counters_of_its_own_if_asked_for(server, shop):
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("orders").send([encode(b"x", partition_key="k")] * 3, "k")
    counted = samples(get(server.port, "/metrics?partitions=1")[1], "bendybus_incoming_messages_total")
    by_partition = [
        value for each, value in counted.items() if {("entity", "orders"), ("namespace", shop.name)} <= each
    ]
    assert sorted(by_partition) == [0.0] * 15 + [3.0]


def test_times_are_shown_as_histograms(server, shop):
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("plain").send([encode(b"x")] * 2)
        shop.clock.advance(timedelta(seconds=20))
        client.sender("plain").send([encode(b"x")])
        client.receiver("plain").receive(3)
        text = get(server.port)[1]
    where = {"namespace": shop.name, "entity": "plain"}
    buckets = samples(text, "bendybus_delivery_seconds_bucket")
    assert buckets[labels(**where, le="5")] == 1
    assert buckets[labels(**where, le="30")] == buckets[labels(**where, le="+Inf")] == 3
    assert samples(text, "bendybus_delivery_seconds_count")[labels(**where)] == 3
    assert 40 <= samples(text, "bendybus_delivery_seconds_sum")[labels(**where)] < 45
    commits = samples(text, "bendybus_store_commit_seconds_count")
    assert sum(value for each, value in commits.items() if ("namespace", shop.name) in each) > 0


def test_links_and_sessions_are_counted(server, shop):
    shop.create_queue("sessions", requires_session=True)
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        for session in ("a", "b"):
            client.sender("sessions").send([encode(b"x", session_id=session)], session)
        client.receiver("sessions", filters=session_filter("a")).check()
        text = get(server.port)[1]
    where = {"namespace": shop.name, "entity": "sessions"}
    assert samples(text, "bendybus_links")[labels(**where, role="receiver")] == 1
    assert samples(text, "bendybus_links")[labels(**where, role="sender")] == 2
    sessions = samples(text, "bendybus_sessions")
    assert (sessions[labels(**where, state="held")], sessions[labels(**where, state="waiting")]) == (1, 1)


def test_the_stores_show_what_they_do_and_entities_what_they_hold(server, shop):
    shop.create_queue("kept", keep_completed_s=3600)
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("kept").send([encode(b"x" * 100)] * 3)
    text = get(server.port)[1]
    entity = labels(namespace=shop.name, entity="kept")
    assert 300 < samples(text, "bendybus_size_bytes")[entity] < 1500
    assert samples(text, "bendybus_completed_messages_forgotten_early_total")[entity] == 0
    assert sum(samples(text, "bendybus_payload_cache_bytes").values()) >= 300

    def of_its_stores(name: str) -> float:
        found = samples(text, name).items()
        return sum(value for where, value in found if dict(where)["namespace"] == shop.name)

    assert of_its_stores("bendybus_store_commits_total") >= 1
    assert of_its_stores("bendybus_messages_stored_total") == 3
    assert of_its_stores("bendybus_store_failures_total") == 0
    assert of_its_stores("bendybus_store_waiting_seconds") < 60


def test_the_process_shows_what_it_uses(server, shop):
    text = get(server.port)[1]
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert samples(text, name)[frozenset()] > 0
    assert samples(text, "process_max_fds")[frozenset()] >= samples(text, "process_open_fds")[frozenset()]
    assert 0 < time.time() - samples(text, "process_start_time_seconds")[frozenset()] < 86_400
    # A namespace's key tells nothing about the process.
    with server.namespace() as other:
        assert "process_" not in get(server.port, Authorization=token(other))[1]


def test_every_family_has_one_heading_and_its_samples_below_it(server, shop):
    for path in ("/metrics", "/metrics?partitions=1"):
        lines = get(server.port, path)[1].splitlines()
        headings = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(headings) == len(set(headings))
        assert set(headings) <= {family.name for family in FAMILIES}


def test_names_are_escaped():
    assert figures.escaped('a"b\\c\nd') == 'a\\"b\\\\c\\nd'


@pytest.mark.parametrize("query", ["partitions=2", "partitions=yes", "partition=1"])
def test_a_parameter_without_a_meaning_is_refused(server, shop, query):
    status, body = get(server.port, f"/metrics?{query}")
    assert (status, query.split("=")[0] in body) == (400, True)


# -- who sees it ------------------------------------------------------------------------


def test_this_machine_sees_all_namespaces_without_a_token(server, shop, bank):
    # A partition that is still being loaded has no messages to show, but it counts.
    seen = {dict(each)["namespace"] for each in samples(get(server.port)[1], "bendybus_partitions")}
    assert seen == {shop.name, bank.name}


def test_a_namespaces_key_sees_its_own_series_alone(server, shop, bank):
    for own, other in ((shop, bank), (bank, shop)):
        for headers in ({}, {"X_Forwarded_For": "127.0.0.1"}):
            status, text = get(server.port, Authorization=token(own), **headers)
            assert status == 200
            assert f'namespace="{own.name}"' in text and other.name not in text


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Forwarded_For": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"X_Real_IP": "127.0.0.1"},
        {"Via": "1.1 proxy"},
        {"Host": "attacker.example"},
        {"Host": "127.0.0.1.attacker.example"},
        {"Authorization": "SharedAccessSignature sr=x&sig=x&se=1&skn=x"},
        {"Authorization": ""},
    ],
    ids=str,
)
def test_who_may_come_from_elsewhere_needs_a_token_that_counts(server, shop, headers):
    status, body = get(server.port, **headers)
    assert status == 401
    assert "bendybus_" not in body


@pytest.mark.parametrize(
    ("client", "host", "from_here"),
    [
        ("127.0.0.1", "127.0.0.1:5672", True),
        ("127.0.0.9", "localhost", True),
        ("::1", "[::1]:5672", True),
        ("127.0.0.1", "shop.LOCALHOST:5300", True),
        ("10.0.0.9", "127.0.0.1", False),
        ("192.0.2.7", "localhost", False),
        ("fe80::1", "[::1]", False),
        ("127.0.0.1", "[::1", False),
        ("127.0.0.1", "10.0.0.9", False),
    ],
)
def test_this_machine_is_known_by_the_connections_own_address(client, host, from_here):
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/metrics",
        "query_string": b"",
        "scheme": "http",
        "client": (client, 1),
        "server": ("10.0.0.1", 5672),
        "headers": [(b"host", host.encode())],
    }
    assert _from_this_machine(Request(scope)) is from_here


# -- nobody waits for it ------------------------------------------------------------------


async def test_others_have_their_turn_while_the_page_is_made(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    counts = SimpleNamespace(active=1, deferred=0, scheduled=0, locked=0)
    partition = SimpleNamespace(size_bytes=1, counts=lambda subqueue: counts)
    hosts = [
        SimpleNamespace(
            number=number,
            figures=partition,
            availability=None,
            store=SimpleNamespace(name="store-0"),
            tally=Tally(),
        )
        for number in range(16)
    ]
    own = dict(enumerate(hosts))

    async def refresh() -> None:
        """The figures are up to date."""

    class Entity(SimpleNamespace):
        __hash__ = object.__hash__

    queues = [
        Entity(path=f"q{number}", hosts=hosts, own=own, refresh=refresh, refused=0, throttled=0)
        for number in range(50)
    ]
    cache = SimpleNamespace(used_bytes=0)

    class Entities:
        def sources(self) -> list[SimpleNamespace]:
            return [*queues]

        def __iter__(self) -> Iterator[SimpleNamespace]:
            return iter(queues)

    entities = Entities()
    broker = SimpleNamespace(cache=cache, stores=[], entities=entities)
    taken = 0

    async def bystander() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(0)
            taken += 1

    beside = asyncio.create_task(bystander())
    pieces = await exposition([SimpleNamespace(name="n", broker=broker)], (), by_partition=True)
    assert sum(piece.count(b"\n") for piece in pieces) > 50 * 16 * 14
    beside.cancel()
    assert taken >= 50 * 16
