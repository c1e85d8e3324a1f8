"""A server with a small `--memory`: who holds most is disconnected, told why, and nobody else notices."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from bendybus.amqp.message import encode_message
from bendybus.amqp.performatives import Accepted, Begin, Flow, Transfer
from fix_client import Client, Endpoint
from fix_links import ConnectionLost
from fix_server import ServerProcess, namespace
from hostile.conftest import Target, bystander_at_work
from hostile.stranger import BEGIN, Stranger, from_node, to_node

MEMORY_MIB = 64
ATTEMPTS = 5
# An idle server has 65 MiB. Its cache keeps 32 MiB of payloads, and the journals of its two stores 96 MiB.
# What earlier tests had is not all given back. Without a budget each of these attacks takes far more, and the
# more the longer it goes on.
PEAK_MIB_MAX = 550

HALF = b"x" * 225_000
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    queues = {
        name: {"EnablePartitioning": True, "LockDuration": "PT5M"} for name in ("bystander", "deaf", "target")
    }
    process = ServerProcess(
        tmp_path_factory.mktemp("memory"), namespace(queues), ["--memory", f"{MEMORY_MIB}MB"]
    )
    process.start()
    yield Target(process)
    assert process.stop() == 0
    process.refuse_trouble()


def metric(target: Target, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{target.endpoint.port}/metrics") as page:
        found = re.search(rf"^{name} (\d+)", page.read().decode(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


async def used(target: Target, wanted: Callable[[int], bool]) -> None:
    """Wait until the account is as wanted."""
    async with asyncio.timeout(30):
        while not wanted(await asyncio.to_thread(metric, target, "bendybus_memory_used_bytes")):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def under_attack(target: Target) -> AsyncIterator[None]:
    """With a bystander; afterwards nothing is held any more, and never was too much."""
    target.forget_peak()
    async with bystander_at_work(target):
        yield
        # The bystander holds a few messages now and then.
        await used(target, lambda held: held < 100_000)
    await used(target, lambda held: held == 0)
    assert target.peak_mib < PEAK_MIB_MAX
    target.process.refuse_trouble()


async def half_deliveries(stranger: Stranger, count: int, *, patient: bool = True) -> None:
    """Begin a delivery on each of so many links. Who is not patient leaves them with the socket."""
    for handle in range(count):
        stranger.send(0, to_node("target", handle))
    for _ in range(count):
        # Credit: the link has been accepted.
        await stranger.expect(Flow)
    for handle in range(count):
        stranger.send(0, Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True), HALF)
        if patient:
            await stranger.drain()


async def told(stranger: Stranger) -> str | None:
    error = await stranger.farewell()
    assert error is None or "memory" in (error.description or "")
    return None if error is None else error.condition


def test_the_limit_is_shown(small: Target) -> None:
    assert metric(small, "bendybus_memory_limit_bytes") == MEMORY_MIB * MIB


async def test_half_deliveries_of_many_connections_are_bounded_together(small: Target) -> None:
    async with under_attack(small):
        before = metric(small, "bendybus_memory_disconnects_total")
        # 20 MB each: the third comes near the limit, the fourth is beyond it.
        strangers = [await Stranger.begin(small.endpoint) for _ in range(4)]
        await asyncio.gather(*(half_deliveries(each, 90, patient=False) for each in strangers))
        done, _ = await asyncio.wait(
            [asyncio.create_task(told(each)) for each in strangers], return_when=asyncio.FIRST_COMPLETED
        )
        assert {task.result() for task in done} == {"amqp:connection:forced"}
        await small.busy_for(3)
        for stranger in strangers:
            stranger.writer.transport.abort()
        assert metric(small, "bendybus_memory_disconnects_total") > before


async def test_who_is_held_back_for_ten_seconds_is_disconnected(small: Target) -> None:
    async with (
        under_attack(small),
        await Stranger.begin(small.endpoint) as large,
        await Stranger.begin(small.endpoint) as less,
    ):
        # 55 MB together, which is above 80 %: nobody is disconnected for it at once.
        await half_deliveries(large, 160)
        await half_deliveries(less, 90)
        await used(small, lambda held: held > MEMORY_MIB * MIB * 8 // 10)
        assert await told(large) == "amqp:connection:forced"
        # There is room again, so the other one is alive.
        less.send(1, BEGIN)
        await less.expect(Begin)


async def test_half_deliveries_of_one_connection_have_a_limit_of_their_own(small: Target) -> None:
    async with under_attack(small):
        stranger = await Stranger.begin(small.endpoint)
        await half_deliveries(stranger, 250, patient=False)
        assert await told(stranger) in ("amqp:connection:forced", "amqp:resource-limit-exceeded")
        stranger.writer.transport.abort()


async def fill(endpoint: Endpoint, queue: str, count: int) -> None:
    async with await Client.connect(endpoint) as client:
        sender = await client.sender(queue)
        message = encode_message(data=b"x" * 250_000)
        for _ in range(0, count, 50):
            assert await sender.send(*[message] * 50) == [Accepted()] * 50


def credit(window: int) -> Flow:
    return Flow(
        next_incoming_id=0,
        incoming_window=window,
        next_outgoing_id=0,
        outgoing_window=5000,
        handle=0,
        delivery_count=0,
        link_credit=1000,
    )


async def test_sessions_whose_windows_stay_shut_are_bounded_together(small: Target) -> None:
    async with under_attack(small):
        await fill(small.endpoint, "deaf", 400)
        async with await Stranger.open(small.endpoint) as stranger:
            for channel in range(100):
                stranger.send(channel, Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=5000))
                stranger.send(channel, from_node("deaf"))
                stranger.send(channel, credit(window=0))
            assert await told(stranger) == "amqp:connection:forced"


async def test_receivers_that_do_not_read_are_bounded_together(small: Target) -> None:
    async with under_attack(small):
        await fill(small.endpoint, "deaf", 500)
        before = metric(small, "bendybus_memory_disconnects_total")
        strangers = []
        # Each is sent what a socket takes and about three MB more.
        for _ in range(40):
            stranger = await Stranger.attach(small.endpoint, from_node("deaf"))
            stranger.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stranger.writer.transport.pause_reading()
            stranger.send(0, credit(window=5000))
            strangers.append(stranger)
        async with asyncio.timeout(30):
            while await asyncio.to_thread(metric, small, "bendybus_memory_disconnects_total") == before:
                await asyncio.sleep(0.05)
        await small.busy_for(3)
        for stranger in strangers:
            stranger.writer.transport.abort()


async def test_large_messages_of_many_senders_all_arrive(small: Target) -> None:
    async with under_attack(small):
        message = encode_message(data=b"x" * 250_000)

        # 12 senders of 12 MB at once are more than the server may hold: some have to wait. On a busy machine
        # one may be disconnected, and sends again, as SDKs do.
        async def send() -> None:
            for _ in range(ATTEMPTS):
                try:
                    async with await Client.connect(small.endpoint) as client:
                        sender = await client.sender("target")
                        assert await sender.send(*[message] * 50) == [Accepted()] * 50
                        return
                except ConnectionLost as cut:
                    assert "memory for connections is used up" in str(cut)
            pytest.fail(f"disconnected {ATTEMPTS} times")

        await asyncio.gather(*(send() for _ in range(12)))
