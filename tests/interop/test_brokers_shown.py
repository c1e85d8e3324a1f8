"""What a server with several brokers shows of itself: partitions, connections, stores and the portal (N-02).

Any broker may be asked: the one that has the catalog answers, and asks the others for their parts.
"""

from __future__ import annotations

import html
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import BrokerError
from bendybus.management.http import HttpClient
from fix_processes import run_bendybus
from fix_server import ServerProcess, namespace
from interop.test_brokers import QUEUES, TOPICS, broker_processes
from unit.server.test_portal import Browser

# Each question is asked on new connections, so that it reaches both processes.
TIMES = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For tests that disturb nobody."""
    config = namespace(QUEUES, topics=TOPICS)
    started = ServerProcess(tmp_path_factory.mktemp("brokers"), config, ["--brokers", "2"])
    started.start()
    yield started
    assert started.stop() == 0
    started.refuse_trouble()


def ask(server: ServerProcess, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
    with closing(HttpClient(ConnectionString.parse(server.connection_string))) as http:
        answer = http.request(method, path, None if body is None else json.dumps(body).encode())
        # While the broker that has the catalog cannot be reached, another one says so in XML.
        return answer.status, json.loads(answer.content) if answer.status != 503 else {}


def send(server: ServerProcess, entity: str, count: int) -> None:
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        sender = client.sender(entity)
        for number in range(count):
            sender.post([encode(b"x" * 100, message_id=str(number), partition_key=f"key-{number}")])
        sender.flush()


@contextmanager
def stopped(server: ServerProcess, which: int) -> Iterator[None]:
    """A broker that runs and answers nobody."""
    victim = sorted(broker_processes(server))[which]
    os.kill(victim, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(victim, signal.SIGCONT)


def until_whole(server: ServerProcess) -> None:
    """All partitions are available, whichever broker is asked."""
    for _ in range(TIMES):
        while True:
            status, told = ask(server, "/orders/$partitions")
            if status == 200 and all(each["available"] for each in told["partitions"]):
                break
            time.sleep(0.05)


# -- entities and partitions --------------------------------------------------------


@pytest.mark.row("N-02")
def test_partitions_of_all_brokers_are_shown_with_their_broker(server: ServerProcess) -> None:
    send(server, "orders", 32)
    for _ in range(TIMES):
        status, told = ask(server, "/orders/$partitions")
        assert status == 200
        partitions = told["partitions"]
        assert [each["partition"] for each in partitions] == list(range(16))
        assert Counter(each["broker"] for each in partitions) == {"0": 8, "1": 8}
        assert all(each["available"] and each["storeState"] == "available" for each in partitions)
        assert sum(each["active"] for each in partitions) >= 32
        assert sum(each["arrived"] for each in partitions) >= 32
        assert all(0 < each["oldestEnqueuedAt"] <= told["at"] for each in partitions if each["active"])
        assert {each["broker"] for each in partitions if each["active"]} == {"0", "1"}


def test_the_overview_adds_up_the_partitions_of_all_brokers(server: ServerProcess) -> None:
    before = {each["name"]: each for each in ask(server, "/$overview")[1]["entities"]}
    send(server, "orders", 16)
    send(server, "plain", 3)
    send(server, "events", 16)
    for _ in range(TIMES):
        status, told = ask(server, "/$overview?sort=arrived&descending=true")
        assert status == 200
        entities = {each["name"]: each for each in told["entities"]}
        for name, count in (("orders", 16), ("plain", 3), ("events", 16)):
            now, then = entities[name], before[name]
            assert now["active"] - then["active"] == count
            assert now["arrived"] - then["arrived"] == count
            assert now["sizeBytes"] - then["sizeBytes"] > count * 100
            assert (now["available"], now["limited"]) == (now["partitions"], False)
        arrived = [each["arrived"] for each in told["entities"]]
        assert arrived == sorted(arrived, reverse=True)


def test_a_topic_shows_its_subscriptions_over_all_brokers(server: ServerProcess) -> None:
    before = ask(server, "/events/$partitions")[1]
    send(server, "events", 16)
    told = ask(server, "/events/$partitions")[1]
    assert Counter(each["broker"] for each in told["partitions"]) == {"0": 8, "1": 8}
    assert told["active"] - before["active"] == 16
    (then,), (now,) = before["subscriptions"], told["subscriptions"]
    assert now["active"] - then["active"] == 16
    of_subscription = ask(server, "/events/subscriptions/all/$partitions")[1]
    assert sum(each["active"] for each in of_subscription["partitions"]) == now["active"]


def test_partitions_of_a_broker_that_does_not_answer_are_shown_as_unreachable(server: ServerProcess) -> None:
    with stopped(server, 1):
        status, told = ask(server, "/orders/$partitions")
        assert status == 200
        by_broker: dict[str, list[dict[str, Any]]] = {"0": [], "1": []}
        for each in told["partitions"]:
            by_broker[each["broker"]].append(each)
        assert all(each["available"] for each in by_broker["0"])
        assert [each["state"] for each in by_broker["1"]] == ["unreachable"] * 8
        assert not any(each["available"] or "active" in each for each in by_broker["1"])
        assert ask(server, "/$overview")[0] == 200
    until_whole(server)
    server.take_fresh_log()


def test_counters_are_shown_by_partition_over_all_brokers(server: ServerProcess) -> None:
    send(server, "orders", 16)
    for _ in range(TIMES):
        with closing(HttpClient(ConnectionString.parse(server.connection_string))) as http:
            page = http.request("GET", "/metrics?partitions=1").content.decode()
        labels = 'entity="orders",namespace="interop"'
        sample = rf'bendybus_incoming_messages_total{{{labels},partition="(\d+)"}} (\d+)'
        counted = re.findall(sample, page)
        shown = ask(server, "/orders/$partitions")[1]["partitions"]
        assert {int(number): int(count) for number, count in counted} == {
            each["partition"]: each["arrived"] for each in shown
        }


def test_top_shows_partitions_of_all_brokers(server: ServerProcess, tmp_path: Path) -> None:
    send(server, "orders", 16)
    command = ("top", "--partitions", "--once", "--every", "0.1", "--entity", "orders", "--output", "json")
    shown = run_bendybus(*command, environment=environment(server), folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["rates"]
    assert sorted(each["partition"] for each in rows) == list(range(16))


def environment(server: ServerProcess) -> dict[str, str]:
    return {"BENDYBUS_CONNECTION_STRING": server.connection_string}


# -- connections --------------------------------------------------------------------


@pytest.fixture
def clients(server: ServerProcess) -> Iterator[list[BusClient]]:
    """As many as it takes until both brokers have one."""
    settings = ClientSettings.from_connection_string(server.connection_string)
    with ExitStack() as exits:
        found: list[BusClient] = []
        while {each["broker"] for each in ask(server, "/$connections")[1]["connections"]} != {"0", "1"}:
            client = exits.enter_context(BusClient(settings))
            client.sender("plain").check()
            found.append(client)
        yield found


def test_connections_of_all_brokers_are_shown_a_page_at_a_time(
    server: ServerProcess, clients: list[BusClient]
) -> None:
    for _ in range(TIMES):
        status, told = ask(server, "/$connections")
        assert (status, told["count"], told["unreachableBrokers"]) == (200, len(clients), [])
        shown = told["connections"]
        assert {each["broker"] for each in shown} == {"0", "1"}
        assert all(each["id"].startswith(f"{each['broker']}-") for each in shown)
        assert len({each["id"] for each in shown}) == len(clients)
        assert [each["since"] for each in shown] == sorted(each["since"] for each in shown)
        pages = [ask(server, f"/$connections?skip={skip}&top=1")[1] for skip in range(len(clients))]
        assert [each["id"] for page in pages for each in page["connections"]] == [
            each["id"] for each in shown
        ]


def test_a_connection_is_closed_at_whichever_broker_has_it(
    server: ServerProcess, clients: list[BusClient], tmp_path: Path
) -> None:
    listed = run_bendybus("connection", "list", environment=environment(server), folder=tmp_path)
    assert (listed.returncode, "Broker" in listed.stdout) == (0, True), listed.stderr
    shown = ask(server, "/$connections")[1]["connections"]
    closed = {next(each["id"] for each in shown if each["broker"] == broker) for broker in ("0", "1")}
    for number in closed:
        assert ask(server, f"/$connections/{number}", "DELETE") == (200, {"id": number, "closed": True})
    for unknown in ("7-1", "0-x", "1", "-"):
        assert ask(server, f"/$connections/{unknown}", "DELETE")[0] == 404
    while closed & {each["id"] for each in ask(server, "/$connections")[1]["connections"]}:
        for client in clients:
            # A client notices while it waits for an answer, and connects again.
            with suppress(BrokerError):
                client.sender("plain").send([encode(b"x")])


def test_connections_of_a_broker_that_does_not_answer_are_said_to_be_missing(
    server: ServerProcess, clients: list[BusClient]
) -> None:
    with stopped(server, 1):
        status, told = ask(server, "/$connections")
        assert (status, told["unreachableBrokers"]) == (200, ["1"])
        assert {each["broker"] for each in told["connections"]} == {"0"}
        assert ask(server, "/$connections/1-1", "DELETE")[0] == 503
    until_whole(server)
    server.take_fresh_log()


# -- stores -------------------------------------------------------------------------


def test_stores_of_all_brokers_are_shown_with_their_broker_and_health(
    server: ServerProcess, tmp_path: Path
) -> None:
    for _ in range(TIMES):
        status, told = ask(server, "/$stores")
        assert status == 200
        assert [(each["name"], each["broker"], each["state"]) for each in told["stores"]] == [
            ("store-0", "0", "available"),
            ("store-1", "1", "available"),
        ]
        # Three spread entities of 16, and a queue with one partition.
        assert sum(each["partitions"] for each in told["stores"]) == 4 * 16 + 1
        status, one = ask(server, "/$stores/store-1")
        assert (status, one["broker"], one["entityCount"]) == (200, "1", len(one["placement"]))
        assert sum(len(each["partitions"]) for each in one["placement"]) == one["partitions"]
    assert ask(server, "/$stores/store-7")[0] == 404
    listed = run_bendybus("store", "list", environment=environment(server), folder=tmp_path)
    assert (listed.returncode, "Broker" in listed.stdout) == (0, True), listed.stderr


def test_stores_of_a_broker_that_does_not_answer_are_unknown(server: ServerProcess) -> None:
    with stopped(server, 1):
        status, told = ask(server, "/$stores")
        assert status == 200
        assert [(each["broker"], each["state"]) for each in told["stores"]] == [
            ("0", "available"),
            ("1", "unknown"),
        ]
        assert "does not answer" in told["stores"][1]["reason"]
        assert told["stores"][1]["partitions"] > 0
    until_whole(server)
    server.take_fresh_log()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/$stores", {"url": "sqlite:///x.db"}),
        ("PUT", "/$stores/store-1", {"draining": True}),
        ("DELETE", "/$stores/store-1", None),
        ("DELETE", "/$stores/store-1?forget=true", None),
    ],
)
def test_changes_of_stores_are_refused_by_name(
    server: ServerProcess, method: str, path: str, body: object
) -> None:
    status, told = ask(server, path, method, body)
    assert status == 501
    assert "several brokers" in told["error"]


# -- the portal ---------------------------------------------------------------------


def portal_processes(server: ServerProcess) -> list[int]:
    """Those that the brokers have started."""
    return [
        int(child)
        for broker in broker_processes(server)
        for child in Path(f"/proc/{broker}/task/{broker}/children").read_text().split()
        if b"bendybus_portal" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_one_portal_serves_browsers_of_all_brokers(server: ServerProcess) -> None:
    link = server.next_line()
    found = re.fullmatch(r"portal http://127\.0\.0\.1:\d+(/portal/sign-in\?code=\S+)\n", link)
    assert found is not None, link
    person = Browser(server.port)
    assert person.ask("GET", found[1])[0] == 303
    assert "has been used already" in Browser(server.port).ask("GET", found[1])[2]
    own = f"http://127.0.0.1:{server.port}"
    # A connection for each request: some of them reach the first broker, and some the other one.
    for _ in range(2 * TIMES):
        assert person.ask("GET", "/portal/")[0] == 200
        assert b"101" in person.upgrade(Origin=own, Cookie=person.cookie)
    (running,) = portal_processes(server)
    parents = Path(f"/proc/{running}/stat").read_text().split()[3]
    assert int(parents) == min(broker_processes(server))


@pytest.mark.row("P-36")
def test_pages_show_brokers_and_offer_no_change_of_stores(server: ServerProcess) -> None:
    person = Browser(server.port)
    person.ask("POST", "/portal/sign-in", {"secret": server.connection_string})
    page = html.unescape(person.ask("GET", "/portal/entity?path=orders")[2])
    assert page.count("<dt>Broker</dt><dd>0</dd>") == page.count("<dt>Broker</dt><dd>1</dd>") == 8
    page = html.unescape(person.ask("GET", "/portal/stores")[2])
    for shown in ("Stores and brokers", "store-0", "store-1", "Leads", "Serving"):
        assert shown in page, shown
    for offered in ("Attach a store", "Drain…"):
        assert offered not in page
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        client.sender("plain").check()
        page = html.unescape(person.ask("GET", "/portal/connections")[2])
    assert "Broker" in page and "1 AMQP connection" in page
