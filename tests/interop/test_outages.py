"""A store away: by the fault controls, a full disk or a missing one, as the SDK meets it."""

from __future__ import annotations

import http.client
import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError
from azure.servicebus.management import EntityAvailabilityStatus, QueueProperties

from bendybus.auth.sas import make_token
from bendybus.domain.routing import partition_of
from fix_server import RULES, ServerProcess, StartServer
from interop.sdk import BREAKS_CONNECTIONS, ConnectTo, Sdk, SdkQueue, SyncSdk, receive
from interop.test_administration import administration

pytestmark = BREAKS_CONNECTIONS

PARTITIONS = 16
STORES = 4
PARTITIONED = {"EnablePartitioning": True}

# Partition i of the first queue lives in store i modulo 4.
AWAY = 1


def key_of(store: int, turn: int = 0) -> str:
    """A key whose partition lives in this store."""
    keys = (key for key in map("key-{}".format, count()) if partition_of(key, PARTITIONS) % STORES == store)
    return next(key for number, key in enumerate(keys) if number == turn)


def request(
    server: ServerProcess, method: str, path: str, body: object = None, key: tuple[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    name, secret = key or ("RootManageSharedAccessKey", server.key)
    token = make_token(f"http://127.0.0.1:{server.port}/", name, secret, int(time.time()) + 60)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        content = body if isinstance(body, str) else json.dumps(body)
        connection.request(method, path, content, {"Authorization": token})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def switch(server: ServerProcess, store: int, fault: str, **details: object) -> None:
    status, answer = request(server, "PUT", f"/$faults/stores/store-{store}", {"fault": fault, **details})
    assert status == 200, answer


def states(server: ServerProcess) -> dict[str, str]:
    shown: dict[str, str] = request(server, "GET", "/health")[1]["stores"]
    return shown


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


def until_back(server: ServerProcess) -> None:
    until(lambda: set(states(server).values()) == {"available"}, "all stores are available")


@pytest.fixture
def sdk() -> Sdk:
    """One of the two: what they meet is the same."""
    return SyncSdk()


@pytest.fixture
def own_server(start_server: StartServer) -> Iterator[ServerProcess]:
    rules = [{"Name": name, "PrimaryKey": key, "Rights": rights} for name, (key, rights) in RULES.items()]
    queues = {"q": PARTITIONED, "plain": {}}
    yield start_server(queues, {"": rules}, "--development", "--stores", str(STORES))


@pytest.fixture
def sdk_queue(own_server: ServerProcess, connect_to: ConnectTo) -> SdkQueue:
    return connect_to(own_server)


def everything(sdk_queue: SdkQueue) -> list[str]:
    """Take all there is, until nothing comes."""
    found: list[str] = []
    while messages := sdk_queue.receiver.receive_messages(200, max_wait_time=2):
        found += map(str, messages)
        sdk_queue.complete(*messages)
    return sorted(found)


@pytest.mark.row("P-04", "P-16", "P-17", "P-27", "P-33")
@pytest.mark.parametrize("fault", ["pause", "fail"])
def test_one_store_away_is_felt_by_its_own_keys_alone_and_nothing_is_missing_afterwards(
    own_server: ServerProcess, sdk_queue: SdkQueue, fault: str
) -> None:
    sent = [f"before {number}" for number in range(PARTITIONS)]
    sdk_queue.send(*sent)
    switch(own_server, AWAY, fault)
    for number in range(2 * PARTITIONS):
        sent.append(f"keyless {number}")
        sdk_queue.send(sent[-1])
    for store in range(STORES):
        if store == AWAY:
            with pytest.raises(OperationTimeoutError, match="'store-1' does not answer"):
                sdk_queue.send("refused", partition_key=key_of(store))
        else:
            sent.append(f"keyed {store}")
            sdk_queue.send(sent[-1], partition_key=key_of(store))
    with administration(own_server) as admin:
        assert admin.get_queue("q").availability_status == EntityAvailabilityStatus.LIMITED
        assert admin.get_queue_runtime_properties("q").total_message_count == len(sent) - 4
    peeked = sdk_queue.receiver.peek_messages(100, sequence_number=0)
    assert {(message.sequence_number or 0) >> 48 for message in peeked} == set(range(16)) - {1, 5, 9, 13}
    received = receive(sdk_queue.receiver, 20)
    sdk_queue.complete(*received)

    switch(own_server, AWAY, "heal")
    until_back(own_server)
    sent.append("after")
    sdk_queue.send("after", partition_key=key_of(AWAY))
    assert sorted([*map(str, received), *everything(sdk_queue)]) == sorted(sent)
    with administration(own_server) as admin:
        assert admin.get_queue("q").availability_status == EntityAvailabilityStatus.AVAILABLE
    own_server.expect_trouble("store store-1 is away, and 5 partitions with it")


@pytest.mark.row("P-17", "P-27")
def test_locks_in_a_paused_store_are_lost_in_time_and_the_messages_come_again(
    own_server: ServerProcess, sdk_queue: SdkQueue
) -> None:
    sdk_queue.send("stuck", "held", partition_key=key_of(AWAY))
    sdk_queue.send("free", partition_key=key_of(0))
    held = {str(message): message for message in sdk_queue.receive(3)}
    switch(own_server, AWAY, "pause")
    with pytest.raises(MessageLockLostError, match="whether the message was settled is not known"):
        sdk_queue.complete(held["stuck"])
    with pytest.raises(MessageLockLostError):
        sdk_queue.receiver.renew_message_lock(held["held"])
    sdk_queue.complete(held["free"])
    switch(own_server, AWAY, "heal")
    until_back(own_server)
    # The completion was given up while it was under way: whether it happened only the store knew.
    assert everything(sdk_queue) in (["held"], ["held", "stuck"])
    own_server.expect_trouble("store store-1 is away")


@pytest.mark.row("P-27")
def test_timers_of_other_stores_run_on(own_server: ServerProcess, sdk_queue: SdkQueue) -> None:
    switch(own_server, AWAY, "pause")
    until(lambda: states(own_server)["store-1"] == "away", "the idle store is found away")
    due = datetime.now(UTC) + timedelta(seconds=1)
    sdk_queue.sender.schedule_messages(ServiceBusMessage("due", partition_key=key_of(2)), due)
    assert str(sdk_queue.receive_one()) == "due"
    switch(own_server, AWAY, "heal")
    until_back(own_server)
    own_server.expect_trouble("store store-1 is away")


@pytest.mark.row("P-32")
@pytest.mark.parametrize("fault", ["pause", "fail"])
def test_entities_are_changed_wholly_or_not_at_all_and_it_can_be_repeated(
    own_server: ServerProcess, fault: str
) -> None:
    with administration(own_server) as admin:
        switch(own_server, AWAY, fault)
        until(lambda: states(own_server)["store-1"] == "away", "the idle store is found away")
        queue: QueueProperties = admin.get_queue("q")
        queue.max_delivery_count = 3
        for change in (
            lambda: admin.create_queue("new", enable_partitioning=True),
            lambda: admin.update_queue(queue),
            lambda: admin.delete_queue("q"),
        ):
            with pytest.raises(HttpResponseError) as refused:
                change()
            assert refused.value.status_code == 503
        assert {each.name for each in admin.list_queues()} == {"q", "plain"}
        assert admin.get_queue("q").max_delivery_count == 10
        # A queue without partitions needs one sound store only.
        admin.create_queue("elsewhere")

        switch(own_server, AWAY, "heal")
        until_back(own_server)
        admin.create_queue("new", enable_partitioning=True)
        admin.update_queue(queue)
        assert admin.get_queue("q").max_delivery_count == 3
        admin.delete_queue("q")
        assert {each.name for each in admin.list_queues()} == {"new", "plain", "elsewhere"}
    own_server.expect_trouble("store store-1 is away")


def test_a_slow_store_is_still_there(own_server: ServerProcess, sdk_queue: SdkQueue) -> None:
    switch(own_server, AWAY, "slow", delayMs=300)
    sdk_queue.send("slowly", partition_key=key_of(AWAY))
    assert str(sdk_queue.receive_one()) == "slowly"
    assert states(own_server)["store-1"] == "available"
    switch(own_server, AWAY, "heal")


@pytest.mark.row("P-27")
def test_a_slow_store_holds_up_no_receive_that_deletes(
    own_server: ServerProcess, sdk_queue: SdkQueue
) -> None:
    """Through a link with credit for one, and over HTTP; nothing is deleted that was not given."""
    switch(own_server, AWAY, "slow", delayMs=600)
    for number in range(2):
        sdk_queue.send(f"slow {number}", partition_key=key_of(AWAY, number))
    quick = [f"quick {number}" for number in range(6)]
    for number, text in enumerate(quick):
        sdk_queue.send(text, partition_key=key_of((AWAY + 1) % STORES, number))
    options = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE, "prefetch_count": 0}
    found = []
    with sdk_queue.client.get_queue_receiver("q", **options) as receiver:
        for _ in range(3):
            (message,) = receiver.receive_messages(1, max_wait_time=20)
            found.append(str(message))
    token = make_token(
        f"http://127.0.0.1:{own_server.port}/",
        "RootManageSharedAccessKey",
        own_server.key,
        int(time.time()) + 60,
    )
    for _ in range(3):
        with closing(http.client.HTTPConnection("127.0.0.1", own_server.port, timeout=20)) as connection:
            connection.request("DELETE", "/q/messages/head?timeout=20", None, {"Authorization": token})
            found.append(connection.getresponse().read().decode())
    assert sorted(found) == quick
    switch(own_server, AWAY, "heal")
    assert everything(sdk_queue) == ["slow 0", "slow 1"]


def test_a_server_with_a_paused_store_stops_when_it_is_told_to(
    own_server: ServerProcess, sdk_queue: SdkQueue
) -> None:
    sdk_queue.send("kept", partition_key=key_of(AWAY))
    switch(own_server, AWAY, "pause")
    assert own_server.stop() == os.EX_OK
    own_server.start()
    assert everything(sdk_queue) == ["kept"]


# -- disks ----------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_full_disk_takes_one_store_away_until_there_is_space(
    own_server: ServerProcess, sdk_queue: SdkQueue
) -> None:
    large = b"x" * 200_000
    for _ in range(30):
        sdk_queue.sender.send_messages(ServiceBusMessage(large, partition_key=key_of(AWAY)))
    sdk_queue.send("small", partition_key=key_of(0))
    soft, hard = resource.prlimit(own_server.pid, resource.RLIMIT_FSIZE)
    # The log of this store has some 6 MB already: not a byte more. Those of the others are small.
    resource.prlimit(own_server.pid, resource.RLIMIT_FSIZE, (4_000_000, hard))
    with pytest.raises(OperationTimeoutError):
        sdk_queue.sender.send_messages(ServiceBusMessage(large, partition_key=key_of(AWAY)))
    assert states(own_server)["store-1"] == "away"
    sdk_queue.send("meanwhile", "meanwhile", partition_key=key_of(2))
    resource.prlimit(own_server.pid, resource.RLIMIT_FSIZE, (soft, hard))
    until_back(own_server)
    sdk_queue.send("afterwards", partition_key=key_of(AWAY))
    bodies = everything(sdk_queue)
    assert [len(body) for body in bodies].count(len(large)) == 30
    assert [body for body in bodies if len(body) < 20] == ["afterwards", "meanwhile", "meanwhile", "small"]
    own_server.expect_trouble("store store-1 is away")


@pytest.mark.row("P-04")
def test_a_server_starts_without_a_disk_and_takes_it_up_when_it_is_there(
    start_server: StartServer, connect_to: ConnectTo, tmp_path: Path
) -> None:
    disks = [tmp_path / f"disk-{number}" for number in range(STORES)]
    for disk in disks:
        disk.mkdir()
    options = [f"--store=sqlite://{disk}/store-{number}.db" for number, disk in enumerate(disks)]
    server = start_server({"q": PARTITIONED}, None, *options)
    sdk_queue = connect_to(server)
    sent = [f"before {number}" for number in range(PARTITIONS)]
    sdk_queue.send(*sent)
    assert server.stop() == os.EX_OK
    disks[AWAY].rename(tmp_path / "unplugged")

    server.start()
    sdk_queue = connect_to(server)
    sdk_queue.send("keyless", "keyless too")
    with pytest.raises(OperationTimeoutError):
        sdk_queue.send("refused", partition_key=key_of(AWAY))
    (tmp_path / "unplugged").rename(disks[AWAY])
    until_back(server)
    assert everything(sdk_queue) == sorted([*sent, "keyless", "keyless too"])
    server.expect_trouble("store store-1 is away", "store-1.db is not there")


@pytest.mark.row("P-04")
@pytest.mark.parametrize("page_of", ["header", "partition", "message"])
def test_a_server_starts_with_a_damaged_store_and_takes_it_up_when_that_was_restored(
    start_server: StartServer, connect_to: ConnectTo, tmp_path: Path, page_of: str
) -> None:
    files = [tmp_path / f"store-{number}.db" for number in range(STORES)]
    server = start_server({"q": PARTITIONED}, None, *(f"--store=sqlite://{file}" for file in files))
    sent = [f"before {number}" for number in range(PARTITIONS)]
    connect_to(server).send(*sent)
    assert server.stop() == os.EX_OK
    sound = files[AWAY].read_bytes()
    size = int.from_bytes(sound[16:18], "big")
    with closing(sqlite3.connect(files[AWAY])) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master"))
    at = (roots.get(page_of, 1) - 1) * size
    files[AWAY].write_bytes(sound[:at] + b"\xa5" * size + sound[at + size :])

    server.start()
    sdk_queue = connect_to(server)
    sdk_queue.send("keyless", "keyless too")
    with pytest.raises(OperationTimeoutError):
        sdk_queue.send("refused", partition_key=key_of(AWAY))
    with files[AWAY].open("r+b") as file:
        file.seek(at)
        file.write(sound[at : at + size])
    with administration(server) as admin:
        available = EntityAvailabilityStatus.AVAILABLE
        until(lambda: admin.get_queue("q").availability_status == available, "all is available")
    assert everything(sdk_queue) == sorted([*sent, "keyless", "keyless too"])
    server.expect_trouble("store-1.db is damaged")


# -- the controls themselves ----------------------------------------------------------


@pytest.mark.row("B-09")
def test_the_command_line_throws_the_switch(own_server: ServerProcess) -> None:
    bendybus = Path(sys.executable).with_name("bendybus")

    def fault(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bendybus, "fault", "store", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "BENDYBUS_CONNECTION_STRING": own_server.connection_string, **environment},
        )

    def shown() -> dict[str, Any]:
        (store,) = (
            each
            for each in request(own_server, "GET", "/$faults/stores")[1]["stores"]
            if each["name"] == "store-2"
        )
        return store

    assert fault("store-2", "slow", "--delay-ms", "20").stderr == "store-2: slow\n"
    assert (shown()["fault"], shown()["delayMs"]) == ("slow", 20)
    assert fault("store-2", "heal").stderr == "store-2: healed\n"
    assert shown()["fault"] == "none"
    unknown = fault("store-9", "pause")
    assert unknown.returncode == 1
    assert "no messaging store 'store-9'; there are store-0, store-1" in unknown.stderr
    nobody = fault("store-2", "pause", BENDYBUS_CONNECTION_STRING="Endpoint=sb://x/")
    assert nobody.returncode == 2
    assert nobody.stderr.startswith("bendybus: BENDYBUS_CONNECTION_STRING: The connection string lacks")
    assert fault("store-2", "explode").returncode == 2


def test_a_switch_that_is_not_there_is_refused_by_name(own_server: ServerProcess) -> None:
    complaints: list[tuple[object, str]] = [
        ("{", "must be JSON"),
        ([], "JSON object"),
        ({}, "must be one of heal, pause, slow, fail"),
        ({"fault": "explode"}, "must be one of"),
        ({"fault": "slow"}, "slower"),
        ({"fault": "slow", "delayMs": "long"}, "'delayMs' must be a number"),
        ({"fault": "fail", "reason": 7}, "'reason' must be text"),
        ({"fault": "pause", "reason": "x" * 5000}, "more than 4096 bytes"),
    ]
    for body, complaint in complaints:
        status, answer = request(own_server, "PUT", "/$faults/stores/store-0", body)
        assert (status, complaint in answer["error"]) == (400, True), (body, answer)


@pytest.mark.row("B-09")
def test_only_a_development_server_has_switches_and_only_managers_throw_them(
    server: ServerProcess, own_server: ServerProcess
) -> None:
    status, answer = request(server, "PUT", "/$faults/stores/store-0", {"fault": "pause"})
    assert status == 400
    assert "started with --development" in answer["error"]
    for name, (secret, _) in RULES.items():
        assert request(own_server, "DELETE", "/$faults/stores/store-0", key=(name, secret))[0] == 401
    assert request(own_server, "GET", "/$faults/stores", key=("Sends", "wrong"))[0] == 401
