"""A namespace is emptied while a transaction is open (B-08).

The sequence numbers of its entities start again. The numbers that the transaction has belong to the former
partitions. Other messages may have them now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from bendybus.amqp.types import Timestamp
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.topic import SendTarget
from bendybus.broker.transactions import commit
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import SubQueue
from bendybus.domain.topic_entities import TopicDescription
from bendybus.domain.transactions import MessageKeys
from bendybus.errors import BrokerError, TransactionRolledBack
from bendybus.gateway.management.operation import Managed
from bendybus.gateway.management.scheduling import OPERATIONS
from bendybus.gateway.transaction import Transaction
from bendybus.names import EntityPath, SequenceNumber
from bendybus.store.memory import MemoryStore
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_broker import at_work, message
from fix_topics import encoded

SCHEDULE = OPERATIONS["com.microsoft:schedule-message"]
CANCEL = OPERATIONS["com.microsoft:cancel-scheduled-message"]


@pytest.fixture(params=["queue", "topic"])
def kind(request: pytest.FixtureRequest) -> str:
    return cast(str, request.param)


@asynccontextmanager
async def target_of(kind: str, folder: Path) -> AsyncIterator[tuple[Broker, SendTarget]]:
    catalog = SqliteCatalog(folder / "catalog.db")
    catalog.open()
    try:
        async with at_work(catalog, [MemoryStore("a")]) as broker:
            path = EntityPath("orders")
            if kind == "queue":
                yield broker, await broker.queues.create(QueueDescription(path))
            else:
                yield broker, await broker.topics.create(TopicDescription(path))
    finally:
        catalog.close()


def managed(target: SendTarget) -> Managed:
    return Managed(target, SubQueue.MAIN, cast(Any, None), {})


async def schedule(
    target: SendTarget, transaction: Transaction | None = None, count: int = 1
) -> list[SequenceNumber]:
    payload = encoded("later", Timestamp(now() + 3_600_000))
    body = {"messages": [{"message": payload}] * count}
    if transaction is None:
        answer = await SCHEDULE.run(managed(target), body)
    else:
        assert SCHEDULE.enlist is not None
        answer = await SCHEDULE.enlist(managed(target), body, transaction)
    numbers: list[SequenceNumber] = cast(Any, answer)["sequence-numbers"].values
    return numbers


async def cancel(target: SendTarget, numbers: list[SequenceNumber], transaction: Transaction) -> None:
    assert CANCEL.enlist is not None
    await CANCEL.enlist(managed(target), {"sequence-numbers": numbers}, transaction)


async def test_numbers_that_were_reserved_before_are_not_used_after(kind: str, tmp_path: Path) -> None:
    async with target_of(kind, tmp_path) as (broker, target):
        transaction = Transaction(b"t")
        await schedule(target, transaction, count=2)
        await broker.empty()
        others = await schedule(target)
        with pytest.raises(TransactionRolledBack, match="was emptied"):
            await commit(transaction.placed_work())
        assert target.own[0].partition.scheduled_count == 1
        again = Transaction(b"again")
        assert others[0] not in await schedule(target, again)
        await commit(again.placed_work())
        assert target.own[0].partition.scheduled_count == 2


async def test_a_commit_that_waits_while_the_entity_is_emptied_is_refused(kind: str, tmp_path: Path) -> None:
    async with target_of(kind, tmp_path) as (broker, target):
        transaction = Transaction(b"t")
        await schedule(target, transaction)
        emptying = asyncio.create_task(broker.empty())
        await asyncio.sleep(0)
        assert target.loading
        with pytest.raises(TransactionRolledBack, match="was emptied"):
            await commit(transaction.placed_work())
        await emptying
        assert target.own[0].partition.scheduled_count == 0


async def test_a_cancelled_number_does_not_cancel_its_successor(kind: str, tmp_path: Path) -> None:
    async with target_of(kind, tmp_path) as (broker, target):
        before = await schedule(target)
        transaction = Transaction(b"t")
        await cancel(target, before, transaction)
        await broker.empty()
        assert await schedule(target) == before
        with pytest.raises(TransactionRolledBack, match="was emptied"):
            await commit(transaction.placed_work())
        assert target.own[0].partition.scheduled_count == 1


async def test_messages_without_numbers_are_committed_after_all(kind: str, tmp_path: Path) -> None:
    async with target_of(kind, tmp_path) as (broker, target):
        transaction = Transaction(b"t")
        transaction.send(target, [message()], [MessageKeys(None, None, None)], None)
        await broker.empty()
        ended: list[BrokerError | None] = []
        await target.loaded()
        ((port, _),) = work = transaction.placed_work()
        if not port.commit_at_once(work, ended.append):
            await commit(work)
        await broker.drain()
        assert ended in ([], [None])
        assert next(iter(target.own.values())).tally.incoming == 1
