"""Databases that fail over: a primary is killed under load, and its synchronous standby is promoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from fix_postgres import Pair, pair
from fix_server import ServerProcess, namespace
from interop.sdk import BREAKS_CONNECTIONS
from interop.test_cluster import LOCK, Cluster, client_of, until
from interop.traffic import Traffic

pytestmark = BREAKS_CONNECTIONS


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair() as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, servers: Pair) -> Iterator[ServerProcess]:
    queues = {name: {"EnablePartitioning": True, "LockDuration": "PT5S"} for name in ("orders", "settled")}
    options = ("--store", servers.url(servers.new_database(), name="pair"))
    server = ServerProcess(tmp_path, namespace(queues), options)
    server.start()
    yield server
    if server.running:
        server.kill()


def finish(traffic: Traffic, server: ServerProcess) -> None:
    """Everything that was acknowledged is received."""
    traffic.sending.clear()
    with (
        client_of(server) as client,
        client.get_queue_receiver(
            "orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=100
        ) as receiver,
    ):
        while not traffic.acknowledged <= traffic.received:
            # Faster than the receivers that complete one after the other.
            traffic.received.update(map(str, receiver.receive_messages(100, max_wait_time=1)))
    traffic.finish()


@pytest.mark.row("N-07")
def test_when_the_standby_of_a_store_is_promoted_nothing_acknowledged_is_lost(
    servers: Pair, server: ServerProcess
) -> None:
    traffic = Traffic([server.connection_string], "orders")
    traffic.start()
    traffic.goes_on()
    settled = settle_half(server)
    servers.fail_over()
    traffic.goes_on()
    with client_of(server) as client, client.get_queue_receiver("settled") as receiver:
        left: set[str] = set()
        while len(left) < 10:
            left.update(str(message) for message in receiver.receive_messages(10, max_wait_time=5))
    assert not left & settled
    servers.rejoin()
    traffic.goes_on()
    finish(traffic, server)
    assert "a standby was promoted; its timeline is 2" in server.log.read_text()


def settle_half(server: ServerProcess) -> set[str]:
    """Of twenty messages. Returns those that were settled."""
    with client_of(server) as client:
        with client.get_queue_sender("settled") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
        with client.get_queue_receiver("settled") as receiver:
            settled: set[str] = set()
            while len(settled) < 10:
                for message in receiver.receive_messages(10 - len(settled), max_wait_time=5):
                    receiver.complete_message(message)
                    settled.add(str(message))
    return settled


@pytest.mark.row("N-07")
def test_a_server_does_not_go_back_to_an_old_primary(servers: Pair, server: ServerProcess) -> None:
    traffic = Traffic([server.connection_string], "orders")
    traffic.start()
    traffic.goes_on()
    old, new = servers.primary, servers.standby
    servers.fail_over()
    traffic.goes_on()
    old.start()
    # As if nobody had told it of its standby: it takes writes.
    old.replicate(synchronously=False)
    new.stop("immediate")
    until(lambda: "It is an old primary" in server.take_fresh_log())
    server.kill()
    server.start()
    until(lambda: "It is an old primary" in server.take_fresh_log())
    new.start()
    traffic.goes_on()
    finish(traffic, server)


@pytest.mark.row("N-07")
def test_when_the_databases_of_a_cluster_fail_over_nothing_acknowledged_is_lost(
    tmp_path: Path, servers: Pair
) -> None:
    """The catalog's too: it is in the same."""
    cluster = Cluster(tmp_path, servers)
    try:
        cluster.start("a", "b")
        until(lambda: len(set(cluster.owners())) == 2)
        with cluster.administration("a") as admin:
            admin.create_queue("orders", enable_partitioning=True, lock_duration=LOCK)
        traffic = Traffic(cluster.connection_strings("ab"), "orders")
        traffic.start()
        traffic.goes_on()
        servers.fail_over()
        traffic.goes_on()
        with cluster.administration("b") as admin:
            admin.create_queue("made-afterwards")
        servers.rejoin()
        # Nothing moves by itself after that, and everything can.
        cluster["b"].kill()
        until(lambda: set(cluster.owners()) == {"a"})
        cluster.start("b")
        until(lambda: len(set(cluster.owners())) == 2)
        traffic.goes_on()
        finish(traffic, cluster["a"])
        with cluster.administration("a") as admin:
            assert {queue.name for queue in admin.list_queues()} == {"orders", "made-afterwards"}
    finally:
        cluster.close()
