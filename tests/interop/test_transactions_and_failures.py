"""Transactions across entities when something fails: the server is killed, or a store is away."""

from __future__ import annotations

import pytest

from bendybus.amqp.performatives import Accepted
from bendybus.domain.routing import partition_of
from fix_server import ServerProcess, StartServer
from fix_transactions import OwnEntities, message, text_of, transaction_client
from interop.test_outages import switch, until_back

PREMIUM = ("--tier", "premium")  # two partitions each

KINDS = pytest.mark.parametrize(
    ("partitioned", "options"),
    [(False, ()), (True, ()), (True, PREMIUM)],
    ids=["1 partition", "16 partitions", "2 partitions"],
)

STORES = 4


def topic(name: str, *, partitioned: bool) -> dict[str, object]:
    return {
        "Name": name,
        "Properties": {"EnablePartitioning": partitioned},
        "Subscriptions": [{"Name": "s"}],
    }


async def drained(server: ServerProcess, entity: str, number: int) -> list[str]:
    """The texts of so many messages, which may still be on their way; there must not be more."""
    async with transaction_client(OwnEntities(server)) as tx:
        texts = await tx.arrived(number, entity)
        assert await tx.contents(entity) == []
    return texts


@pytest.mark.row("P-23", "P-37")
@KINDS
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
@pytest.mark.parametrize("via", ["queue", "topic"])
async def test_a_crash_leaves_all_of_what_spans_entities_or_nothing(
    start_server: StartServer, partitioned: bool, options: tuple[str, ...], when: str, via: str
) -> None:
    queues = {name: {"EnablePartitioning": partitioned} for name in ("first", "other")}
    topics = [topic(name, partitioned=partitioned) for name in ("news", "echo")]
    server = start_server(queues, None, *options, topics=topics)
    first, source = ("first", "first") if via == "queue" else ("news", "news/Subscriptions/s")

    async with transaction_client(OwnEntities(server), spans_entities=True) as tx:
        assert await tx.send(message("old"), queue=first) == [None]
        receiver, [old] = await tx.receive(1, source)
        txn = await tx.coordinator.declare()
        for entity in ("other", "echo", first):
            assert await tx.send(message("new"), txn=txn, queue=entity) == [None]
        assert await tx.settle(receiver, [old], txn) is None
        if when == "after the commit":
            assert await tx.coordinator.commit(txn) == Accepted()
        server.kill()

    server.start()
    new = ["new"] if when == "after the commit" else []
    for entity in ("other", "echo/Subscriptions/s"):
        assert await drained(server, entity, len(new)) == new
    assert await drained(server, source, 1) == (new or ["old"])


@pytest.mark.row("P-16", "P-37")
@pytest.mark.parametrize(("partitioned", "options"), [(True, ())], ids=["16 partitions"])
async def test_what_only_leaves_an_entity_leaves_from_a_partition_that_is_there(
    start_server: StartServer, partitioned: bool, options: tuple[str, ...]
) -> None:
    queues: dict[str, dict[str, object]] = {"q": {"EnablePartitioning": partitioned}, "plain": {}}
    server = start_server(queues, None, "--development", "--stores", str(STORES), *options)

    async with transaction_client(OwnEntities(server), spans_entities=True) as tx:
        await tx.sender("q")
        away = next(key for key in map(str, range(1000)) if partition_of(key, 16) % STORES == 1)
        switch(server, 1, "fail")
        # It is found out by whoever writes there first.
        await tx.send(message("lost", key=away), queue="q")
        for number in range(2 * 16):
            txn = await tx.coordinator.declare()
            sent = [message(str(number)), message("k", key=away)][number % 2]
            assert await tx.send(sent, txn=txn, queue="plain") == [None]
            assert await tx.coordinator.commit(txn) == Accepted()
        switch(server, 1, "heal")

    until_back(server)
    assert len(await drained(server, "plain", 32)) == 32
    server.expect_trouble("store store-1 is away")


@pytest.mark.row("P-23", "P-37")
async def test_a_settlement_in_a_partition_that_is_away_fails_the_commit_and_comes_again(
    start_server: StartServer,
) -> None:
    queues: dict[str, dict[str, object]] = {"q": {"EnablePartitioning": True}, "plain": {}}
    server = start_server(queues, None, "--development", "--stores", str(STORES))
    texts: list[str] = []

    async with transaction_client(OwnEntities(server), spans_entities=True) as tx:
        away = next(key for key in map(str, range(1000)) if partition_of(key, 16) % STORES == 1)
        assert await tx.send(message("old", key=away), queue="q") == [None]
        receiver, [old] = await tx.receive(1, "q")
        txn = await tx.coordinator.declare()
        assert await tx.send(message("never"), txn=txn, queue="plain") == [None]
        assert await tx.settle(receiver, [old], txn) is None
        switch(server, 1, "fail")
        assert await tx.coordinator.commit(txn) != Accepted()
        switch(server, 1, "heal")
        receiver.grant(1)
        texts.extend(map(text_of, await receiver.receive(1)))

    assert texts == ["old"]
    assert await drained(server, "plain", 0) == []
    server.expect_trouble("store store-1 is away")
