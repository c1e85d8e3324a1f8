"""One request, one message: at once, as it comes, or not at all; and never for a client that has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from bendybus.amqp.message import Properties, encode_message
from bendybus.broker import writer
from bendybus.domain.commands import Abandon, Complete, Enqueue
from bendybus.domain.messages import SubQueue
from bendybus.envelope import admit
from bendybus.errors import StoreUnavailable
from bendybus.http_bodies import RequestBody
from bendybus.names import Instant
from bendybus.rest.receiving import Received, Reception
from fix_async import until
from fix_broker import GatedQueue, GatedStore, gated_queue

MAIN = SubQueue.MAIN


class Client:
    """A request without a body, whose client can hang up."""

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()
        self.body = RequestBody(self._receive, "0")
        self._begun = False

    async def _receive(self):
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def hang_up(self) -> None:
        self.hung_up.set()
        await self.body.gone()


async def ask(
    gated: GatedQueue, timeout_s: float = 0, *, deletes: bool = False, client: Client | None = None
) -> Received | None:
    client = client or Client()
    await client.body.read(0, "")
    try:
        return await Reception().receive(gated.queue, MAIN, timeout_s, client.body, deletes=deletes)
    finally:
        client.body.close()


async def put(gated: GatedQueue, partition: int, *ids: str) -> None:
    messages = [
        admit(
            encode_message(properties=Properties(message_id=each), data=each.encode()),
            Instant(0),
            gated.queue.description,
        )[0]
        for each in ids
    ]
    await gated.queue.hosts[partition].ask(Enqueue(messages))


async def waiting(gated: GatedQueue, count: int) -> None:
    """So many requests wait."""
    await until(lambda: gated.queue.waiting_count(MAIN) >= count)


async def test_an_empty_queue_gives_nothing_at_once():
    async with gated_queue(4) as gated:
        assert await ask(gated) is None


@pytest.mark.row("P-29")
async def test_when_every_message_is_locked_the_answer_is_nothing():
    async with gated_queue(4) as gated:
        await put(gated, 2, "a")
        assert await ask(gated) is not None
        assert await ask(gated) is None


@pytest.mark.row("P-25")
async def test_every_partition_is_asked():
    async with gated_queue(4) as gated:
        for partition in range(4):
            await put(gated, partition, str(partition))
        received = [await ask(gated) for _ in range(4)]
        assert sorted(one.shown.body for one in received if one) == [b"0", b"1", b"2", b"3"]


async def test_who_waits_first_is_served_first():
    async with gated_queue(4) as gated:
        first = asyncio.create_task(ask(gated, 60))
        await waiting(gated, 1)
        second = asyncio.create_task(ask(gated, 60))
        await waiting(gated, 2)
        await put(gated, 3, "a")
        received = await first
        assert received is not None and received.shown.body == b"a"
        assert not second.done()
        await put(gated, 1, "b")
        received = await second
        assert received is not None and received.shown.body == b"b"
        assert not gated.queue.waiting_count(MAIN)


async def test_a_message_given_back_goes_to_who_waits():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        first = await ask(gated)
        assert first is not None
        second = asyncio.create_task(ask(gated, 60))
        await waiting(gated, 1)
        await gated.host.ask(Abandon([first.lock_token]))
        received = await second
        assert received is not None and received.lock_token != first.lock_token


async def test_time_ends_a_wait():
    async with gated_queue() as gated:
        assert await ask(gated, 0.01) is None
        assert not gated.queue.waiting_count(MAIN)


@pytest.mark.row("P-28")
async def test_a_client_that_hangs_up_waits_no_more():
    async with gated_queue() as gated:
        client = Client()
        request = asyncio.create_task(ask(gated, 60, client=client))
        await waiting(gated, 1)
        await client.hang_up()
        assert await request is None
        await put(gated, 0, "a")
        received = await ask(gated)
        assert received is not None


@pytest.mark.row("P-28")
async def test_what_was_locked_for_a_client_that_has_gone_comes_again_uncounted():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        first, client = await ask(gated), Client()
        assert first is not None
        request = asyncio.create_task(ask(gated, 60, client=client))
        await waiting(gated, 1)
        # Both at once: the request is given its message before it can see that nobody is there.
        client.hung_up.set()
        gated.host.release([first.lock_token])
        assert not gated.host.available(MAIN)
        assert await request is None
        received = await ask(gated)
        assert received is not None
        assert b'"DeliveryCount":1,' in dict(received.shown.headers)[b"BrokerProperties"]


async def test_stopping_sends_everybody_away():
    async with gated_queue() as gated:
        reception, client = Reception(), Client()
        await client.body.read(0, "")
        request = asyncio.create_task(reception.receive(gated.queue, MAIN, 60, client.body, deletes=False))
        await waiting(gated, 1)
        reception.stop()
        reception.stop()
        assert await request is None
        client.body.close()


async def test_a_deleted_message_is_given_once_its_removal_is_durable():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        gated.store.shut()
        request = asyncio.create_task(ask(gated, deletes=True))
        await gated.at_the_gate()
        assert not request.done()
        gated.store.open_gate()
        received = await request
        assert received is not None and received.shown.body == b"a"
        assert await ask(gated) is None


async def test_a_removal_that_fails_is_an_error_and_no_message():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        gated.store.fails_once = OSError("disk full")
        with pytest.raises(StoreUnavailable):
            await ask(gated, deletes=True)


class SlowReads:
    """Makes a store's reads wait until told."""

    def __init__(self, store: GatedStore) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()
        self._read = store.read
        store.read = self._slow

    def _slow(self, places: Sequence[int]):
        self.asked.set()
        assert self.go.wait(10)
        return self._read(places)


async def make_cold(gated: GatedQueue) -> None:
    """Take the payloads out of memory, as a full cache would."""
    partition = gated.host.partition
    assert partition is not None
    for message in partition.confirmed():
        message.payload = None


@pytest.mark.row("P-27")
@pytest.mark.parametrize("deletes", [False, True])
async def test_a_message_that_is_ready_does_not_wait_for_one_that_is_being_read(deletes):
    async with gated_queue(2, 2) as gated:
        await put(gated, 0, "slow")
        await make_cold(gated)
        await put(gated, 1, "quick")
        reads = SlowReads(gated.store)
        received = await ask(gated, deletes=deletes)
        assert received is not None and received.shown.body == b"quick"
        # The other has been given back at once, and nobody has counted a delivery.
        assert [each.delivery_count for each in gated.host.partition.confirmed()] == [0]
        assert gated.host.available(MAIN) == 1
        reads.go.set()
        received = await ask(gated, deletes=deletes)
        assert received is not None and received.shown.body == b"slow"


@pytest.mark.row("P-27")
@pytest.mark.parametrize("partitions", [2, 16])
async def test_a_message_is_removed_where_the_store_answers(partitions, monkeypatch):
    async with gated_queue(partitions, 2) as gated:
        await put(gated, 0, "slow")
        await put(gated, 1, "quick")
        monkeypatch.setattr(writer, "PROMPT_S", 0.0)
        gated.store.shut()
        received = await ask(gated, deletes=True)
        assert received is not None and received.shown.body == b"quick"
        # Nothing but what was given is gone.
        assert gated.host.available(MAIN) == 1
        gated.store.open_gate()
        received = await ask(gated, deletes=True)
        assert received is not None and received.shown.body == b"slow"


@pytest.mark.row("P-27")
async def test_a_stalled_store_is_passed_over_while_there_is_time():
    async with gated_queue(2, 2) as gated:
        gated.cache.limit_bytes = 0
        await put(gated, 0, "stuck")
        reads = SlowReads(gated.store)
        asked = asyncio.ensure_future(ask(gated, timeout_s=60))
        await asyncio.to_thread(reads.asked.wait, 10)
        gated.pass_time(3)
        await waiting(gated, 1)
        await put(gated, 1, "others")
        received = await asked
        assert received is not None and received.sequence_number >> 48 == 1
        reads.go.set()


@pytest.mark.row("P-28")
async def test_a_client_that_goes_while_a_store_reads_leaves_no_lock():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        await make_cold(gated)
        slow, client = SlowReads(gated.store), Client()
        request = asyncio.create_task(ask(gated, client=client))
        await asyncio.to_thread(slow.asked.wait, 10)
        await client.hang_up()
        slow.go.set()
        assert await request is None
        received = await ask(gated)
        assert received is not None and received.shown.body == b"a"


async def test_a_lock_lost_while_a_store_reads_is_no_answer():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        await make_cold(gated)
        slow = SlowReads(gated.store)
        request = asyncio.create_task(ask(gated))
        await asyncio.to_thread(slow.asked.wait, 10)
        partition = gated.host.partition
        assert partition is not None
        (message,) = partition.confirmed()
        assert message.lock_token is not None
        await gated.host.ask(Complete([message.lock_token]))
        slow.go.set()
        assert await request is None
