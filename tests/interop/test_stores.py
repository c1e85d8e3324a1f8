"""Messaging stores given by URL: PostgreSQL alone and beside SQLite, its outages, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from fix_postgres import ADMIN, Postgres
from fix_server import TROUBLE, ServerProcess, StartServer
from interop.test_outages import states, until, until_back

QUEUE = {"q": {"EnablePartitioning": True, "LockDuration": "PT5M"}}
BATCH = 10
AT_ONCE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
# Between two sends, so that there is not more to receive in the end than there is to learn from it.
PAUSE_S = 0.02
RETRIES = {"retry_total": 20, "retry_backoff_factor": 0.1, "retry_backoff_max": 0.5}


def stores(*urls: str) -> list[str]:
    return [option for url in urls for option in ("--store", url)]


@contextmanager
def client_of(server: ServerProcess, **options: object) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, **options) as client:
        yield client


def drain(client: ServiceBusClient, expected: set[str]) -> set[str]:
    """Everything that comes, until all that is expected has come."""
    seen: set[str] = set()
    with client.get_queue_receiver("q", receive_mode=AT_ONCE) as receiver:
        while expected - seen:
            seen.update(take(receiver))
    return seen


def take(receiver: ServiceBusReceiver) -> list[str]:
    messages = receiver.receive_messages(200, max_wait_time=30)
    assert messages, "nothing comes any more"
    return [str(message) for message in messages]


class Traffic:
    """One who sends all the time and remembers what was acknowledged."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: set[str] = set()
        self.refused = threading.Event()
        """Set when a send has failed; `clear` it to wait for another."""
        self.accepted = threading.Event()
        self._count = 0

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def flows(self) -> None:
        """Return when something that is sent from now on has been acknowledged."""
        for _ in range(2):  # the first may have been under way already
            self.accepted.clear()
            assert self.accepted.wait(60), "nothing is acknowledged any more"

    def _run(self) -> None:
        # Few retries: what is refused is to be seen.
        with (
            client_of(self._server, retry_total=0) as client,
            client.get_queue_sender("q", keep_alive=0) as sender,
        ):
            while not self._stop.wait(PAUSE_S):
                self._count += 1
                contents = [f"{self._count}-{index}" for index in range(BATCH)]
                try:
                    sender.send_messages([ServiceBusMessage(content) for content in contents])
                except ServiceBusError:
                    self.refused.set()
                else:
                    self.acknowledged.update(contents)
                    self.accepted.set()


def forgive_outage(server: ServerProcess, *names: str) -> None:
    """What the server has logged of its store's outage is as it should be, and a traceback is not."""
    for line in server.take_fresh_log().splitlines():
        assert "Traceback" not in line
        assert not TROUBLE.search(line) or any(name in line for name in names), line


@pytest.mark.row("B-08")
@pytest.mark.parametrize("mixed", [False, True])
def test_what_postgresql_keeps_survives_a_killed_broker(
    postgres: Postgres, start_server: StartServer, tmp_path: Path, mixed: bool
) -> None:
    urls = [postgres.url(postgres.new_database(), name="a")]
    urls.append(f"sqlite://{tmp_path}/b.db" if mixed else postgres.url(postgres.new_database(), name="b"))
    server = start_server(QUEUE, None, *stores(*urls))
    sent = {f"{key}-{number}" for key in range(16) for number in range(10)}
    with client_of(server) as client, client.get_queue_sender("q", keep_alive=0) as sender:
        for content in sent:
            sender.send_messages(ServiceBusMessage(content, partition_key=content.partition("-")[0]))
    server.kill()
    server.start()
    with client_of(server) as client:
        assert drain(client, sent) == sent
    assert server.stop() == os.EX_OK
    server.start()
    with client_of(server) as client, client.get_queue_receiver("q") as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.5) == []


@pytest.mark.row("B-08", "P-04")
@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
def test_nothing_acknowledged_is_lost_when_postgresql_goes_and_comes_back(
    own_postgres: Postgres, start_server: StartServer, end: str
) -> None:
    server = start_server(QUEUE, None, *stores(own_postgres.url(own_postgres.new_database(), name="away")))
    with Traffic(server) as traffic:
        traffic.flows()
        if end == "kill":
            own_postgres.kill()
        else:
            own_postgres.stop(end)
        assert traffic.refused.wait(60)
        own_postgres.start()
        traffic.flows()
    with client_of(server, **RETRIES) as client:
        # What was refused may have been stored all the same: nobody could know.
        assert drain(client, traffic.acknowledged) >= traffic.acknowledged
    forgive_outage(server, "away")


@pytest.mark.row("P-33")
def test_health_tells_of_an_idle_store_whose_database_is_gone(
    own_postgres: Postgres, start_server: StartServer
) -> None:
    server = start_server(QUEUE, None, *stores(own_postgres.url(own_postgres.new_database(), name="away")))
    assert states(server) == {"away": "available"}
    own_postgres.stop("immediate")
    until(lambda: states(server) == {"away": "away"}, "the idle store is found away")
    own_postgres.start()
    until_back(server)
    forgive_outage(server, "away")


@pytest.mark.row("P-04", "P-16", "P-27")
def test_messages_without_a_key_flow_through_the_other_store_meanwhile(
    own_postgres: Postgres, start_server: StartServer, tmp_path: Path
) -> None:
    url = own_postgres.url(own_postgres.new_database(), name="away")
    server = start_server(QUEUE, None, *stores(url, f"sqlite://{tmp_path}/here.db"))
    with Traffic(server) as traffic:
        traffic.flows()
        own_postgres.stop("immediate")
        for _ in range(5):
            traffic.flows()
        with (
            client_of(server, **RETRIES) as client,
            client.get_queue_receiver("q", receive_mode=AT_ONCE) as receiver,
        ):
            early = set(take(receiver))
        assert early
        own_postgres.start()
        traffic.flows()
    with client_of(server, **RETRIES) as client:
        assert drain(client, traffic.acknowledged - early) >= traffic.acknowledged - early
    forgive_outage(server, "away")


# -- what is refused ------------------------------------------------------------------


def refusal(data: Path, *options: str, **environment: str) -> str:
    """The one line that a server which does not start says."""
    bendybus = Path(sys.executable).with_name("bendybus")
    done = subprocess.run(
        [bendybus, "serve", "--data", data, "--port", "0", "--admin-port", "0", *options],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("bendybus: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_wrong_password_or_database_or_port_is_told_without_the_password(
    postgres: Postgres, tmp_path: Path
) -> None:
    base = f"postgresql://{ADMIN}:hush-hush@127.0.0.1"
    for url, complaint in [
        (f"{base}:{postgres.port}/postgres", "password authentication failed"),
        (f"{base}:1/postgres", "Connection refused"),
        (f"{base}:{postgres.port}/postgres?sslmode=require", "SSL"),
        (f"{base}:{postgres.port}", "names no database"),
    ]:
        said = refusal(tmp_path / "data", *stores(url))
        assert complaint in said
        assert "hush" not in said


def test_one_store_given_twice_is_refused_before_anything_is_written(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.new_database()
    one, same = postgres.url(database, name="one"), postgres.url(database, name="same")
    same = same.replace("127.0.0.1", "localhost")
    said = refusal(tmp_path / "data", *stores(one, same))
    assert "'one' and 'same' are one and the same" in said
    with postgres.connect(database) as connection:
        assert connection.execute("SELECT to_regnamespace('bendybus')").fetchone() == (None,)
    (tmp_path / "link.db").symlink_to(tmp_path / "file.db")
    said = refusal(tmp_path / "data", *stores(f"sqlite://{tmp_path}/file.db", f"sqlite://{tmp_path}/link.db"))
    assert "'file' and 'link' are one and the same" in said
    assert not (tmp_path / "file.db").exists()


@pytest.mark.parametrize("theirs", ["postgresql", "sqlite"])
def test_a_store_of_another_namespace_is_refused_and_left_as_it_is(
    postgres: Postgres, start_server: StartServer, tmp_path: Path, theirs: str
) -> None:
    database = postgres.new_database()
    url = (
        postgres.url(database, name="theirs") if theirs == "postgresql" else f"sqlite://{tmp_path}/theirs.db"
    )
    owner = start_server(QUEUE, None, *stores(url))
    with client_of(owner) as client, client.get_queue_sender("q", keep_alive=0) as sender:
        sender.send_messages(ServiceBusMessage("kept"))
    assert owner.stop() == os.EX_OK
    fresh = postgres.new_database()
    # The new one stands first, and is not made either.
    said = refusal(tmp_path / "other", *stores(postgres.url(fresh), url))
    assert "theirs" in said and "belongs to another namespace" in said
    with postgres.connect(fresh) as connection:
        assert connection.execute("SELECT to_regnamespace('bendybus')").fetchone() == (None,)
    owner.start()
    with client_of(owner) as client:
        assert drain(client, {"kept"}) == {"kept"}


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(
    postgres: Postgres, start_server: StartServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    owner = start_server(QUEUE, None, *stores(postgres.url(database)))
    assert owner.stop() == os.EX_OK
    with postgres.connect(database) as connection:
        connection.execute("UPDATE bendybus.about SET version = 77, namespace = NULL")
    assert "version 77" in refusal(tmp_path / "data", *stores(postgres.url(database)))
    with postgres.connect(database) as connection:
        assert connection.execute("SELECT version, namespace FROM bendybus.about").fetchone() == (77, None)


def test_a_start_without_a_store_names_it_and_leaves_no_files(
    start_server: StartServer, tmp_path: Path
) -> None:
    urls = [f"sqlite://{tmp_path}/{name}.db" for name in ("first", "second")]
    server = start_server({"q": {"EnablePartitioning": True}}, None, *stores(*urls))
    assert server.stop() == os.EX_OK
    before = {file.name for folder in (tmp_path, server.data) for file in folder.iterdir()}
    said = refusal(server.data, *stores(urls[0], f"sqlite://{tmp_path}/third.db"))
    assert "'second' with partitions of 1 entities, such as 'q'" in said and "--store" in said
    said = refusal(server.data)
    assert "'first'" in said and "'second'" in said
    assert {file.name for folder in (tmp_path, server.data) for file in folder.iterdir()} == before


def test_a_missing_driver_is_named_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text(
        "raise ModuleNotFoundError('No module named psycopg', name='psycopg')"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = refusal(tmp_path / "data", *stores("postgresql://ann@host/db"), PYTHONPATH=path)
    assert "pip install 'bendybus[postgres]'" in said and "psycopg" in said
