"""A server with several broker processes: clients see one server (N-02).

The processes share the listening socket, so which of them a client reaches is not determined. Several clients
make it likely that each process has some; every assertion holds whichever they reach.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import (
    EntityAvailabilityStatus,
    ServiceBusAdministrationClient,
    SqlRuleFilter,
)

from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer, namespace
from interop.sdk import BREAKS_CONNECTIONS
from interop.test_rest import Rest
from interop.traffic import RETRIES, Traffic, all_go_on

pytestmark = BREAKS_CONNECTIONS

CLIENTS = 6

QUEUES = {
    "orders": {"EnablePartitioning": True},
    "plain": {},
    "steps": {"EnablePartitioning": True, "RequiresSession": True},
}
TOPICS = [
    {
        "Name": "events",
        "Properties": {"EnablePartitioning": True},
        "Subscriptions": [{"Name": "all"}],
    }
]


@pytest.fixture
def cluster(start_server: StartServer) -> ServerProcess:
    return start_server(QUEUES, None, "--brokers", "2", topics=TOPICS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of two brokers for the tests that leave it as they found it."""
    options = ("--brokers", "2")
    server = ServerProcess(tmp_path_factory.mktemp("brokers"), namespace(QUEUES, topics=TOPICS), options)
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


@contextmanager
def clients_of(server: ServerProcess) -> Iterator[list[ServiceBusClient]]:
    """Several connections."""
    with ExitStack() as exits:
        yield [
            exits.enter_context(ServiceBusClient.from_connection_string(server.connection_string, **RETRIES))
            for _ in range(CLIENTS)
        ]


@pytest.fixture
def clients(shared: ServerProcess) -> Iterator[list[ServiceBusClient]]:
    with clients_of(shared) as clients:
        yield clients


def at_once(call: Callable[[int, ServiceBusClient], None], clients: Iterable[ServiceBusClient]) -> None:
    """`call(number, client)` for each client, in a thread of its own: the SDK sleeps most of the time."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(call, count(), clients))


def administration(server: ServerProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        server.connection_string, connection_verify=str(server.certificate), retry_total=0
    )


def broker_processes(server: ServerProcess) -> list[int]:
    """The processes that the supervisor has started."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [pid for pid in map(int, children) if b"broker_process" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """Of this process. Empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def started_again(server: ServerProcess, killed: int, count: int = 2) -> None:
    """Wait until the supervisor has replaced a process that was killed."""
    while killed in (running := broker_processes(server)) or len(running) < count:
        time.sleep(0.01)


@pytest.mark.row("N-02")
def test_every_client_reaches_every_partition(shared: ServerProcess, clients: list[ServiceBusClient]) -> None:
    assert len(broker_processes(shared)) == 2

    def send(number: int, client: ServiceBusClient) -> None:
        with client.get_queue_sender("orders", keep_alive=0) as sender:
            for key in range(16):
                sender.send_messages(ServiceBusMessage(f"{number}/{key}", partition_key=f"key-{key}"))

    at_once(send, clients)
    with administration(shared) as admin:
        assert admin.get_queue_runtime_properties("orders").active_message_count == CLIENTS * 16
    rest = {f"{number}/{key}" for number in range(CLIENTS) for key in range(16)}

    def receive(_: int, client: ServiceBusClient) -> None:
        with client.get_queue_receiver("orders") as receiver:
            for _ in range(16):
                (message,) = receiver.receive_messages(1, max_wait_time=20)
                receiver.complete_message(message)
                rest.remove(str(message))

    at_once(receive, clients)
    assert not rest
    with administration(shared) as admin:
        assert admin.get_queue_runtime_properties("orders").total_message_count == 0


@pytest.mark.row("N-02")
def test_sessions_and_their_states_are_the_same_for_all_clients(clients: list[ServiceBusClient]) -> None:
    def send(number: int, client: ServiceBusClient) -> None:
        with client.get_queue_sender("steps", keep_alive=0) as sender:
            sender.send_messages(
                [ServiceBusMessage(str(step), session_id=f"session-{number}") for step in range(5)]
            )

    def receive_by_name(number: int, client: ServiceBusClient) -> None:
        with client.get_queue_receiver("steps", session_id=f"session-{number}") as receiver:
            receiver.session.set_state(b"seen by %d" % number)
            taken: list[str] = []
            while len(taken) < 3:
                for message in receiver.receive_messages(3 - len(taken), max_wait_time=20):
                    receiver.complete_message(message)
                    taken.append(str(message))
            assert taken == ["0", "1", "2"]

    seen: dict[str, list[str]] = {}

    def receive_next(_: int, client: ServiceBusClient) -> None:
        with client.get_queue_receiver("steps", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            name = receiver.session.session_id
            assert receiver.session.get_state() == b"seen by " + name[-1].encode()
            seen[name] = []
            while len(seen[name]) < 2:
                for message in receiver.receive_messages(2, max_wait_time=20):
                    receiver.complete_message(message)
                    seen[name].append(str(message))

    at_once(send, clients)
    at_once(receive_by_name, reversed(clients))
    at_once(receive_next, clients)
    assert seen == {f"session-{number}": ["3", "4"] for number in range(CLIENTS)}


@pytest.mark.row("N-02")
def test_requests_in_a_session_over_http_may_reach_any_broker(shared: ServerProcess) -> None:
    with ExitStack() as exits:
        rests = [Rest(shared, "steps") for _ in range(CLIENTS)]
        for rest in rests:
            exits.callback(rest.connection.close)
        for number, rest in enumerate(rests):
            for other in rests:
                other.send("x", {"SessionId": f"http-{number}"})
            # By name, or the next one: there is no other.
            accepted = rest.ask(
                "POST", f"/steps/sessions{f'/http-{number}' if number % 2 else ''}?timeout=20"
            )
            assert accepted.status == 201
            for other in rests:
                assert other.ask("POST", f"/steps/sessions/http-{number}?timeout=0").status == 410
                message = other.ask("POST", f"{accepted.place}/messages/head?timeout=0")
                assert message.status == 201
                assert rest.ask("DELETE", message.place).status == 200
                assert other.ask("PUT", f"{accepted.place}/state", b"seen").status == 200
                assert rest.ask("GET", f"{accepted.place}/state").body == b"seen"
            assert rest.ask("DELETE", f"{accepted.place}/messages/head?timeout=0").status == 204
            assert rest.ask("DELETE", f"{accepted.place}/state").status == 200
            assert rests[-1].ask("DELETE", accepted.place).status == 200


@pytest.mark.row("N-02")
def test_a_topic_and_its_rules_are_the_same_for_all_clients(
    shared: ServerProcess, clients: list[ServiceBusClient]
) -> None:
    with administration(shared) as admin:
        admin.create_subscription("events", "large")
        admin.create_rule("events", "large", "large", filter=SqlRuleFilter("size > 5"))
        admin.delete_rule("events", "large", "$Default")

    def send(number: int, client: ServiceBusClient) -> None:
        with client.get_topic_sender("events", keep_alive=0) as sender:
            for size in (3, 9):
                sender.send_messages(
                    ServiceBusMessage(f"{number}/{size}", application_properties={"size": size})
                )

    at_once(send, clients)
    for name, sizes in (("all", (3, 9)), ("large", (9,))):
        rest = {f"{number}/{size}" for number in range(CLIENTS) for size in sizes}
        with clients[0].get_subscription_receiver("events", name) as receiver:
            while rest:
                for message in receiver.receive_messages(50, max_wait_time=20):
                    receiver.complete_message(message)
                    rest.remove(str(message))


@pytest.mark.row("N-02")
def test_management_is_right_at_every_broker(shared: ServerProcess, clients: list[ServiceBusClient]) -> None:
    def make(number: int, client: ServiceBusClient) -> None:
        # A connection of its own for each call.
        with administration(shared) as admin:
            admin.create_queue(f"made-{number}", enable_partitioning=bool(number % 2))
        with client.get_queue_sender(f"made-{number}", keep_alive=0) as sender:
            sender.send_messages(ServiceBusMessage("x"))

    def delete(number: int, _: ServiceBusClient) -> None:
        with administration(shared) as admin:
            assert f"made-{number}" in {queue.name for queue in admin.list_queues()}
            assert admin.get_queue_runtime_properties(f"made-{number}").active_message_count == 1
            admin.delete_queue(f"made-{number}")
        once = ServiceBusClient.from_connection_string(shared.connection_string, retry_total=0)
        with once, pytest.raises(ServiceBusError), once.get_queue_sender(f"made-{number}") as sender:
            sender.send_messages(ServiceBusMessage("x"))

    at_once(make, clients)
    at_once(delete, clients)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.row("N-02")
def test_a_broker_that_is_killed_comes_back_and_nothing_acknowledged_is_lost(
    start_server: StartServer, which: int
) -> None:
    """With messages and with sessions at the same time."""
    names = ("orders", "steps")
    queues = {name: {**QUEUES[name], "LockDuration": "PT5S"} for name in names}
    server = start_server(queues, None, "--brokers", "2")
    traffics = [Traffic([server.connection_string], name) for name in names]
    for traffic in traffics:
        traffic.start()
    for _ in range(2):
        all_go_on(traffics)
        victim = sorted(broker_processes(server))[which]
        os.kill(victim, signal.SIGKILL)
        started_again(server, victim)
    all_go_on(traffics)
    for traffic in traffics:
        traffic.sending.clear()
    for traffic in traffics:
        traffic.finish()
        assert traffic.acknowledged <= traffic.received
    server.expect_trouble("has ended with -9 and is started again")


def test_a_server_that_was_killed_starts_again_with_all_brokers(cluster: ServerProcess) -> None:
    client = ServiceBusClient.from_connection_string(cluster.connection_string, **RETRIES)
    with client, client.get_queue_sender("orders", keep_alive=0) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(40)])
    processes = broker_processes(cluster)
    cluster.kill()
    cluster.start()

    assert not set(processes) & set(broker_processes(cluster))
    with administration(cluster) as admin:
        # Until the brokers are connected, each counts what it has itself, and says so.
        while admin.get_queue("orders").availability_status != EntityAvailabilityStatus.AVAILABLE:
            time.sleep(0.01)
        assert admin.get_queue_runtime_properties("orders").active_message_count == 40
    assert cluster.stop() == 0


@pytest.mark.one_broker("process")
def test_a_server_with_more_brokers_keeps_what_one_broker_had(start_server: StartServer) -> None:
    server = start_server(QUEUES)
    client = ServiceBusClient.from_connection_string(server.connection_string, **RETRIES)
    with client, client.get_queue_sender("orders", keep_alive=0) as sender:
        for key in range(16):
            sender.send_messages(ServiceBusMessage("x", partition_key=str(key)))
    assert server.stop() == 0
    for options in (["--brokers", "3"], ["--brokers", "2"], []):
        server._options = options
        server.start()
        with administration(server) as admin:
            assert admin.get_queue_runtime_properties("orders").active_message_count == 16
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--brokers", "none"], "--brokers is 'none'"),
        (["--brokers", "0"], "--brokers is '0'"),
        (["--brokers", "2", "--development"], "--development cannot be used together yet"),
        (["--brokers", "2", "--namespace", "other"], "several namespaces cannot be used together yet"),
        (["--brokers", "2", "--store", "sqlite:///tmp/x.db"], "--store cannot be used together yet"),
    ],
)
def test_what_does_not_work_with_several_brokers_is_refused_in_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    server = ServerProcess(tmp_path, {"UserConfig": {"Namespaces": [{"Name": "interop"}]}}, options)
    ended = subprocess.run(server.command(), capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert said in ended.stderr


@pytest.mark.row("N-02")
def test_metrics_and_health_are_those_of_the_whole_server(
    cluster: ServerProcess,
) -> None:
    with clients_of(cluster) as clients, ExitStack() as exits:
        for client in clients:
            sender = exits.enter_context(client.get_queue_sender("orders", keep_alive=0))
            sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        for _ in range(4):
            shown = urlopen(f"http://127.0.0.1:{cluster.port}/metrics", timeout=20).read().decode()
            assert f"bendybus_connections {CLIENTS}\n" in shown
            assert 'entity="orders",namespace="interop",state="active",subqueue="main"} 12\n' in shown
            assert shown.count("bendybus_store_available{") == 2
            assert urlopen(f"http://127.0.0.1:{cluster.port}/health", timeout=20).status == 200


def test_a_selector_finds_messages_at_all_brokers(cluster: ServerProcess, tmp_path: Path) -> None:
    with ServiceBusClient.from_connection_string(cluster.connection_string, **RETRIES) as client:
        with client.get_queue_sender("orders") as sender:
            for number in range(12):
                properties: dict[str | bytes, Any] = {"size": number}
                sender.send_messages(
                    ServiceBusMessage("x", partition_key=str(number), application_properties=properties)
                )
        with client.get_queue_receiver("orders") as receiver:
            for _ in range(12):
                (message,) = receiver.receive_messages(1, max_wait_time=20)
                receiver.dead_letter_message(message)
    command = ("dead-letter", "resubmit", "orders", "--selector", "size > 5", "--data", str(cluster.data))
    ended = run_bendybus(*command, environment={}, folder=tmp_path)

    assert ended.returncode == 0, ended.stderr
    with (
        ServiceBusClient.from_connection_string(cluster.connection_string, **RETRIES) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        sizes = []
        while len(sizes) < 6:
            for message in receiver.receive_messages(6, max_wait_time=20):
                assert message.application_properties is not None
                sizes.append(message.application_properties[b"size"])
                receiver.complete_message(message)
    assert sorted(sizes) == list(range(6, 12))
