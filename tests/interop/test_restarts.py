"""The server comes and goes: its clients recover, and what it acknowledged is there (B-08)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, SUBSCRIPTION, TOPIC, changed_elements
from fix_server import Kind, ServerProcess, StartServer, refusals
from interop.conftest import Connect
from interop.sdk import BREAKS_CONNECTIONS, CROSSWISE, Sdk, SdkQueue, open_all, receive

pytestmark = BREAKS_CONNECTIONS

RETRIES = {"retry_total": 20, "retry_backoff_factor": 0.1, "retry_backoff_max": 0.2}


@pytest.fixture
def own_server(start_server: StartServer, kind: Kind) -> ServerProcess:
    return start_server({"q": {"EnablePartitioning": kind is Kind.PARTITIONED}})


@pytest.fixture
def own_queue(own_server: ServerProcess, sdk: Sdk, pool: ThreadPoolExecutor) -> Iterator[SdkQueue]:
    sdk_queue = SdkQueue(sdk, sdk.client(own_server.connection_string, **RETRIES), "q")
    open_all(pool, sdk_queue)
    yield sdk_queue
    # Before the server goes, and so before the garbage is collected.
    for closed in sdk_queue.close_with(pool):
        closed.result()


@CROSSWISE
def test_clients_recover_from_a_crash_and_nothing_acknowledged_is_lost(
    own_server: ServerProcess, own_queue: SdkQueue
) -> None:
    sdk_queue = own_queue
    sdk_queue.send("completed", "abandoned", "deferred", "dead", "locked", "waiting", partition_key="k")
    completed, abandoned, deferred, dead, _ = sdk_queue.receive(5)
    sdk_queue.complete(completed)
    sdk_queue.receiver.abandon_message(abandoned)
    sdk_queue.receiver.defer_message(deferred)
    sdk_queue.receiver.dead_letter_message(dead, reason="Bad")

    own_server.kill()
    own_server.start()

    sdk_queue.send("afterwards", partition_key="k")
    messages = sdk_queue.receive(4)
    assert [(str(message), message.delivery_count) for message in messages] == [
        *(("abandoned", 1), ("locked", 0), ("waiting", 0), ("afterwards", 0))
    ]
    assert deferred.sequence_number is not None
    (deferred,) = sdk_queue.receiver.receive_deferred_messages(deferred.sequence_number)
    assert str(deferred) == "deferred"
    sdk_queue.complete(*messages, deferred)
    dead = sdk_queue.receive_dead_letter()
    assert (str(dead), dead.dead_letter_reason) == ("dead", "Bad")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(("sdk", "kind"), [("sync", Kind.PARTITIONED)], indirect=True)
def test_what_was_acknowledged_under_load_survives(
    own_server: ServerProcess, connect: Connect, number: signal.Signals
) -> None:
    # No retries: a batch sent twice would say nothing about the one that was acknowledged.
    sdk_queue = connect(own_server.connection_string, "q")
    acknowledged: list[str] = []
    enough = threading.Event()

    def send_until_refused() -> None:
        for count in range(1_000_000):
            contents = [f"{count}-{index}" for index in range(10)]
            try:
                sdk_queue.sender.send_messages([ServiceBusMessage(content) for content in contents])
            except ServiceBusError:
                return
            acknowledged.extend(contents)
            if count == 30:
                enough.set()

    sending = threading.Thread(target=send_until_refused)
    sending.start()
    assert enough.wait(20)
    own_server.send_signal(number)
    assert own_server.wait() == (os.EX_OK if number is signal.SIGTERM else -signal.SIGKILL)
    sending.join()
    own_server.start()
    stored = {str(message) for message in receive(sdk_queue.receiver, len(acknowledged))}
    # What was stored last may not have been acknowledged any more, and then there is more than asked for.
    while more := sdk_queue.receiver.receive_messages(100, max_wait_time=0.3):
        stored.update(map(str, more))
    assert stored >= set(acknowledged)


@pytest.mark.parametrize(("sdk", "kind"), [("async", Kind.PARTITIONED)], indirect=True)
def test_a_waiting_receiver_survives_an_orderly_restart(
    own_server: ServerProcess, own_queue: SdkQueue
) -> None:
    sdk_queue = own_queue
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sdk_queue.receive_one)
        assert own_server.stop() == os.EX_OK
        own_server.start()
        sdk_queue.send("after all")
        message = waiting.result()
    assert str(message) == "after all"
    sdk_queue.complete(message)


@pytest.mark.row("P-25", "P-28")
@pytest.mark.parametrize(("sdk", "kind"), [("sync", Kind.PARTITIONED)], indirect=True)
def test_what_partitions_yielded_for_a_receiver_that_left_comes_again(
    own_server: ServerProcess, connect: Connect
) -> None:
    sdk_queue = connect(own_server.connection_string, "q", **RETRIES)
    sdk_queue.send(*map(str, range(16)))  # one for each partition
    # After a restart every partition reads its message from its store; one wins, the others' are kept (P-25).
    assert own_server.stop() == os.EX_OK
    own_server.start()
    with sdk_queue.client.get_queue_receiver("q") as leaving:
        (first,) = receive(leaving, 1)
        leaving.complete_message(first)
    others = sdk_queue.receive(15)
    assert sorted([str(first), *map(str, others)], key=int) == [str(number) for number in range(16)]
    assert {message.delivery_count for message in others} == {0}


@pytest.mark.parametrize("kind", [Kind.UNPARTITIONED], indirect=True)
def test_the_first_line_is_ready_and_a_connection_string(own_server: ServerProcess) -> None:
    word, _, connection_string = own_server.first_line.partition(" ")
    assert word == "ready"
    parts = dict(part.split("=", 1) for part in connection_string.strip().split(";"))
    assert parts["Endpoint"] == f"sb://127.0.0.1:{own_server.port}"
    assert parts["SharedAccessKeyName"] == "RootManageSharedAccessKey"
    assert parts["SharedAccessKey"] and parts["UseDevelopmentEmulator"] == "true"
    before = own_server.connection_string
    assert own_server.stop() == os.EX_OK
    own_server.start()
    assert own_server.connection_string == before


def test_a_data_folder_serves_one_server_at_a_time(server: ServerProcess) -> None:
    second = subprocess.run(
        [*server.command(), "--port", "0"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr.startswith("bendybus: ") and len(refusals(second)) == 1
    assert str(server.data) in second.stderr and "another" in second.stderr.lower()


def test_a_restart_enables_only_what_config_json_says_is_active(start_server: StartServer) -> None:
    """An operator has disabled these while the server ran. The file gives a status to one of them."""
    server = start_server(
        {"unsaid": {}, "said": {"Status": "Active"}},
        topics=[{"Name": "t", "Subscriptions": [{"Name": "s"}]}],
    )
    subscription = "t/Subscriptions/s"
    paths = {"unsaid": QUEUE, "said": QUEUE, "t": TOPIC, subscription: SUBSCRIPTION}
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        for path, kind in paths.items():
            management.update(
                path, kind.element, changed_elements(kind, management.get(path), {"Status": "Disabled"})
            )
    assert server.stop() == os.EX_OK
    server.start()
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        status = {path: management.get(path).text("Status") for path in paths}
    assert status == {
        "unsaid": "Disabled",
        "said": "Active",
        "t": "Disabled",
        "t/Subscriptions/s": "Disabled",
    }
