"""Damage that nobody would notice by itself: lost commits, deleted files, a bad page under load."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.exceptions import OperationTimeoutError

from faults.disasters import Disk
from fix_server import ServerProcess, StartServer, namespace
from interop.sdk import BREAKS_CONNECTIONS, ConnectTo, Sdk, SdkQueue, SyncSdk
from interop.test_administration import administration
from interop.test_outages import AWAY, PARTITIONED, STORES, everything, key_of, states, until, until_back

pytestmark = [BREAKS_CONNECTIONS, pytest.mark.one_broker("files")]


@pytest.fixture
def sdk() -> Sdk:
    """One of the two: what they meet is the same."""
    return SyncSdk()


@pytest.fixture
def server_of_four(start_server: StartServer) -> ServerProcess:
    return start_server({"q": PARTITIONED}, None, "--stores", str(STORES))


def flip_a_bit(log: Path) -> None:
    content = bytearray(log.read_bytes())
    # The file has zeros behind its records.
    records = len(content.rstrip(b"\0"))
    content[records * 2 // 3] ^= 1
    log.write_bytes(content)


def zero(log: Path) -> None:
    log.write_bytes(bytes(log.stat().st_size))


@pytest.mark.parametrize("damage", [flip_a_bit, zero])
def test_a_start_says_that_a_store_ends_before_an_acknowledged_commit(
    server_of_four: ServerProcess, connect_to: ConnectTo, damage: Callable[[Path], None]
) -> None:
    server = server_of_four
    sdk_queue = connect_to(server)
    for number in range(30):
        sdk_queue.send(str(number), partition_key=key_of(AWAY))
    sdk_queue.send("elsewhere", partition_key=key_of(0))
    server.kill()
    store = server.data / f"store-{AWAY}.db"
    log = store.with_name(store.name + "-commits-0")
    sound = log.read_bytes()
    damage(log)

    server.start()
    assert states(server)[f"store-{AWAY}"] == "away"
    assert f"{store.name} ends before commit" in server.fresh_log
    assert "which was acknowledged" in server.fresh_log
    again = connect_to(server)
    again.send("meanwhile", partition_key=key_of(2))
    with pytest.raises(OperationTimeoutError):
        again.send("refused", partition_key=key_of(AWAY))

    # The file is found as it was left: what a repair gives back is used, without a restart.
    log.write_bytes(sound)
    until_back(server)
    assert everything(again) == sorted([*map(str, range(30)), "elsewhere", "meanwhile"])
    server.expect_trouble("ends before commit")


def test_the_loss_can_be_accepted_while_the_server_runs(
    server_of_four: ServerProcess, connect_to: ConnectTo
) -> None:
    server = server_of_four
    sdk_queue = connect_to(server)
    for number in range(30):
        sdk_queue.send(f"{number:02}", partition_key=key_of(AWAY))
    server.kill()
    store = server.data / f"store-{AWAY}.db"
    flip_a_bit(store.with_name(store.name + "-commits-0"))
    server.start()
    assert states(server)[f"store-{AWAY}"] == "away"
    store.with_name(store.name + "-witness").unlink()
    until_back(server)
    left = everything(connect_to(server))
    assert 0 < len(left) < 30
    assert left == [f"{number:02}" for number in range(len(left))]
    server.expect_trouble("ends before commit")


def delete(store: Path) -> None:
    for file in (store, store.with_name(store.name + "-wal"), store.with_name(store.name + "-shm")):
        file.unlink()


def test_sends_into_files_that_were_deleted_are_refused(
    server_of_four: ServerProcess, connect_to: ConnectTo
) -> None:
    server = server_of_four
    sdk_queue = connect_to(server)
    sdk_queue.send("before", partition_key=key_of(AWAY))
    delete(server.data / f"store-{AWAY}.db")
    # On a busy machine it may take a quarter of a second until the first is refused.
    with pytest.raises(OperationTimeoutError):
        for number in range(1000):
            sdk_queue.send(str(number), partition_key=key_of(AWAY))
    assert states(server)[f"store-{AWAY}"] == "away"
    sdk_queue.send("elsewhere", partition_key=key_of(0))
    server.expect_trouble("is gone: it was deleted or moved")
    assert server.stop() == os.EX_OK


def test_an_idle_store_whose_files_are_gone_shows_in_the_health(
    server_of_four: ServerProcess, queue_of_four: SdkQueue
) -> None:
    queue_of_four.send("before", partition_key=key_of(AWAY))
    store = server_of_four.data / f"store-{AWAY}.db"
    store.rename(store.with_name("moved"))
    until(lambda: states(server_of_four)[f"store-{AWAY}"] == "away", "the idle store is found away")
    store.with_name("moved").rename(store)
    until_back(server_of_four)
    assert everything(queue_of_four) == ["before"]
    server_of_four.expect_trouble("is gone: it was deleted or moved")


@pytest.fixture
def queue_of_four(server_of_four: ServerProcess, connect_to: ConnectTo) -> SdkQueue:
    return connect_to(server_of_four)


@pytest.mark.row("P-33")
def test_a_damaged_page_shows_in_health_and_metrics(
    server_of_four: ServerProcess, connect_to: ConnectTo
) -> None:
    server = server_of_four
    sdk_queue = connect_to(server)
    sdk_queue.send(*(f"{number:03}-" * 500 for number in range(40)), partition_key=key_of(AWAY))
    sdk_queue.send("elsewhere", partition_key=key_of(0))
    assert server.stop() == os.EX_OK
    store = server.data / f"store-{AWAY}.db"
    sound = store.read_bytes()
    size = int.from_bytes(sound[16:18], "big")
    at = sound.index(b"020-" * 100) // size * size
    with store.open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * size)

    server.start()
    again = connect_to(server)
    # Nothing notices until somebody wants what is on that page.
    again.receiver.receive_messages(100, max_wait_time=2)
    until(lambda: states(server)[f"store-{AWAY}"] == "damaged", "the damage is shown")
    shown = metrics(server)
    assert shown[f"bendybus_store_available store-{AWAY}"] == 0.5
    assert shown[f"bendybus_store_damages_total store-{AWAY}"] >= 1
    assert shown["bendybus_store_available store-0"] == 1
    server.expect_trouble("is damaged", "cannot be read")


def test_a_full_disk_in_the_data_folder_does_not_keep_the_server_from_starting(
    tmp_path: Path, connect_to: ConnectTo
) -> None:
    try:
        disk = Disk(tmp_path / "data")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount a small disk")
    options = [f"--store=sqlite://{tmp_path}/store-{number}.db" for number in range(STORES)]
    server = ServerProcess(tmp_path, namespace({"q": PARTITIONED}), options)
    try:
        server.start()
        connect_to(server).send("before", partition_key=key_of(AWAY))
        assert server.stop() == os.EX_OK
        disk.fill()
        server.start()
        sdk_queue = connect_to(server)
        sdk_queue.send("on a full disk", partition_key=key_of(0))
        assert everything(sdk_queue) == ["before", "on a full disk"]
        with administration(server) as admin, pytest.raises(HttpResponseError) as refused:
            admin.create_queue("another")
        assert refused.value.status_code == 503
        disk.clear()
        with administration(server) as admin:
            admin.create_queue("another")
        assert server.stop() == os.EX_OK
    finally:
        if server.running:
            server.kill()
        disk.unmount()


def metrics(server: ServerProcess) -> dict[str, float]:
    """Of the stores: metric and store -> value."""
    found = re.findall(r'(bendybus_store_\w+)\{.*store="([^"]+)"\} (\S+)', text(server, "/metrics"))
    return {f"{name} {store}": float(value) for name, store, value in found}


def text(server: ServerProcess, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
