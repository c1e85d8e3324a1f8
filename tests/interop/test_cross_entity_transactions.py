"""Transactions across entities: all of it happens in one partition of the first one (P-37).

The first entity is the one attached first on a session that a coordinator began,
or the one that a link names before its destination. What is sent to others leaves
from its outbox and reaches them by its own keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bendybus.amqp.message import BATCH_FORMAT, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, TransactionalState
from bendybus.domain.routing import partition_of
from bendybus.engine.deliveries import Delivery
from fix_client import LinkRefused
from fix_kinds import SdkBus, on_each_kind, on_partitioned_kinds
from fix_transactions import NOT_ALLOWED, OwnEntities, condition, message, text_of, transaction_client

DESTINATION = "com.microsoft:transfer-destination-address"


def partition(delivery: Delivery) -> int:
    """The partition that its sequence number names (P-31)."""
    number = decode_message(delivery.payload).message_annotations["x-opt-sequence-number"]
    assert isinstance(number, int)
    return number >> 48


def distant_key(key: str, partitions: int) -> str:
    """A key of another partition."""
    home = partition_of(key, partitions)
    return next(each for each in map(str, range(1000)) if partition_of(each, partitions) != home)


def batch(*messages: bytes) -> bytes:
    return encode_message(data=messages)


async def fill(bus: SdkBus, queue: str, *messages: bytes) -> None:
    async with transaction_client(OwnEntities(bus.server)) as tx:
        assert await tx.send(*messages, queue=queue) == [None] * len(messages)


async def arrivals(bus: SdkBus, queue: str, texts: Sequence[str]) -> list[Delivery]:
    """All messages of a queue or subscription, which may still be on their way there."""
    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver, found = await tx.receive(len(texts), queue)
        await receiver.settled_as(found)
        assert await tx.contents(queue) == []
    assert sorted(map(text_of, found)) == sorted(texts)
    return found


@pytest.mark.row("P-37")
@on_each_kind
async def test_a_message_without_a_key_is_completed_with_sends_that_have_none(bus: SdkBus) -> None:
    """As NServiceBus does it: sends first, to others and back, and then the message is completed."""
    queue, other, plain = bus.queue(), bus.queue(), bus.queue()
    await fill(bus, queue, message("order"))
    home = 0

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        receiver, [order] = await tx.receive(1, queue)
        home = partition(order)
        with pytest.raises(LinkRefused) as refused:
            await tx.client.receiver(other)
        assert refused.value.condition == NOT_ALLOWED
        txn = await tx.coordinator.declare()
        # Of several keys, or none.
        sent = [message("1", key="a"), message("2", key="b"), message("3", session="c"), message("4", id="4")]
        assert await tx.send(*sent, txn=txn, queue=other) == [None] * 4
        assert await tx.send(message("5"), txn=txn, queue=plain) == [None]
        assert await tx.send(message("back", id="6"), message("again"), txn=txn, queue=queue) == [None] * 2
        assert await tx.settle(receiver, [order], txn) is None
        assert await tx.coordinator.commit(txn) == Accepted()

    by_text = {text_of(each): each for each in await arrivals(bus, other, ["1", "2", "3", "4"])}
    if bus.partitioned:
        for text, key in (("1", "a"), ("2", "b"), ("3", "c")):
            assert partition(by_text[text]) == partition_of(key, bus.partitions)
    await arrivals(bus, plain, ["5"])
    assert {partition(each) for each in await arrivals(bus, queue, ["back", "again"])} == {home}


@pytest.mark.row("P-23", "P-37")
@on_each_kind
async def test_a_rollback_of_what_spans_entities_sends_nothing(bus: SdkBus) -> None:
    queue, other = bus.queue(), bus.queue()
    await fill(bus, queue, message("order"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        receiver, [order] = await tx.receive(1, queue)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("never"), txn=txn, queue=other) == [None]
        assert await tx.settle(receiver, [order], txn) is None
        assert await tx.coordinator.roll_back(txn) == Accepted()
        (answer,) = await receiver.settled_as([order])
        assert condition(answer) is None

    await arrivals(bus, other, [])
    await arrivals(bus, queue, [])


@pytest.mark.row("P-37")
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
@on_each_kind
async def test_a_batch_of_any_keys_goes_with_the_message_that_is_settled(bus: SdkBus, when: str) -> None:
    queue, other = bus.queue(), bus.queue()
    await fill(bus, queue, message("order"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        receiver, [order] = await tx.receive(1, queue)
        txn = await tx.coordinator.declare()
        sender = await tx.sender(other)
        messages = batch(message("1", id="1"), message("2", id="2", key="k"), message("3", session="s"))
        (sent,) = await sender.send(messages, message_format=BATCH_FORMAT, state=TransactionalState(txn))
        assert condition(sent) is None
        assert await tx.settle(receiver, [order], txn) is None
        if when == "after the commit":
            assert await tx.coordinator.commit(txn) == Accepted()

    await arrivals(bus, other, ["1", "2", "3"] if when == "after the commit" else [])


@pytest.mark.row("P-20")
@on_partitioned_kinds
async def test_a_batch_of_two_ids_to_one_entity_is_told_of_the_keys_of_transactions(
    bus: SdkBus,
) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        sender = await tx.sender(queue)
        for second, refused in (({"id": "2"}, True), ({"id": "1"}, False)):
            txn = await tx.coordinator.declare()
            messages = batch(message("1", id="1"), message("2", **second))
            (sent,) = await sender.send(messages, message_format=BATCH_FORMAT, state=TransactionalState(txn))
            assert condition(sent) == (NOT_ALLOWED if refused else None)
            assert not refused or "duplicate detection" not in str(sent)
            await tx.coordinator.commit(txn)

    await arrivals(bus, queue, ["1", "2"])


@pytest.mark.row("P-37")
@on_each_kind
async def test_a_via_key_chooses_the_partition_and_the_own_key_the_destination(bus: SdkBus) -> None:
    queue, other = bus.queue(), bus.queue()
    # Outside of a transaction the via key is the key, where there is no other.
    await fill(bus, queue, message("order", via="k"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        receiver, [order] = await tx.receive(1, queue)
        if bus.partitioned:
            assert partition(order) == partition_of("k", bus.partitions)
        txn = await tx.coordinator.declare()
        assert await tx.send(
            message("1", via="k"), message("2", key="end", via="k"), txn=txn, queue=other
        ) == [
            None,
            None,
        ]
        assert await tx.send(message("back", via="k"), txn=txn, queue=queue) == [None]
        assert await tx.settle(receiver, [order], txn) is None
        assert await tx.coordinator.commit(txn) == Accepted()

    by_text = {text_of(each): each for each in await arrivals(bus, other, ["1", "2"])}
    (back,) = await arrivals(bus, queue, ["back"])
    if bus.partitioned:
        assert partition(by_text["2"]) == partition_of("end", bus.partitions)
        assert partition(back) == partition_of("k", bus.partitions)


@pytest.mark.row("P-37")
@pytest.mark.parametrize("first", ["settlement", "send"])
@on_each_kind
async def test_a_via_key_that_leads_elsewhere_is_refused_where_there_are_partitions(
    bus: SdkBus, first: str
) -> None:
    queue, other = bus.queue(), bus.queue()
    await fill(bus, queue, message("order", key="k"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        receiver, [order] = await tx.receive(1, queue)
        elsewhere = message("1", via=distant_key("k", max(bus.partitions, 2)))
        txn = await tx.coordinator.declare()
        if first == "settlement":
            told = [await tx.settle(receiver, [order], txn)]
            told += await tx.send(elsewhere, txn=txn, queue=other)
        else:
            told = await tx.send(elsewhere, txn=txn, queue=other)
            told += [await tx.settle(receiver, [order], txn)]
        assert told == [None, NOT_ALLOWED if bus.partitioned else None]
        committed = await tx.coordinator.commit(txn)
        assert condition(committed) == ("amqp:transaction:rollback" if bus.partitioned else None)

    await arrivals(bus, other, [] if bus.partitioned else ["1"])


@pytest.mark.row("P-37")
@on_partitioned_kinds
async def test_a_key_to_the_first_entity_must_lead_to_the_partition_of_the_transaction(
    bus: SdkBus,
) -> None:
    queue, other = bus.queue(), bus.queue()
    await fill(bus, queue, message("order", key="k"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        receiver, [order] = await tx.receive(1, queue)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1"), txn=txn, queue=other) == [None]
        assert await tx.settle(receiver, [order], txn) is None
        distant = message("2", key=distant_key("k", bus.partitions))
        assert await tx.send(distant, txn=txn, queue=queue) == [NOT_ALLOWED]
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"

    await arrivals(bus, other, [])


@pytest.mark.row("P-16", "P-37")
@on_each_kind
async def test_only_sends_to_others_leave_from_any_partition(bus: SdkBus) -> None:
    queue, other = bus.queue(), bus.queue()

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        await tx.sender(queue)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1"), message("2", key="k"), txn=txn, queue=other) == [None, None]
        assert await tx.coordinator.commit(txn) == Accepted()

    await arrivals(bus, other, ["1", "2"])


@pytest.mark.row("P-19", "P-20")
@on_each_kind
async def test_without_a_settlement_messages_to_the_first_entity_need_keys(bus: SdkBus) -> None:
    queue = bus.queue()

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        for sent, refused in (
            ([message("no key")], True),
            ([message("1", id="1"), message("2", id="2")], True),
            ([message("by id", id="1")], False),
        ):
            txn = await tx.coordinator.declare()
            assert await tx.send(*sent, txn=txn, queue=queue) == [None] * len(sent)
            committed = await tx.coordinator.commit(txn)
            assert condition(committed) == (NOT_ALLOWED if refused and bus.partitioned else None)

    await arrivals(bus, queue, ["by id"] if bus.partitioned else ["no key", "1", "2", "by id"])


@pytest.mark.row("P-13", "P-21", "P-37")
@on_each_kind
async def test_a_session_is_received_from_and_sent_elsewhere(bus: SdkBus) -> None:
    queue, other = bus.queue(requires_session=True), bus.queue(requires_session=True)
    await fill(bus, queue, message("order", session="s"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        wanted: dict[str, object] = {"com.microsoft:session-filter": "s"}
        receiver = await tx.client.receiver(queue, credit=1, filter=wanted)
        order = await receiver.receive(1)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1"), txn=txn, queue=other) == [NOT_ALLOWED]
        assert await tx.settle(receiver, order, txn) is None
        assert await tx.coordinator.roll_back(txn) == Accepted()
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1", session="t"), txn=txn, queue=other) == [None]
        assert await tx.settle(receiver, order, txn) is None
        assert await tx.coordinator.commit(txn) == Accepted()

    async with transaction_client(OwnEntities(bus.server)) as tx:
        receiver = await tx.client.receiver(other, credit=1, filter={"com.microsoft:session-filter": "t"})
        assert [text_of(each) for each in await receiver.receive(1)] == ["1"]


# -- by the name of the destination --------------------------------------------------------


@pytest.mark.row("P-23", "P-34", "P-37")
@on_each_kind
async def test_a_link_may_name_the_queue_behind_the_one_it_sends_to(bus: SdkBus) -> None:
    queue, other = bus.queue(), bus.queue()
    await fill(bus, queue, message("order"))

    async with transaction_client(OwnEntities(bus.server)) as tx:
        tx.senders[other] = await tx.client.sender(queue, properties={DESTINATION: other})
        receiver, [order] = await tx.receive(1, queue)
        txn = await tx.coordinator.declare()
        sent = await tx.send(message("in it", key="end"), message("keyless"), txn=txn, queue=other)
        assert sent == [None, None]
        # The transaction crosses entities, so what comes back goes where it happens.
        assert await tx.send(message("back"), txn=txn, queue=queue) == [None]
        assert await tx.settle(receiver, [order], txn) is None
        assert await tx.send(message("outside of it"), queue=other) == [None]
        assert await tx.arrived(1, other) == ["outside of it"]
        assert await tx.coordinator.commit(txn) == Accepted()

    await arrivals(bus, other, ["in it", "keyless"])
    await arrivals(bus, queue, ["back"])


# -- a topic as the first entity -----------------------------------------------------------


@pytest.mark.row("P-01", "P-23", "P-37")
@pytest.mark.parametrize("named", [False, True], ids=["by its place", "by name"])
@pytest.mark.parametrize("settles", [False, True], ids=["sends only", "settles"])
@on_each_kind
async def test_messages_go_through_a_topic(bus: SdkBus, settles: bool, named: bool) -> None:
    """A sender to topic A, a receiver of A's subscription, and what is sent to topic B."""
    topic, other = bus.topic("s"), bus.topic("s")
    await fill(bus, topic, message("order"))

    async with transaction_client(OwnEntities(bus.server), spans_entities=not named) as tx:
        await tx.sender(topic)
        if named:
            tx.senders[other] = await tx.client.sender(topic, properties={DESTINATION: other})
        receiver, [order] = await tx.receive(1, f"{topic}/Subscriptions/s")
        for commits in (False, True):
            txn = await tx.coordinator.declare()
            assert await tx.send(message("1"), message("2", key="k"), txn=txn, queue=other) == [None, None]
            if settles:
                assert await tx.send(message("back"), txn=txn, queue=topic) == [None]
                assert await tx.settle(receiver, [order], txn) is None
            if commits:
                assert await tx.coordinator.commit(txn) == Accepted()
            else:
                assert await tx.coordinator.roll_back(txn) == Accepted()
        if not settles:
            await receiver.settled_as([order])
        assert await tx.send(message("outside of it"), queue=other) == [None]

    await arrivals(bus, f"{other}/Subscriptions/s", ["1", "2", "outside of it"])
    await arrivals(bus, f"{topic}/Subscriptions/s", ["back"] if settles else [])


@pytest.mark.row("P-37")
@on_each_kind
async def test_a_topic_without_subscriptions_says_why_nothing_goes_through_it(bus: SdkBus) -> None:
    topic, other = bus.topic(), bus.queue()

    async with transaction_client(OwnEntities(bus.server), spans_entities=True) as tx:
        await tx.sender(topic)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1"), txn=txn, queue=other) == [None]
        refused = await tx.coordinator.commit(txn)
        assert condition(refused) == NOT_ALLOWED
        assert "it has none" in str(refused)
