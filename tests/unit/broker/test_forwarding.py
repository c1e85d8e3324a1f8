"""The forwarder: exactly once between any mix of queues, though commits fail and brokers start anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bendybus.amqp.message import Properties, encode_message
from bendybus.broker import forwarding
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.partition_port import PartitionPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Command, Enqueue, Given, Peek, Reply
from bendybus.domain.entities import EntityStatus, QueueDescription, Tier
from bendybus.domain.messages import Message, SubQueue
from bendybus.envelope import admit
from bendybus.errors import ArgumentError, StoreUnavailable
from bendybus.names import EntityPath, SequenceNumber
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import GatedStore, at_work, until_answered

# properties: message-id "m", application-properties {}, data "x", as an ordinary client writes them.
BARE = b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x75\xa0\x01x"


@pytest.fixture
def stores() -> list[GatedStore]:
    return [GatedStore("left"), GatedStore("right")]


def queue(path: str, **properties: object) -> QueueDescription:
    return QueueDescription(EntityPath(path), **properties)


async def send(target: Queue, *texts: str) -> None:
    for text in texts:
        payload = BARE[:-2] + len(text).to_bytes(1, "big") + text.encode()
        message, key = admit(payload, now(), target.description)
        await target.host_for(key).ask(Enqueue([message]))


async def held(source: Queue, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
    messages: list[Message] = []
    for host in source.hosts:
        given = await host.ask(Peek(SequenceNumber(0), 1000, subqueue))
        assert isinstance(given, Given)
        messages += given.messages
    return messages


async def until_held(target: Queue, count: int, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
    async def enough() -> bool:
        return len(await held(target, subqueue)) >= count

    await until_answered(enough)
    return await held(target, subqueue)


@pytest.mark.row("P-34")
@pytest.mark.parametrize("source_partitioned", [False, True])
@pytest.mark.parametrize("target_partitioned", [False, True])
async def test_every_message_moves_once_between_any_mix(
    catalog: SqliteCatalog, stores: list[GatedStore], source_partitioned: bool, target_partitioned: bool
) -> None:
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


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_queue_that_forwards_to_itself_ends_at_the_hop_limit(
    catalog: SqliteCatalog, stores: list[GatedStore], partitioned: bool
) -> None:
    async with at_work(catalog, stores) as broker:
        source = await broker.queues.create(
            queue("round", enable_partitioning=partitioned, forward_to="ROUND")
        )
        await send(source, *map(str, range(20)))
        stuck = await until_held(source, 20, SubQueue.DEAD_LETTER)
        assert len(stuck) == 20 and all(message.origin.hops == 4 for message in stuck)
        assert {message.amendment.dead_letter_reason for message in stuck} == {"MaxTransferHopCountExceeded"}
        assert await held(source) == []


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_queue_with_sessions_forwards_each_session_in_order(
    catalog: SqliteCatalog, stores: list[GatedStore], partitioned: bool
) -> None:
    async with at_work(catalog, stores) as broker:
        options = {"enable_partitioning": partitioned, "requires_session": True}
        target = await broker.queues.create(queue("target", **options))
        source = await broker.queues.create(queue("source", **options, forward_to="target"))
        for number in range(60):
            payload = encode_message(data=b"x", properties=Properties(group_id=f"s{number % 7}"))
            message, key = admit(payload, now(), source.description)
            await source.host_for(key).ask(Enqueue([message]))
        arrived = await until_held(target, 60)
        assert len(arrived) == 60 and await held(source) == []
        for session in range(7):
            numbers = [each.origin.sequence_number for each in arrived if each.session_id == f"s{session}"]
            assert numbers == sorted(numbers) and numbers


async def test_a_chain_keeps_the_first_number_and_counts_hops(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
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


async def test_a_backlog_moves_when_forwarding_is_switched_on(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async with at_work(catalog, stores) as broker:
        target = await broker.queues.create(queue("target"))
        source = await broker.queues.create(queue("source"))
        await send(source, "a", "b", "c")
        await broker.queues.update(replace(source.description, forward_to=EntityPath("target")))
        assert len(await until_held(target, 3)) == 3


async def test_what_the_target_refuses_becomes_a_dead_letter_of_the_source(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async with at_work(catalog, stores) as broker:
        disabled = queue("target", status=EntityStatus.DISABLED)
        await broker.queues.create(disabled)
        source = await broker.queues.create(queue("source", forward_to="target"))
        await send(source, "a")
        (letter,) = await until_held(source, 1, SubQueue.DEAD_LETTER)
        assert letter.amendment.dead_letter_reason == "EntityDisabled"


async def test_forwarding_to_what_does_not_exist_is_refused(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async with at_work(catalog, stores) as broker:
        with pytest.raises(ArgumentError, match="no such queue"):
            await broker.queues.create(queue("source", forward_to="target"))
        with pytest.raises(ArgumentError, match="no such queue"):
            await broker.queues.create(queue("source", forward_dead_lettered_to="target"))


@pytest.mark.row("P-34")
@pytest.mark.parametrize("failing", ["left", "right"])
async def test_a_failed_commit_on_either_side_neither_loses_nor_doubles(
    catalog: SqliteCatalog, stores: list[GatedStore], failing: str
) -> None:
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

        await until_answered(moved)
        assert len(await held(target)) == 64


class SilentPort:
    """What stands for a partition whose owner is lost while it is asked."""

    def __init__(self, host: PartitionPort) -> None:
        self._host = host
        self.asked = asyncio.Event()
        self.lost = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def ask(self, command: Command) -> Reply:
        self.asked.set()
        await self.lost.wait()
        raise StoreUnavailable("the owner does not answer")


async def test_nothing_overtakes_what_was_sent_to_an_owner_that_is_replaced(
    catalog: SqliteCatalog, stores: list[GatedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Found by a simulation of three brokers: the first message was taken for a duplicate, and was lost.
    monkeypatch.setattr(forwarding, "RETRY_AFTER_S", 0.01)
    async with at_work(catalog, stores) as broker:
        target = await broker.queues.create(queue("target"))
        source = await broker.queues.create(queue("source", forward_to=EntityPath("target")))
        owner = target.hosts[0]
        target.hosts[0] = former = SilentPort(owner)  # type: ignore[call-overload]
        await send(source, "1")
        await former.asked.wait()
        await send(source, "2")
        target.hosts[0] = owner
        former.lost.set()
        first, second = await until_held(target, 2)
        assert first.sequence_number < second.sequence_number


@pytest.mark.row("P-34")
async def test_what_was_sent_but_not_yet_removed_is_dropped_after_a_restart(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    """The crash between the two commits: durable at the target, still in the outbox of the source."""
    left, right = stores

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

        await until_answered(moved)
        assert len(await held(target)) == 3
        assert left.load(target.hosts[0].key).transferred


@pytest.mark.row("B-08")
async def test_what_was_being_forwarded_is_gone_after_emptying_and_forwarding_goes_on(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    async with at_work(catalog, stores) as broker:
        target = await broker.queues.create(queue("target"))
        source = await broker.queues.create(queue("source", enable_partitioning=True, forward_to="target"))
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


@pytest.mark.row("B-08")
async def test_a_pause_that_ends_after_an_emptying_disturbs_no_later_transfer(
    catalog: SqliteCatalog, stores: list[GatedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second task began to move the same outbox, and the one that ended last failed with a KeyError.
    monkeypatch.setattr(forwarding, "RETRY_AFTER_S", 0.3)
    left, right = stores
    async with at_work(catalog, stores) as broker:
        target = await broker.queues.create(queue("target"))
        source = await broker.queues.create(queue("source", forward_to="target"))
        forwarder = broker.entities.forwarder(source)
        go_away(broker, left)
        await send(source, "early")
        await forwarder.settled()
        await come_back(broker, left)
        await broker.empty()
        right.shut()
        sending = asyncio.create_task(send(source, "later"))
        await asyncio.to_thread(right.reached.wait, 10)
        right.let_one_through()
        await sending
        # The posting is stuck.
        await asyncio.to_thread(right.reached.wait, 10)
        (moving,) = forwarder._moving.values()
        await asyncio.sleep(0.4)
        assert [*forwarder._moving.values()] == [moving]
        right.open_gate()
        assert len(await until_held(target, 1)) == 1
        await forwarder.settled()
        assert moving.exception() is None


# -- a partition of the destination that is away (P-16) ------------------------------


class ForgetfulStore(GatedStore):
    """Its next commit happens and is reported as failed."""

    loses_reply = False

    def commit(self, changes: Sequence[PartitionChanges]) -> None:
        super().commit(changes)
        if self.loses_reply:
            self.loses_reply = False
            raise StoreUnavailable("connection lost")


def go_away(broker: Broker, store: GatedStore) -> None:
    store.outage = StoreUnavailable("away")
    broker.stores[store.name].fail(store.outage)


async def come_back(broker: Broker, store: GatedStore) -> None:
    store.outage = None
    await broker.recovered()


def on_disk(target: Queue, store: GatedStore) -> int:
    """What a store keeps of a queue, whether it says so or not."""
    numbers = [host for host in target.hosts if host.store.store is store]
    return sum(len(store._partitions[host.key].messages) for host in numbers)


async def until_on_disk(target: Queue, store: GatedStore, count: int) -> None:
    async def enough() -> bool:
        return on_disk(target, store) >= count

    await until_answered(enough)


async def pair(broker: Broker, **properties: object) -> tuple[Queue, Queue]:
    """A target in both stores, and a source in the right one, with a backlog of posted numbers."""
    target = await broker.queues.create(queue("target", enable_partitioning=True))
    source = await broker.queues.create(queue("source", **properties))
    assert source.hosts[0].store.name == "right"
    return target, source


async def forward(broker: Broker, source: Queue) -> None:
    await broker.queues.update(replace(source.description, forward_to=EntityPath("target")))


async def arrived_once(target: Queue, source: Queue, count: int) -> None:
    async def moved() -> bool:
        left = [await held(source, subqueue) for subqueue in (SubQueue.MAIN, SubQueue.OUTBOX)]
        return left == [[], []] and len(await held(target)) >= count

    await until_answered(moved)
    assert len({message.origin.sequence_number for message in await held(target)}) == count
    assert len(await held(target)) == count


@pytest.mark.row("P-16", "P-34")
@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.PREMIUM])
async def test_messages_without_a_key_go_to_another_partition(
    catalog: SqliteCatalog, stores: list[GatedStore], tier: Tier
) -> None:
    left, right = stores

    # In Premium the source has a partition in the left store too, and senders go round it.
    async with at_work(catalog, stores, tier=tier) as broker:
        if tier is Tier.PREMIUM:
            target, source = await pair(broker, enable_partitioning=True)
        else:
            target, source = await pair(broker)
        await forward(broker, source)
        go_away(broker, left)
        for number in range(20):
            await send(source, *(f"{number}-{text}" for text in range(20)))
        await until_on_disk(target, right, 400)
        assert on_disk(target, left) == 0
        await come_back(broker, left)
        await arrived_once(target, source, 400)


@pytest.mark.row("P-17")
async def test_a_message_with_a_key_waits_for_its_partition(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    left, right = stores

    async with at_work(catalog, stores) as broker:
        target, source = await pair(broker)
        key = next(key for key in map(str, range(100)) if target.host_for(key).store.store is left)
        await forward(broker, source)
        go_away(broker, left)
        await send(source, *["x"] * 70)
        keyed = encode_message(
            message_annotations={"x-opt-partition-key": key},
            properties=Properties(message_id="keyed"),
            data=b"keyed",
        )
        message, _ = admit(keyed, now(), source.description)
        await source.hosts[0].ask(Enqueue([message]))
        await send(source, *["x"] * 70)
        await until_on_disk(target, right, 140)
        assert len(await held(source, SubQueue.OUTBOX)) == 1
        await come_back(broker, left)
        await arrived_once(target, source, 141)


@pytest.mark.row("P-34")
@pytest.mark.parametrize("landed", [False, True])
async def test_a_message_in_doubt_waits_for_the_partition_it_was_sent_to(
    catalog: SqliteCatalog, landed: bool
) -> None:
    """Sent, and the store went away before it answered: nobody can say whether it arrived."""
    left, right = stores = [ForgetfulStore("left"), ForgetfulStore("right")]

    async with at_work(catalog, stores) as broker:
        target, source = await pair(broker)
        await send(source, *["x"] * 300)
        if landed:
            left.loses_reply = True
        else:
            left.fails_once = StoreUnavailable("torn")
        attached = broker.stores["left"]
        attached.fail, fail = lambda error: (go_down(), fail(error)), attached.fail
        attached.writer._store_failed = attached.fail

        def go_down() -> None:
            left.outage = StoreUnavailable("away")

        await forward(broker, source)

        async def only_doubts_are_left() -> bool:
            posted = len(await held(source, SubQueue.OUTBOX))
            return not await held(source) and on_disk(target, right) + posted == 300 and posted < 200

        await until_answered(only_doubts_are_left)
        doubtful = len(await held(source, SubQueue.OUTBOX))
        assert doubtful > 0
        # Later ones do not wait with them.
        await send(source, *["y"] * 100)
        await until_on_disk(target, right, 400 - doubtful)
        assert on_disk(target, right) == 400 - doubtful
        await come_back(broker, left)
        await arrived_once(target, source, 400)


@pytest.mark.row("P-34")
async def test_what_an_earlier_life_may_have_sent_waits_for_its_partition(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    left, right = stores

    async with at_work(catalog, stores) as broker:
        target, source = await pair(broker)
        await send(source, *["x"] * 300)
        right.shut()
        await forward(broker, source)
        right.let_one_through()  # the posting
        # All of it is sent; what goes to the left arrives, and the server ends before that is noted.
        await until_on_disk(target, left, 1)
        right.fails_once = StoreUnavailable("crashed")
        right.open_gate()
    left.outage = StoreUnavailable("away")
    async with at_work(catalog, stores) as broker:
        target, source = broker.find("target"), broker.find("source")
        await send(source, *["y"] * 100)
        await until_on_disk(target, right, 100)
        assert len(await held(source, SubQueue.OUTBOX)) > 0
        await come_back(broker, left)
        await arrived_once(target, source, 400)


@pytest.mark.row("P-34")
async def test_a_reassignment_that_fails_neither_loses_nor_doubles(
    catalog: SqliteCatalog, stores: list[GatedStore]
) -> None:
    left, right = stores

    async with at_work(catalog, stores) as broker:
        target, source = await pair(broker)
        await send(source, *["x"] * 200)
        go_away(broker, left)
        right.shut()
        with suppress(StoreUnavailable):
            await forward(broker, source)
        right.let_one_through()  # the posting
        await asyncio.to_thread(right.reached.wait, 10)
        right.fails_once = StoreUnavailable("crashed")
        right.open_gate()
        await come_back(broker, left)
        await arrived_once(target, source, 200)
