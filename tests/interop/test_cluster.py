"""A cluster of brokers on PostgreSQL: real processes, killed and stopped, with the official SDK.

Each broker has its own port. Which broker owns which messaging store is decided by their names, so clients of
every broker reach partitions of all others.
"""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from bendybus.client import BusClient, ClientSettings
from bendybus.operations.peeking import selector_filter
from fix_machines import LOOPBACK, Machine
from fix_postgres import Pair, Postgres
from fix_processes import BENDYBUS, run_bendybus
from fix_server import ServerProcess, namespace
from interop.sdk import BREAKS_CONNECTIONS
from interop.test_brokers_shown import ask
from interop.traffic import RETRIES, Traffic, all_go_on
from unit.server.test_portal import Browser

pytestmark = BREAKS_CONNECTIONS

STORES = 4
# What a receiver had locked when it met an error comes back soon.
LOCK = timedelta(seconds=5)


class Broker(ServerProcess):
    """One process of the cluster."""

    may_be_cluster = False

    def __init__(self, folder: Path, name: str, options: Sequence[str], machine: Machine = LOOPBACK) -> None:
        folder.mkdir()
        super().__init__(folder, {}, options)
        self.name = name
        self._machine = machine

    def command(self) -> list[str]:
        address = self._machine.address
        return [
            *self._machine.enter,
            *(BENDYBUS, "serve", "--data", str(self.data), "--broker", self.name, *self._options),
            *("--host", address, "--cluster-address", f"{address}:0"),
            *("--port", str(self.port), "--admin-port", "0"),
        ]


class Cluster:
    def __init__(
        self,
        folder: Path,
        *servers: Postgres | Pair,
        machines: Mapping[str, Machine] | None = None,
    ) -> None:
        """`servers`: the catalog is in the first; the stores are in each in turn. `machines`: of brokers."""
        self._folder = folder
        self._servers = servers
        self._machines = machines or {}
        databases = [server.new_database() for server in servers]
        self.database = databases[0]
        self._stores = [
            (servers[number % len(servers)], databases[number % len(servers)]) for number in range(STORES)
        ]
        stores = [
            server.url(database, schema=f"s{number}", name=f"s{number}")
            for number, (server, database) in enumerate(self._stores)
        ]
        self.options = ["--cluster", servers[0].url(self.database), *(f"--store={url}" for url in stores)]
        self.brokers: dict[str, Broker] = {}

    def start(self, first: str, *others: str, options: Sequence[str] = ()) -> None:
        """The first one leads, if none does. The others start at the same time."""
        for name in (first, *others):
            if name not in self.brokers:
                machine = self._machines.get(name, LOOPBACK)
                given = [*self.options, *options]
                self.brokers[name] = Broker(self._folder / name, name, given, machine)
        self.brokers[first].start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.brokers[name].start(), others))

    def __getitem__(self, name: str) -> Broker:
        return self.brokers[name]

    def connection_strings(self, names: str) -> list[str]:
        return [self.brokers[name].connection_string for name in names]

    def ask(self, query: str) -> Any:
        with self._servers[0].connect(self.database) as connection:
            return connection.execute(query).fetchall()

    def owners(self) -> list[str]:
        """The broker that each store names as its owner."""
        found = []
        for number, (server, database) in enumerate(self._stores):
            with server.connect(database) as connection:
                row = connection.execute(f"SELECT broker FROM s{number}.owner").fetchone()
            assert row is not None
            found.append(row[0])
        return found

    @property
    def leader(self) -> str:
        return self.ask("SELECT broker FROM bendybus_cluster.leader")[0][0]

    def administration(self, name: str) -> ServiceBusAdministrationClient:
        broker = self.brokers[name]
        return ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string,
            connection_verify=str(broker.certificate),
            # While no broker leads, or none owns a store, management calls fail and can be repeated.
            retry_total=20,
            retry_backoff_factor=0.1,
            retry_backoff_max=0.5,
        )

    def close(self) -> None:
        running = [broker for broker in self.brokers.values() if broker.running]
        for broker in running:
            broker.send_signal(signal.SIGCONT)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Broker.stop, running))


@pytest.fixture
def cluster(tmp_path: Path, postgres: Postgres) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, postgres)
    yield cluster
    cluster.close()


def until(holds: Callable[[], bool]) -> None:
    """For what processes do without telling anyone."""
    while not holds():
        time.sleep(0.02)


def client_of(broker: ServerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string, **RETRIES)


def bendybus(*command: str, cluster: Cluster) -> Any:
    """What the command says, at a broker that does not lead."""
    data = cluster["c"].data
    while True:
        done = run_bendybus(*command, "--data", str(data), environment={}, folder=data)
        # A broker that leads and was restarted a moment ago may not be connected yet.
        if done.returncode == 0 or "Please retry the operation" not in done.stderr:
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)


@pytest.mark.row("N-01")
def test_a_client_of_any_broker_reaches_everything(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    until(lambda: len(set(cluster.owners())) == 3)
    for number, name in enumerate("abc"):
        # Whichever broker is asked: the one that leads makes the change.
        with cluster.administration(name) as admin:
            admin.create_queue(f"queue-{number}", enable_partitioning=True)
    with ExitStack() as exits:
        clients = {name: exits.enter_context(client_of(cluster[name])) for name in "abc"}
        for name, client in clients.items():
            with client.get_queue_sender("queue-0", keep_alive=0) as sender:
                for key in range(16):
                    sender.send_messages(ServiceBusMessage(f"{name}/{key}", partition_key=f"key-{key}"))
        rest = {f"{name}/{key}" for name in "abc" for key in range(16)}
        for client in clients.values():
            with client.get_queue_receiver("queue-0") as receiver:
                for _ in range(16):
                    (message,) = receiver.receive_messages(1, max_wait_time=20)
                    receiver.complete_message(message)
                    rest.remove(str(message))
        assert not rest
    for name in "abc":
        with cluster.administration(name) as admin:
            assert {queue.name for queue in admin.list_queues()} == {"queue-0", "queue-1", "queue-2"}
            assert admin.get_queue_runtime_properties("queue-0").total_message_count == 0
    listed = bendybus("broker", "list", "-o", "json", cluster=cluster)
    assert [(each["name"], each["state"], each["leads"]) for each in listed] == [
        ("a", "serving", True),
        ("b", "serving", False),
        ("c", "serving", False),
    ]
    assert sorted(store for each in listed for store in each["stores"]) == ["s0", "s1", "s2", "s3"]
    shown = [bendybus("broker", "show", name, "-o", "json", cluster=cluster) for name in "abc"]
    assert sorted(number for each in shown for number in each["entities"]["queue-0"]) == list(range(16))
    partitions = bendybus("queue", "show", "queue-0", "--owners", "-o", "json", cluster=cluster)
    assert [each["number"] for each in partitions] == list(range(16))
    assert {(each["store"], each["owner"]) for each in partitions} == {
        (f"s{number}", owner) for number, owner in enumerate(cluster.owners())
    }
    for name in "cba":
        assert cluster[name].stop() == 0
        cluster[name].refuse_trouble()


def test_a_description_is_applied_whichever_broker_is_given_it(cluster: Cluster, tmp_path: Path) -> None:
    def described(name: str, *queues: str) -> list[str]:
        file = tmp_path / f"{name}.json"
        rule = {"Name": f"rule-{name}", "PrimaryKey": f"key-{name}", "Rights": ["Listen"]}
        config = namespace({queue: {"EnablePartitioning": True} for queue in queues}, {"": [rule]})
        file.write_text(json.dumps(config))
        return ["--config", str(file)]

    cluster.start("a", options=described("a", "orders", "parcels"))
    # This one does not lead.
    cluster.start("b", options=described("b", "orders", "letters"))
    assert cluster.leader == "a"
    for name in "ab":
        with cluster.administration(name) as admin:
            assert [queue.name for queue in admin.list_queues()] == ["letters", "orders", "parcels"]
        rules = ask(cluster[name], "/$authorizationRules")
        assert "rule-a" in str(rules) and "rule-b" in str(rules)
    with client_of(cluster["a"]) as client, client.get_queue_sender("letters") as sender:
        sender.send_messages([ServiceBusMessage("x")])
    # What cannot be had is refused by the broker that leads, in the words of the one that asked.
    wrong = described("c", "orders")
    file = Path(wrong[1])
    file.write_text(file.read_text().replace("true", "false"))
    broker = Broker(tmp_path / "c", "c", [*cluster.options, *wrong])
    ended = subprocess.run(broker.command(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "c.json: " in ended.stderr and "partition" in ended.stderr.lower()


def test_every_broker_has_a_portal_and_shows_what_all_have(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    until(lambda: len(set(cluster.owners())) == 3)
    with cluster.administration("b") as admin:
        admin.create_queue("orders", enable_partitioning=True)
    with ExitStack() as exits:
        for name in "abc":
            client = exits.enter_context(client_of(cluster[name]))
            exits.enter_context(client.get_queue_sender("orders", keep_alive=0)).send_messages(
                ServiceBusMessage("x")
            )
        for name in "abc":
            partitions = ask(cluster[name], "/orders/$partitions")[1]["partitions"]
            assert {(each["store"], each["broker"]) for each in partitions} == {
                (f"s{number}", owner) for number, owner in enumerate(cluster.owners())
            }
            assert sum(each["active"] for each in partitions) == 3
            stores = ask(cluster[name], "/$stores")[1]["stores"]
            assert [each["broker"] for each in stores] == cluster.owners()
            connections = ask(cluster[name], "/$connections")[1]["connections"]
            assert sorted(each["broker"] for each in connections) == ["a", "b", "c"]
            person = Browser(cluster[name].port)
            person.ask("POST", "/portal/sign-in", {"secret": cluster[name].connection_string})
            assert person.ask("GET", "/portal/")[0] == 200
    for name in "cba":
        assert cluster[name].stop() == 0
        cluster[name].refuse_trouble()


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.row("N-04")
def test_when_a_broker_is_killed_others_serve_its_partitions_and_nothing_acknowledged_is_lost(
    cluster: Cluster, victim: str
) -> None:
    """With messages and with sessions at the same time."""
    names = ("orders", "steps")
    cluster.start("a", "b", "c")
    until(lambda: len(set(cluster.owners())) == 3)
    assert cluster.leader == "a"
    with cluster.administration("c") as admin:
        for name in names:
            sessions = name == "steps"
            admin.create_queue(name, enable_partitioning=True, requires_session=sessions, lock_duration=LOCK)
    survivors = cluster.connection_strings("abc".replace(victim, ""))
    traffics = [Traffic(survivors, name) for name in names]
    for traffic in traffics:
        traffic.start()
    all_go_on(traffics)

    cluster[victim].kill()
    until(lambda: victim not in cluster.owners())
    all_go_on(traffics)
    until(lambda: cluster.leader != victim)
    with cluster.administration("c") as admin:
        admin.create_queue("made-afterwards")
    cluster.start(victim)
    until(lambda: victim in cluster.owners())
    all_go_on(traffics)
    for traffic in traffics:
        traffic.sending.clear()
    for traffic in traffics:
        traffic.finish()
        assert traffic.acknowledged <= traffic.received
        assert not traffic.refused
    with cluster.administration(victim) as admin:
        assert {queue.name for queue in admin.list_queues()} == {*names, "made-afterwards"}


@pytest.mark.row("N-04")
def test_partitions_that_a_killed_broker_left_behind_are_removed(cluster: Cluster) -> None:
    def partitions() -> list[str]:
        found = [cluster.ask(f"SELECT entity FROM s{number}.partition") for number in range(STORES)]
        return [entity for rows in found for (entity,) in rows]

    cluster.start("a", "b", "c")
    until(lambda: len(set(cluster.owners())) == 3)
    with cluster.administration("a") as admin:
        admin.create_queue("orders", enable_partitioning=True)
    for number in range(STORES):
        # As if its owner had died between the deletion in the catalog and the one in the store.
        made = f"INSERT INTO s{number}.partition (entity, number, next_sequence) VALUES ('gone', 0, 1)"
        cluster.ask(f"{made} RETURNING key")
    cluster["b"].kill()
    # A row without an entity stays until its messages are deleted.
    until(lambda: "gone" not in partitions())
    until(lambda: partitions() == ["orders"] * 16)
    with client_of(cluster["c"]) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(100)])
    removals = [cluster[name].log.read_text().count("removing partitions of 'gone'") for name in "ac"]
    assert sum(removals) == STORES


@pytest.mark.row("N-03", "N-04")
def test_a_broker_that_was_stopped_for_a_while_cannot_write_what_others_own(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    until(lambda: len(set(cluster.owners())) == 3)
    with cluster.administration("a") as admin:
        admin.create_queue("orders", enable_partitioning=True, lock_duration=LOCK)
    traffic = Traffic(cluster.connection_strings("bc"), "orders")
    own = Traffic(cluster.connection_strings("a"), "orders", "own ")
    traffic.start()
    own.start()
    traffic.goes_on()
    for _ in range(2):
        cluster["a"].send_signal(signal.SIGSTOP)
        until(lambda: "a" not in cluster.owners() and cluster.leader != "a")
        traffic.goes_on()

        cluster["a"].send_signal(signal.SIGCONT)
        until(lambda: "a" in cluster.owners())
        traffic.goes_on()
        own.goes_on(10)
    both = [traffic, own]
    for each in both:
        each.sending.clear()
    until(lambda: own.acknowledged | traffic.acknowledged <= own.received | traffic.received)
    for each in both:
        each.acknowledged.clear()
        each.finish()


@pytest.mark.row("N-05")
def test_brokers_that_join_and_leave_end_no_lock_and_no_session(cluster: Cluster) -> None:
    cluster.start("a", "b")
    until(lambda: len(set(cluster.owners())) == 2)
    with cluster.administration("a") as admin:
        admin.create_queue("orders", enable_partitioning=True)
        admin.create_queue("steps", enable_partitioning=True, requires_session=True)
    sessions = [f"s{number}" for number in range(8)]
    with ExitStack() as exits:
        # Clients of the broker that stays; it owns some of the stores.
        client = exits.enter_context(client_of(cluster["b"]))
        with client.get_queue_sender("orders", keep_alive=0) as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(64)])
        receiver = exits.enter_context(client.get_queue_receiver("orders"))
        locked = []
        while len(locked) < 64:
            locked += receiver.receive_messages(64 - len(locked), max_wait_time=20)
        holders = []
        with client.get_queue_sender("steps", keep_alive=0) as sender:
            for session in sessions:
                sender.send_messages([ServiceBusMessage(text, session_id=session) for text in "12"])
                holder = client.get_queue_receiver("steps", session_id=session)
                holders.append(exits.enter_context(holder))
        first = [holder.receive_messages(1, max_wait_time=20) for holder in holders]

        cluster.start("c")
        until(lambda: len(set(cluster.owners())) == 3)
        assert cluster["a"].stop() == 0
        until(lambda: not {"a", ""} & set(cluster.owners()))

        for message in locked:
            receiver.complete_message(message)
        for holder, (message,), session in zip(holders, first, sessions, strict=True):
            holder.session.set_state(session)
            (second,) = holder.receive_messages(1, max_wait_time=20)
            assert (str(message), str(second)) == ("1", "2")
            for each in (message, second):
                holder.complete_message(each)
            assert holder.session.get_state() == session.encode()
    with cluster.administration("c") as admin:
        for name in ("orders", "steps"):
            assert admin.get_queue_runtime_properties(name).total_message_count == 0


def test_a_store_is_added_by_restarting_one_broker_after_the_other(cluster: Cluster) -> None:
    cluster.start("b", "c")
    until(lambda: len(set(cluster.owners())) == 2)
    refused = run_bendybus(
        *("store", "attach", "sqlite:///tmp/x.db", "--data", str(cluster["c"].data)),
        environment={},
        folder=cluster["c"].data,
    )
    assert refused.returncode != 0 and "each with one more --store" in refused.stderr
    cluster.options.append(cluster.options[-1].replace("s3", "s4"))
    for name in "bc":
        assert cluster[name].stop() == 0
        cluster[name]._options = tuple(cluster.options)
        cluster.start(name)
        until(lambda: not {""} & set(cluster.owners()))
    until(lambda: cluster.ask("SELECT broker FROM s4.owner")[0][0] != "")
    with cluster.administration("b") as admin:
        admin.create_queue("orders", enable_partitioning=True)
    partitions = bendybus("queue", "show", "orders", "--owners", "-o", "json", cluster=cluster)
    assert {each["store"] for each in partitions} == {"s0", "s1", "s2", "s3", "s4"}
    with client_of(cluster["c"]) as client, client.get_queue_sender("orders", keep_alive=0) as sender:
        for number in range(16):
            sender.send_messages(ServiceBusMessage(str(number)))


def health_of(broker: ServerProcess) -> tuple[int, Any]:
    try:
        with urlopen(f"http://127.0.0.1:{broker.port}/health", timeout=20) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


@pytest.mark.row("N-05")
def test_a_broker_is_drained_and_takes_part_again(cluster: Cluster) -> None:
    cluster.start("c", "d")
    until(lambda: len(set(cluster.owners())) == 2)
    with cluster.administration("c") as admin:
        admin.create_queue("orders", enable_partitioning=True)
    with client_of(cluster["c"]) as client, client.get_queue_receiver("orders") as receiver:
        with client.get_queue_sender("orders", keep_alive=0) as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(32)])
        locked = []
        while len(locked) < 32:
            locked += receiver.receive_messages(32 - len(locked), max_wait_time=20)

        assert bendybus("broker", "drain", "c", "-o", "json", cluster=cluster)["state"] == "draining"

        assert set(cluster.owners()) == {"d"}
        code, health = health_of(cluster["c"])
        assert (code, health["status"]) == (503, "draining")
        assert "The broker 'c' is draining" in health["message"]
        assert health_of(cluster["d"])[1]["status"] == "healthy"
        listed = bendybus("broker", "list", "-o", "json", cluster=cluster)
        assert [(each["name"], each["state"], bool(each["stores"])) for each in listed] == [
            ("c", "draining", False),
            ("d", "serving", True),
        ]
        for message in locked:
            receiver.complete_message(message)
        folder = cluster["c"].data
        last = run_bendybus("broker", "drain", "d", "--data", str(folder), environment={}, folder=folder)
        assert last.returncode != 0 and "No other broker is serving" in last.stderr

    assert bendybus("broker", "drain", "c", "--stop", "-o", "json", cluster=cluster)["state"] == "serving"
    until(lambda: len(set(cluster.owners())) == 2)
    assert health_of(cluster["c"])[0] == 200


@pytest.mark.row("N-05")
def test_a_receiver_with_a_selector_goes_on_when_stores_change_their_owners(cluster: Cluster) -> None:
    cluster.start("c", "d")
    until(lambda: len(set(cluster.owners())) == 2)
    with cluster.administration("c") as admin:
        admin.create_queue("orders", enable_partitioning=True)
    settings = ClientSettings.from_connection_string(cluster["c"].connection_string)
    with BusClient(settings) as client, client_of(cluster["d"]) as other:
        receiver = client.receiver("orders", filters=selector_filter("colour = 'red'"))

        def send_and_receive() -> None:
            with other.get_queue_sender("orders", keep_alive=0) as sender:
                for number in range(32):
                    colour: dict[str | bytes, Any] = {"colour": "red" if number % 2 else "blue"}
                    key = str(number // 2)
                    message = ServiceBusMessage("x", partition_key=key, application_properties=colour)
                    sender.send_messages(message)
            received = 0
            while received < 16:
                messages = receiver.receive(16 - received, timeout_s=20)
                assert {each.application_properties["colour"] for each in messages} == {"red"}
                receiver.complete(messages)
                received += len(messages)

        send_and_receive()
        bendybus("broker", "drain", "c", "-o", "json", cluster=cluster)
        assert set(cluster.owners()) == {"d"}
        send_and_receive()
        bendybus("broker", "drain", "c", "--stop", "-o", "json", cluster=cluster)
        until(lambda: len(set(cluster.owners())) == 2)
        send_and_receive()


@pytest.mark.row("N-05")
def test_brokers_are_restarted_one_by_one_under_load(cluster: Cluster) -> None:
    cluster.start("a", "b", "c")
    until(lambda: len(set(cluster.owners())) == 3)
    with cluster.administration("a") as admin:
        admin.create_queue("orders", enable_partitioning=True, lock_duration=LOCK)
    traffic = Traffic(cluster.connection_strings("c"), "orders")
    traffic.start()
    for name in "ab":
        traffic.goes_on()
        assert cluster[name].stop() == 0
        until(lambda name=name: name not in cluster.owners() and "" not in cluster.owners())
        traffic.goes_on()
        cluster.start(name)
        until(lambda name=name: name in cluster.owners())
    traffic.goes_on()
    traffic.finish()
    assert traffic.acknowledged <= traffic.received
    assert not traffic.refused


@pytest.mark.row("N-09")
def test_a_process_that_is_not_a_member_is_refused(cluster: Cluster) -> None:
    cluster.start("a")
    ((address,),) = cluster.ask("SELECT address FROM bendybus_cluster.broker")
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), 20) as plain:
        plain.settimeout(20)
        # Without the cluster's certificate nothing is said and nothing is read.
        with pytest.raises((ssl.SSLError, ConnectionError)), context.wrap_socket(plain) as link:
            assert link.recv(1) == b""
            raise ConnectionResetError


@pytest.mark.row("N-08")
def test_messages_flow_while_the_catalog_is_away(cluster: Cluster, own_postgres: Postgres) -> None:
    """The catalog is in another server than the stores."""
    catalog = own_postgres.new_database()
    cluster.options[1] = own_postgres.url(catalog)
    cluster.start("a", "b")
    until(lambda: len(set(cluster.owners())) == 2)
    with cluster.administration("a") as admin:
        admin.create_queue("orders", enable_partitioning=True, lock_duration=LOCK)
        traffic = Traffic(cluster.connection_strings("ab"), "orders")
        traffic.start()
        own_postgres.stop("immediate")
        traffic.goes_on(200)
        with pytest.raises(AzureError):
            admin.create_queue("another", retry_total=0)
        own_postgres.start()
        admin.create_queue("another")
    traffic.goes_on()
    traffic.finish()
    assert traffic.acknowledged <= traffic.received


STORE = "--store=postgresql://x@127.0.0.1:1/d"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cluster", "sqlite:///x.db", STORE], "--cluster sqlite:///x.db: write postgresql://"),
        (["--cluster", "postgresql://x@127.0.0.1:1/d"], "--cluster needs messaging stores"),
        (["--cluster", "postgresql://x@127.0.0.1:1/d", "--store=sqlite:///tmp/x.db"], "are on PostgreSQL"),
        (
            ["--cluster", "postgresql://x@127.0.0.1:1/d", STORE, "--development"],
            "--development cannot be used",
        ),
        (["--cluster", "postgresql://x@127.0.0.1:1/d", STORE, "--brokers", "2"], "cannot be combined"),
        (["--cluster", "postgresql://x@127.0.0.1:1/d", STORE, "--cluster-address", "0.0.0.0:1"], "HOST:PORT"),
        (["--cluster", "postgresql://x@127.0.0.1:1/d", STORE, "--broker", "a b"], "--broker is 'a b'"),
        (["--broker", "b"], "need --cluster"),
    ],
)
def test_what_does_not_work_in_a_cluster_is_refused_in_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    command = [
        BENDYBUS,
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--port",
        "0",
        "--admin-port",
        "0",
        *options,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert said in ended.stderr


def test_a_broker_with_other_stores_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("a")
    other = cluster.options[-1].replace("name=s3", "name=other")
    stranger = Broker(tmp_path / "b", "b", [*cluster.options[:-1], other])
    ended = subprocess.run(stranger.command(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "All brokers of a cluster need the same --store options" in ended.stderr


def test_a_name_that_is_in_use_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("a")
    twin = Broker(tmp_path / "twin", "a", cluster.options)
    ended = subprocess.run(twin.command(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "a broker 'a' of this cluster is running already" in ended.stderr
