"""After a rollback a delivery is still its receiver's, on the link on which it came.

The answer to an outcome in a transaction leaves the delivery unsettled. The commit
settles it; after a rollback its receiver names another outcome, in sessions too.
"""

from __future__ import annotations

import pytest

from bendybus.amqp.performatives import Accepted, DeliveryState, Modified, Rejected, TransactionalState
from bendybus.engine.deliveries import Delivery
from fix_client import Receiver
from fix_kinds import SdkBus, on_each_kind, on_partitioned_kinds
from fix_transactions import (
    NOT_ALLOWED,
    OwnEntities,
    TransactionClient,
    condition,
    message,
    text_of,
    transaction_client,
)

OUTCOMES: dict[str, DeliveryState] = {
    "complete": Accepted(),
    "abandon": Modified(delivery_failed=True),
    "defer": Modified(undeliverable_here=True),
    "dead-letter": Rejected(),
}

EACH_OUTCOME = pytest.mark.parametrize("outcome", OUTCOMES)
SESSIONS = pytest.mark.parametrize("requires_session", [False, True], ids=["plain", "sessions"])


async def received(tx: TransactionClient, queue: str, requires_session: bool) -> tuple[Receiver, Delivery]:
    """The one message of a queue, under lock."""
    await tx.send(message("m", session="s" if requires_session else None), queue=queue)
    wanted: dict[str, object] | None = {"com.microsoft:session-filter": "s"} if requires_session else None
    receiver = await tx.client.receiver(queue, credit=1, filter=wanted)
    (delivery,) = await receiver.receive(1)
    return receiver, delivery


async def left(tx: TransactionClient, queue: str, requires_session: bool) -> list[str]:
    if not requires_session:
        return await tx.contents(queue)
    receiver = await tx.client.receiver(queue, filter={"com.microsoft:session-filter": "s"})
    found = await receiver.drain(10)
    return sorted(map(text_of, found))


@pytest.mark.row("P-13", "P-23")
@SESSIONS
@EACH_OUTCOME
@on_each_kind
async def test_after_a_rollback_the_same_delivery_takes_any_outcome(
    bus: SdkBus, outcome: str, requires_session: bool
) -> None:
    queue = bus.queue(requires_session=requires_session)

    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver, delivery = await received(tx, queue, requires_session)
        txn = await tx.coordinator.declare()
        assert await tx.settle(receiver, [delivery], txn) is None
        assert not receiver.is_settled(delivery), "it stays unsettled until the discharge"
        assert await tx.coordinator.roll_back(txn) == Accepted()
        assert not receiver.is_settled(delivery)
        assert not receiver.is_gone, "the session is still held"
        (answer,) = await receiver.settled_as([delivery], OUTCOMES[outcome])
        assert condition(answer) is None
        assert receiver.is_settled(delivery)
        receiver.detach()
        await receiver.detached()
        assert await left(tx, queue, requires_session) == (["m"] if outcome == "abandon" else [])
        dead = ["m"] if outcome == "dead-letter" else []
        assert await tx.contents(f"{queue}/$deadletterqueue") == dead


@pytest.mark.row("P-23")
@SESSIONS
@on_each_kind
async def test_a_commit_settles_the_delivery(bus: SdkBus, requires_session: bool) -> None:
    queue = bus.queue(requires_session=requires_session)

    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver, delivery = await received(tx, queue, requires_session)
        rolled_back = await tx.coordinator.declare()
        await tx.settle(receiver, [delivery], rolled_back, Modified(undeliverable_here=True))
        await tx.coordinator.roll_back(rolled_back)
        txn = await tx.coordinator.declare()
        assert await tx.settle(receiver, [delivery], txn) is None
        assert await tx.coordinator.commit(txn) == Accepted()
        assert receiver.is_settled(delivery)
        receiver.detach()
        await receiver.detached()
        assert await left(tx, queue, requires_session) == []


@pytest.mark.row("P-23")
@SESSIONS
@on_each_kind
async def test_a_failed_commit_leaves_the_delivery_to_its_receiver(
    bus: SdkBus, requires_session: bool
) -> None:
    queue, other = bus.queue(requires_session=requires_session), bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver, delivery = await received(tx, queue, requires_session)
        txn = await tx.coordinator.declare()
        assert await tx.settle(receiver, [delivery], txn) is None
        assert await tx.send(message("x", key="k"), txn=txn, queue=other) == [NOT_ALLOWED]
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        (answer,) = await receiver.settled_as([delivery])
        assert condition(answer) is None


@pytest.mark.row("P-23")
@SESSIONS
@on_each_kind
async def test_an_outcome_in_an_unknown_transaction_changes_nothing(
    bus: SdkBus, requires_session: bool
) -> None:
    queue = bus.queue(requires_session=requires_session)

    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver, delivery = await received(tx, queue, requires_session)
        assert await tx.settle(receiver, [delivery], b"nonsense") == "amqp:transaction:unknown-id"
        assert not receiver.is_settled(delivery)
        (answer,) = await receiver.settled_as([delivery])
        assert condition(answer) is None


@pytest.mark.row("P-20")
@on_partitioned_kinds
async def test_a_message_of_another_partition_is_refused_and_comes_again(bus: SdkBus) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        await tx.send(*(message(str(number), key=f"key-{number}") for number in range(20)), queue=queue)
        receiver, found = await tx.receive(20, queue)
        by_partition = {delivery.tag[:2]: delivery for delivery in found}
        one, distant = list(by_partition.values())[:2]
        txn = await tx.coordinator.declare()
        assert await tx.settle(receiver, [one], txn) is None
        assert await tx.settle(receiver, [distant], txn) == NOT_ALLOWED
        assert await tx.coordinator.roll_back(txn) == Accepted()
        assert await tx.contents(queue) == [text_of(distant)]
        (answer,) = await receiver.settled_as([one])
        assert condition(answer) is None


@pytest.mark.row("P-23")
@SESSIONS
@on_each_kind
async def test_a_message_that_its_receiver_settled_comes_again_after_a_rollback(
    bus: SdkBus, requires_session: bool
) -> None:
    """JMS clients settle in the transaction: nobody could name another outcome, so the message goes back."""
    queue = bus.queue(requires_session=requires_session)

    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver, delivery = await received(tx, queue, requires_session)
        txn = await tx.coordinator.declare()
        receiver.link.settle([delivery], TransactionalState(txn, Accepted()))
        tx.client.flush()
        assert await tx.coordinator.roll_back(txn) == Accepted()
        receiver.grant(1)
        (again,) = await receiver.receive(1)
        assert text_of(again) == "m"
