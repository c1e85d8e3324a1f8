"""Scheduling and cancelling inside a transaction: both take effect with the commit, or not at all."""

from __future__ import annotations

import pytest

from bendybus.amqp.message import decode_message
from bendybus.amqp.performatives import Accepted, TransactionalState
from bendybus.amqp.types import Array
from fix_client import Requester
from fix_kinds import SdkBus, on_each_kind, on_partitioned_kinds
from fix_transactions import (
    NOT_ALLOWED,
    OwnEntities,
    TransactionClient,
    condition,
    message,
    request_all,
    transaction_client,
)

LATER = 4_000_000_000_000
LONG_AGO = 1_000_000_000_000
GONE = "com.microsoft:message-not-found"

COMMITS = pytest.mark.parametrize("commits", [False, True], ids=["rolled back", "committed"])


async def schedule(requester: Requester, txn: bytes | None, *messages: bytes) -> list[int]:
    """The numbers that the server gives them."""
    body = {"messages": [{"message-id": str(place), "message": each} for place, each in enumerate(messages)]}
    request = requester.encode(body, {"operation": "com.microsoft:schedule-message"})
    await requester.sender.send(request, state=None if txn is None else TransactionalState(txn))
    (reply,) = await requester.replies.receive()
    requester.replies.link.top_up(100)
    answer = decode_message(reply.payload)
    assert answer.application_properties["statusCode"] == 200, answer.application_properties
    return [int(number) for number in answer.value["sequence-numbers"].values]


async def cancel(requester: Requester, txn: bytes | None, *numbers: int) -> str | None:
    """None, or why not."""
    (told,) = await request_all(
        requester, txn, ("cancel-scheduled-message", {"sequence-numbers": Array(int, list(numbers))})
    )
    return told


async def kept(requester: Requester) -> list[str]:
    """All messages, those that wait for their time included."""
    reply = await requester.ask(
        "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 100}
    )
    if reply.application_properties["statusCode"] == 204:
        return []
    messages = [decode_message(each["message"]) for each in reply.value["messages"]]
    return sorted(bytes(each.data[0]).decode() for each in messages)


async def discharge(tx: TransactionClient, txn: bytes, commits: bool) -> None:
    coordinator = tx.coordinator
    assert await (coordinator.commit(txn) if commits else coordinator.roll_back(txn)) == Accepted()


@pytest.mark.row("P-23")
@COMMITS
@on_each_kind
async def test_messages_are_scheduled_by_the_commit(bus: SdkBus, commits: bool) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(queue)
        txn = await tx.coordinator.declare()
        await schedule(requester, txn, message("later", key="k", due=LATER))
        assert await kept(requester) == []
        await discharge(tx, txn, commits)
        assert await kept(requester) == (["later"] if commits else [])


@pytest.mark.row("P-23")
@COMMITS
@on_each_kind
async def test_a_message_whose_time_has_come_is_sent_by_the_commit(bus: SdkBus, commits: bool) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(queue)
        txn = await tx.coordinator.declare()
        numbers = await schedule(
            requester, txn, message("now", key="k", due=LONG_AGO), message("later", key="k", due=LATER)
        )
        assert len(set(numbers)) == 2
        assert await tx.contents(queue) == []
        await discharge(tx, txn, commits)
        assert await tx.contents(queue) == (["now"] if commits else [])


@pytest.mark.row("P-23")
@COMMITS
@pytest.mark.parametrize("entity", ["queue", "topic"])
@on_each_kind
async def test_messages_are_cancelled_by_the_commit(bus: SdkBus, entity: str, commits: bool) -> None:
    target = bus.queue() if entity == "queue" else bus.topic("s")

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(target)
        number, other = await schedule(
            requester, None, message("a", key="k", due=LATER), message("b", key="k", due=LATER)
        )
        txn = await tx.coordinator.declare()
        assert await cancel(requester, txn, number) is None
        assert await tx.send(message("instead", key="k"), txn=txn, queue=target) == [None]
        await discharge(tx, txn, commits)
        # What is cancelled cannot be cancelled again.
        assert await cancel(requester, None, number) == (GONE if commits else None)
        assert await cancel(requester, None, other) is None
        received = f"{target}/Subscriptions/s" if entity == "topic" else target
        assert await tx.contents(received) == (["instead"] if commits else [])


@pytest.mark.row("P-23")
@on_each_kind
async def test_what_a_transaction_scheduled_it_can_cancel(bus: SdkBus) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(queue)
        txn = await tx.coordinator.declare()
        sent = message("a", key="k", due=LATER), message("b", key="k", due=LATER)
        first, _ = await schedule(requester, txn, *sent)
        assert await cancel(requester, txn, first) is None
        await discharge(tx, txn, commits=True)
        assert await kept(requester) == ["b"]


@pytest.mark.row("P-23")
@on_each_kind
async def test_a_message_is_cancelled_once_and_only_if_it_is_there(bus: SdkBus) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(queue)
        (number,) = await schedule(requester, None, message("a", key="k", due=LATER))
        for wanted in ([number + 1], [number, number + 1]):
            txn = await tx.coordinator.declare()
            assert await cancel(requester, txn, *wanted) == GONE
            assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        txn = await tx.coordinator.declare()
        assert await cancel(requester, txn, number) is None
        assert await cancel(requester, txn, number) == GONE
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await kept(requester) == ["a"]


@pytest.mark.row("P-20")
@on_partitioned_kinds
async def test_cancelling_in_two_partitions_is_refused(bus: SdkBus) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(queue)
        numbers = [
            number
            for place in range(20)
            for number in await schedule(requester, None, message("a", key=str(place), due=LATER))
        ]
        by_partition = {number >> 48: number for number in numbers}
        assert len(by_partition) > 1
        txn = await tx.coordinator.declare()
        assert await cancel(requester, txn, *by_partition.values()) == NOT_ALLOWED


@pytest.mark.row("P-15")
@COMMITS
@on_each_kind
async def test_a_duplicate_that_is_scheduled_is_dropped_by_the_commit(bus: SdkBus, commits: bool) -> None:
    queue = bus.queue(requires_duplicate_detection=True)

    async with transaction_client(OwnEntities(bus.server)) as tx:
        requester = await tx.requester(queue)
        assert await tx.send(message("first", id="1", key="k"), queue=queue) == [None]
        txn = await tx.coordinator.declare()
        numbers = await schedule(
            requester,
            txn,
            message("again", id="1", key="k", due=LATER),
            message("second", id="2", key="k", due=LATER),
            message("third", id="3", key="k", due=LONG_AGO),
        )
        assert len(set(numbers)) == 3
        await discharge(tx, txn, commits)
        # What was committed is remembered, and nothing else is.
        assert await tx.send(message("second", id="2", key="k"), queue=queue) == [None]
        assert await kept(requester) == (["first", "second", "third"] if commits else ["first", "second"])
        assert await tx.contents(queue) == (["first", "third"] if commits else ["first", "second"])


@pytest.mark.row("P-37")
@on_each_kind
async def test_a_message_is_scheduled_in_the_partition_of_a_transaction_across_entities(
    bus: SdkBus,
) -> None:
    queue, other = bus.queue(), bus.queue()

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        assert await tx.send(message("order"), queue=queue) == [None]
        receiver, [order] = await tx.receive(1, queue)
        requester = await tx.requester(queue)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1"), txn=txn, queue=other) == [None]
        assert await tx.settle(receiver, [order], txn) is None
        (number,) = await schedule(requester, txn, message("later", due=LATER))
        assert number >> 48 == int.from_bytes(order.tag[:2], "big")
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await kept(requester) == ["later"]
