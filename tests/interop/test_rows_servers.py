"""What the contract says about servers that restart or have a slow store, on 16, on 2 and on 1 partition.

Each test has a server of its own, with two messaging stores. A store that is away: test_rows_stores.py.
"""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from bendybus.auth.sas import make_token
from bendybus.domain.routing import partition_of as partition_of_key
from fix_kinds import SdkBus, close_bus, keys_for, make_bus, on_each_kind_alone, partition_of
from interop.test_outages import switch

# Much longer than a receive takes, much shorter than a store may be silent before it counts as away.
SLOW_MS = 700


@pytest.mark.row("P-25")
@on_each_kind_alone
def test_what_the_other_partitions_yielded_is_kept_for_the_connections_next_receive(
    own: SdkBus, _closing: ThreadPoolExecutor
) -> None:
    queue, keys = own.queue(), keys_for(own.partitions)
    sender = own.sender(queue)
    for key in keys:
        sender.send_messages(ServiceBusMessage(key, partition_key=key))
    # After a restart no message is in memory: each partition that is asked for one reads it from its store.
    own.server.kill()
    own.server.start()
    again, other = make_bus(own.partitions, own.server), make_bus(own.partitions, own.server)
    with again.client.get_queue_receiver(queue) as receiver:
        first = again.receive(receiver, 1)
        # One was asked for, and each partition yielded one. The others are locked for this connection.
        assert other.receiver(queue).receive_messages(len(keys), max_wait_time=1) == []
        kept = again.receive(receiver, len(keys) - 1)
        assert sorted(map(str, first + kept)) == sorted(keys)
        assert {partition_of(message) for message in first + kept} == set(range(own.partitions))
        for message in first + kept:
            receiver.complete_message(message)
    for bus in (again, other):
        wait(close_bus(bus, _closing))


def take_over_http(bus: SdkBus, queue: str) -> str:
    server = bus.server
    token = make_token("https://h", "RootManageSharedAccessKey", server.key, int(time.time()) + 60)
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("DELETE", f"/{queue}/messages/head?timeout=20", None, {"Authorization": token})
        return connection.getresponse().read().decode()


@pytest.mark.row("P-27")
@on_each_kind_alone
def test_a_slow_store_delays_only_its_own_messages(own: SdkBus) -> None:
    """Whatever is received first, through links with credit for one and over HTTP, is in the other store."""
    # Partition i of the first queue, and queue i of those without partitions, is in store i modulo 2.
    queues = [own.queue() for _ in range(2 if own.partitions == 1 else 1)]
    quick, slow = queues[0], queues[-1]
    quick_key, slow_key = keys_for(max(own.partitions, 2))[:2]
    assert own.partitions == 1 or partition_of_key(slow_key, own.partitions) == 1
    for queue, key, text, number in ((quick, quick_key, "quick", 9), (slow, slow_key, "slow", 2)):
        messages = [ServiceBusMessage(f"{text} {n}", partition_key=key) for n in range(number)]
        own.sender(queue).send_messages(messages)
    # After a restart each message is read from its store.
    own.server.kill()
    own.server.start()
    switch(own.server, 1, "slow", delayMs=SLOW_MS)
    bus = make_bus(own.partitions, own.server)
    found = []
    for mode in ServiceBusReceiveMode:
        with bus.client.get_queue_receiver(quick, receive_mode=mode, prefetch_count=0) as receiver:
            for _ in range(3):
                (message,) = receiver.receive_messages(1, max_wait_time=20)
                found.append(str(message))
                if mode is ServiceBusReceiveMode.PEEK_LOCK:
                    receiver.complete_message(message)
    found += [take_over_http(bus, quick) for _ in range(3)]
    assert sorted(found) == [f"quick {n}" for n in range(9)]
    # It is slow, not away.
    assert sorted(map(str, bus.take(bus.receiver(slow), 2))) == ["slow 0", "slow 1"]
    switch(own.server, 1, "heal")
    own.handles += bus.handles
    bus.admin.close()
