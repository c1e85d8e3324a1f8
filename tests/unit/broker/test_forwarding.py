"""The forwarder: exactly once between any mix of queues, though commits fail and brokers start anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Enqueue, Given, Peek
from bendybus.domain.entities import EntityStatus, QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.envelope import admit
from bendybus.errors import ArgumentError, StoreUnavailable
from bendybus.names import EntityPath, SequenceNumber
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import GatedStore

# properties: message-id "m", application-properties {}, data "x", as an ordinary client writes them.
BARE = b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x75\xa0\x01x"


@pytest.fixture
def stores() -> list[GatedStore]:
    return [GatedStore("left"), GatedStore("right")]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.open()
    yield catalog
    catalog.close()


@asynccontextmanager
async def at_work(catalog: SqliteCatalog, stores: list[GatedStore]) -> AsyncIterator[Broker]:
    broker = Broker(catalog, stores)
    broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def queue(path: str, **properties: object) -> QueueDescription:
    return QueueDescription(EntityPath(path), **properties)


async def send(target: Queue, *texts: str) -> None:
    for text in texts:
        payload = BARE[:-2] + len(text).to_bytes(1, "big") + text.encode()
        message, key = admit(payload, now(), target.description)
        await target.place(key).ask(Enqueue([message]))


async def held(source: Queue, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
    messages: list[Message] = []
    for host in source.hosts:
        given = await host.ask(Peek(SequenceNumber(0), 1000, subqueue))
        assert isinstance(given, Given)
        messages += given.messages
    return messages


async def until(condition: Callable[[], Coroutine[None, None, bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            # A store that failed comes back in a second, and nobody can look into it until then.
            with suppress(StoreUnavailable):
                if await condition():
                    return
            await asyncio.sleep(0.002)


async def until_held(target: Queue, count: int, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
    async def enough() -> bool:
        return len(await held(target, subqueue)) >= count

    await until(enough)
    return await held(target, subqueue)


@pytest.mark.parametrize("source_partitioned", [False, True])
@pytest.mark.parametrize("target_partitioned", [False, True])
def test_every_message_moves_once_between_any_mix(
    catalog: SqliteCatalog, stores: list[GatedStore], source_partitioned: bool, target_partitioned: bool
) -> None:  # P-34
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            target = await broker.queues.create(queue("target", enable_partitioning=target_partitioned))
            source = await broker.queues.create(
                queue("source", enable_partitioning=source_partitioned, forward_to="target")
            )
            await send(source, *map(str, range(100)))
            arrived = await until_held(target, 100)
            assert len(arrived) == 100
            assert all(message.origin.hops == 1 for message in arrived)
            assert await held(source) == []

    asyncio.run(run())


def test_a_chain_keeps_the_first_number_and_counts_hops(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            path = None
            for hop in range(6):
                last = await broker.queues.create(queue(f"hop{hop}", forward_to=path))
                path = f"hop{hop}"
            await send(last, "x")
            # hop5 -> hop4 -> hop3 -> hop2 -> hop1, where it has come four hops.
            (stuck,) = await until_held(broker.find("hop1"), 1, SubQueue.DEAD_LETTER)
            assert (stuck.origin.hops, stuck.origin.sequence_number) == (4, 1)
            assert stuck.amendment.dead_letter_reason == "MaxTransferHopCountExceeded"

    asyncio.run(run())


def test_a_backlog_moves_when_forwarding_is_switched_on(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            target = await broker.queues.create(queue("target"))
            source = await broker.queues.create(queue("source"))
            await send(source, "a", "b", "c")
            await broker.queues.update(replace(source.description, forward_to=EntityPath("target")))
            assert len(await until_held(target, 3)) == 3

    asyncio.run(run())


def test_what_the_target_refuses_becomes_a_dead_letter_of_the_source(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            disabled = queue("target", status=EntityStatus.DISABLED)
            await broker.queues.create(disabled)
            source = await broker.queues.create(queue("source", forward_to="target"))
            await send(source, "a")
            (letter,) = await until_held(source, 1, SubQueue.DEAD_LETTER)
            assert letter.amendment.dead_letter_reason == "EntityDisabled"

    asyncio.run(run())


def test_forwarding_to_what_does_not_exist_is_refused(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            with pytest.raises(ArgumentError, match="no such queue"):
                await broker.queues.create(queue("source", forward_to="target"))
            with pytest.raises(ArgumentError, match="no such queue"):
                await broker.queues.create(queue("source", forward_dead_lettered_to="target"))

    asyncio.run(run())


@pytest.mark.parametrize("failing", ["left", "right"])
def test_a_failed_commit_on_either_side_neither_loses_nor_doubles(
    catalog: SqliteCatalog, stores: list[GatedStore], failing: str
) -> None:  # P-34
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            target = await broker.queues.create(queue("target", enable_partitioning=True))
            source = await broker.queues.create(queue("source", enable_partitioning=True))
            await send(source, *map(str, range(64)))
            for store in stores:
                if store.name == failing:
                    store.fails_once = StoreUnavailable("away")
            await broker.queues.update(replace(source.description, forward_to=EntityPath("target")))
            await until_held(target, 64)

            async def moved() -> bool:
                return not await held(source) and not await held(source, SubQueue.OUTBOX)

            await until(moved)
            assert len(await held(target)) == 64

    asyncio.run(run())


def test_what_was_sent_but_not_yet_removed_is_dropped_after_a_restart(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:  # P-34
    """The crash between the two commits: durable at the target, still in the outbox of the source."""
    left, right = stores

    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            # The first queue lives in the left store, the second in the right one.
            target = await broker.queues.create(queue("target"))
            source = await broker.queues.create(queue("source"))
            await send(source, "a", "b", "c")
            groups = len(right.groups)
            right.shut()
            await broker.queues.update(replace(source.description, forward_to=EntityPath("target")))
            right.let_one_through()  # the posting
            await until_held(target, 3)
            assert len(right.groups) == groups + 1
            right.fails_once = StoreUnavailable("crashed")
            right.open_gate()
        async with at_work(catalog, stores) as broker:
            target, source = broker.find("target"), broker.find("source")
            await source.loaded()

            async def moved() -> bool:
                return not await held(source, SubQueue.OUTBOX)

            await until(moved)
            assert len(await held(target)) == 3
            assert left.load(target.hosts[0]._key).transferred

    asyncio.run(run())


def test_what_was_being_forwarded_is_gone_after_emptying_and_forwarding_goes_on(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:  # B-08
    async def run() -> None:
        async with at_work(catalog, stores) as broker:
            target = await broker.queues.create(queue("target"))
            source = await broker.queues.create(
                queue("source", enable_partitioning=True, forward_to="target")
            )
            for turns in range(20):
                await send(source, *map(str, range(5)))
                # Wherever on their way the emptying meets them.
                for _ in range(turns):
                    await asyncio.sleep(0)
                await broker.empty()
                for subqueue in (SubQueue.MAIN, SubQueue.OUTBOX):
                    assert await held(source, subqueue) == await held(target, subqueue) == []
            await send(source, "later")
            assert len(await until_held(target, 1)) == 1

    asyncio.run(run())
