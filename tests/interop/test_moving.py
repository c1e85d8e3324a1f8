"""Stores are attached, emptied and retired while the SDK's clients are at work."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)

from fix_postgres import PASSWORD_IN_URL, Postgres
from fix_server import ServerProcess, StartServer
from interop.test_outages import request, until
from interop.test_stores import client_of, stores

QUEUES = {
    "q": {"EnablePartitioning": True, "LockDuration": "PT1M", "MaxDeliveryCount": 100},
    "sessions": {"EnablePartitioning": True, "RequiresSession": True},
}
TOPICS = [
    {
        "Name": "news",
        "Properties": {"EnablePartitioning": True},
        "Subscriptions": [{"Name": name, "Rules": []} for name in ("one", "two")],
    }
]
SENDERS = 3
# Between two messages of a sender: enough of them for every move, and time for others on the machine.
PAUSE_S = 0.005


def shown(server: ServerProcess, name: str) -> dict[str, object]:
    status, answer = request(server, "GET", f"/$stores/{name}")
    assert status == 200, answer
    return answer


def begin_drain(server: ServerProcess, name: str) -> None:
    status, answer = request(server, "PUT", f"/$stores/{name}", {"draining": True})
    assert status == 202, answer


def until_empty(server: ServerProcess, name: str) -> None:
    def empty() -> bool:
        answer = shown(server, name)
        return answer["partitions"] == 0 and "moving" not in answer

    until(empty, f"{name} is empty")


def empty(server: ServerProcess, name: str) -> None:
    begin_drain(server, name)
    until_empty(server, name)


def attach(server: ServerProcess, url: str, name: str | None = None) -> None:
    status, answer = request(server, "POST", "/$stores", {"url": url, "name": name})
    assert status == 201, answer


class Traffic:
    """Senders and a receiver, each with a connection of its own, until they are told to stop."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]
        self._threads.append(threading.Thread(target=self._receive))
        self.acknowledged: list[str] = []
        self.completed: list[str] = []
        self.trouble: list[Exception] = []

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.completed) > 20, "traffic flows")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[ServiceBusClient], None]) -> None:
        try:
            # No retries: moving a partition is nothing that a client should notice.
            with client_of(self._server, retry_total=0) as client:
                work(client)
        except Exception as error:
            self.trouble.append(error)

    def _send(self, sender: int) -> None:
        def work(client: ServiceBusClient) -> None:
            number = 0
            with client.get_queue_sender("q", keep_alive=0) as link:
                while not self._stop.wait(PAUSE_S):
                    number += 1
                    key = f"key-{sender}" if number % 2 else None
                    text = f"{sender}-{number:06}"
                    link.send_messages(ServiceBusMessage(text, partition_key=key))
                    self.acknowledged.append(text)

        self._guarded(work)

    def _receive(self) -> None:
        def work(client: ServiceBusClient) -> None:
            with client.get_queue_receiver("q") as receiver:
                while not self._stop.is_set():
                    for message in receiver.receive_messages(20, max_wait_time=1):
                        receiver.complete_message(message)
                        self.completed.append(str(message))

        self._guarded(work)


def everything(server: ServerProcess, queue: str = "q") -> list[str]:
    """All there is; it is deleted as it is received, since to complete thousands takes half a minute."""
    found: list[str] = []
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client_of(server) as client, client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        while messages := receiver.receive_messages(200, max_wait_time=1):
            found += map(str, messages)
    return found


def in_order(texts: list[str]) -> bool:
    """Whether each sender's messages with a key, the odd ones, come in the order in which they were sent."""
    by_sender: dict[str, list[int]] = {}
    for text in texts:
        sender, _, number = text.partition("-")
        if int(number) % 2:
            by_sender.setdefault(sender, []).append(int(number))
    return all(numbers == sorted(numbers) for numbers in by_sender.values())


@pytest.mark.row("P-02", "P-12")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_clients_notice_nothing_while_stores_are_emptied(
    postgres: Postgres, start_server: StartServer, tmp_path: Path, kind: str
) -> None:
    other = (
        postgres.url(postgres.new_database()) if kind == "postgresql" else f"sqlite://{tmp_path}/elsewhere.db"
    )
    server = start_server(QUEUES, None, "--stores", "2", "--allow-store", other, topics=TOPICS)
    with client_of(server) as client:
        with client.get_topic_sender("news", keep_alive=0) as sender:
            for number in range(40):
                sender.send_messages(ServiceBusMessage(f"n{number}"))
        with client.get_queue_sender("sessions", keep_alive=0) as sender:
            for number in range(20):
                sender.send_messages(ServiceBusMessage(str(number), session_id=f"s{number % 5}"))
        with (
            client.get_subscription_receiver("news", "one") as held,
            client.get_queue_receiver("sessions", session_id="s1") as session,
        ):
            locked = held.receive_messages(10, max_wait_time=5)
            session.session.set_state("half-way")
            first = session.receive_messages(1, max_wait_time=5)
            with Traffic(server) as traffic:
                attach(server, other, "elsewhere")
                empty(server, "store-0")
                empty(server, "store-1")
                assert shown(server, "elsewhere")["partitions"] == 16 * 5
            assert traffic.trouble == []
            # Locks and sessions are where they were.
            for message in locked:
                held.complete_message(message)
            session.complete_message(first[0])
            assert session.session.get_state() == b"half-way"
            session.session.set_state("further")
    for name in ("store-0", "store-1"):
        assert request(server, "DELETE", f"/$stores/{name}")[0] == 200
    assert server.stop() == os.EX_OK
    # Without a word on the command line.
    server.start()
    assert [each["name"] for each in request(server, "GET", "/$stores")[1]["stores"]] == ["elsewhere"]
    left = everything(server)
    assert sorted([*traffic.completed, *left]) == sorted(traffic.acknowledged)
    assert in_order([*traffic.completed, *left])
    with client_of(server) as client:
        done = {str(message) for message in locked}
        assert texts_of(client, "one") == {f"n{number}" for number in range(40)} - done
        assert texts_of(client, "two") == {f"n{number}" for number in range(40)}
        with client.get_queue_receiver("sessions", session_id="s1") as session:
            assert session.session.get_state() == b"further"
            assert [str(each) for each in session.receive_messages(10, max_wait_time=5)] == ["6", "11", "16"]


def texts_of(client: ServiceBusClient, subscription: str) -> set[str]:
    found: list[ServiceBusReceivedMessage] = []
    with client.get_subscription_receiver("news", subscription) as receiver:
        while messages := receiver.receive_messages(100, max_wait_time=1):
            found += messages
            for message in messages:
                receiver.complete_message(message)
    assert len({str(message) for message in found}) == len(found)
    return {str(message) for message in found}


@pytest.mark.row("B-08")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_drain_that_is_killed_again_and_again_loses_and_repeats_nothing(
    postgres: Postgres, start_server: StartServer, tmp_path: Path, kind: str
) -> None:
    other = (
        postgres.url(postgres.new_database(), name="b")
        if kind == "postgresql"
        else f"sqlite://{tmp_path}/b.db"
    )
    server = start_server(QUEUES, None, "--stores", "1", "--allow-store", other)
    sent: list[str] = []
    with client_of(server) as client, client.get_queue_sender("q", keep_alive=0) as sender:
        for batch in range(60):
            texts = [f"0-{batch * 100 + number:06}" for number in range(100)]
            sender.send_messages([ServiceBusMessage(f"{text}".ljust(2000)) for text in texts])
            sent += texts
    attach(server, other, "b")
    begin_drain(server, "store-0")
    kills = 0
    while shown(server, "store-0")["partitions"]:
        # Some time after the next partition has begun to move: sooner, later, or just between two.
        time.sleep(0.02 * kills)
        server.kill()
        kills += 1
        server.start()
        if kills == 8:
            until_empty(server, "store-0")
    assert kills > 1
    until_empty(server, "store-0")
    assert request(server, "DELETE", "/$stores/store-0")[0] == 200
    server.kill()
    server.start()
    assert sorted(text.strip() for text in everything(server)) == sorted(sent)
    server.expect_trouble()


# -- what is refused ------------------------------------------------------------------


def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(
    start_server: StartServer, tmp_path: Path
) -> None:
    theirs = start_server({"q": {}}, None, *stores(f"sqlite://{tmp_path}/theirs.db"))
    own = tmp_path / "server-1" / "data" / "store-0.db"
    allowed = (str(tmp_path), f"sqlite://{own}", "postgresql://127.0.0.1:1/x")
    options = [each for url in allowed for each in ("--allow-store", url)]
    server = start_server(QUEUES, None, "--stores", "1", *options)
    assert own == server.data / "store-0.db"
    before = request(server, "GET", "/$stores")[1]["stores"]
    for method, path, body, status, complaint in [
        ("GET", "/$stores/nowhere", None, 404, "There is no messaging store 'nowhere'; there are store-0"),
        ("PUT", "/$stores/nowhere", {"draining": True}, 404, "no messaging store 'nowhere'"),
        ("PUT", "/$stores/store-0", {"draining": True}, 400, "last messaging store"),
        ("PUT", "/$stores/store-0", {"draining": "yes"}, 400, "true or false"),
        ("PUT", "/$stores/store-0", "{", 400, "JSON"),
        ("PUT", "/$stores/store-0", [1], 400, "JSON object"),
        ("DELETE", "/$stores/store-0", None, 400, "keeps 32 partitions; drain it first"),
        ("DELETE", "/$stores/nowhere", None, 404, "no messaging store 'nowhere'"),
        ("POST", "/$stores", {}, 400, "'url' must be"),
        ("POST", "/$stores", {"url": f"sqlite://{tmp_path}/at/all.db"}, 400, "does not exist"),
        ("POST", "/$stores", {"url": "sqlite:///nowhere/all.db"}, 403, "--allow-store"),
        ("POST", "/$stores", {"url": "mongodb://x"}, 400, "not a kind of store"),
        ("POST", "/$stores", {"url": f"sqlite://{tmp_path}/x.db", "name": "a b"}, 400, "not a valid"),
        ("POST", "/$stores", {"url": f"sqlite://{tmp_path}/x.db", "name": 1}, 400, "'name' must be text"),
        ("POST", "/$stores", {"url": f"sqlite://{tmp_path}/theirs.db"}, 400, "belongs to another namespace"),
        ("POST", "/$stores", {"url": f"sqlite://{own}", "name": "again"}, 409, "attached already"),
        ("POST", "/$stores", {"url": f"sqlite://{own}"}, 409, "'store-0' already"),
        ("POST", "/$stores", {"url": "postgresql://ann:hush@127.0.0.1:1/x"}, 503, "Connection refused"),
    ]:
        answered, answer = request(server, method, path, body)
        assert (answered, complaint in str(answer.get("error"))) == (status, True), (path, body, answer)
        assert "hush" not in str(answer)
    assert request(server, "GET", "/$stores")[1]["stores"] == before
    assert not (server.data / "stores.json").exists()
    assert not (tmp_path / "x.db").exists()
    assert theirs.stop() == server.stop() == os.EX_OK


def test_a_password_in_an_attached_url_is_for_its_owners_eyes_only(
    postgres: Postgres, start_server: StartServer
) -> None:
    database = postgres.new_database()
    allowed = f"postgresql://127.0.0.1:{postgres.port}/{database}"
    server = start_server({}, None, "--stores", "1", "--allow-store", allowed)
    attach(server, postgres.url(database, name="there"))
    file = server.data / "stores.json"
    assert PASSWORD_IN_URL in json.loads(file.read_text())["attached"]["there"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD_IN_URL not in server.log.read_text()
    assert "p@ss" not in str(request(server, "GET", "/$stores"))


@pytest.mark.row("P-13")
def test_sessions_are_found_by_those_who_wait_while_a_store_is_emptied(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(QUEUES, None, "--stores", "1", "--allow-store", str(tmp_path))
    attach(server, f"sqlite://{tmp_path}/b.db")
    found: list[str] = []

    def wait() -> None:
        with (
            client_of(server) as client,
            client.get_queue_receiver(
                "sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20
            ) as receiver,
        ):
            found.extend(str(each) for each in receiver.receive_messages(1, max_wait_time=10))

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        empty(server, "store-0")
        with client_of(server) as client, client.get_queue_sender("sessions", keep_alive=0) as sender:
            sender.send_messages(ServiceBusMessage("hello", session_id="late"))
    finally:
        waiting.join()
    assert found == ["hello"]
