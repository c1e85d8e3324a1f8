"""From one socket read to partitions, and back to dispositions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bendybus.amqp.message import Properties, encode_message
from bendybus.amqp.performatives import Accepted, Rejected, TransactionalState
from bendybus.domain.commands import Complete
from bendybus.domain.messages import SubQueue
from bendybus.domain.routing import partition_of
from bendybus.engine.deliveries import Delivery
from bendybus.envelope import BATCH_FORMAT, Stored, admit_together
from bendybus.errors import StoreUnavailable
from bendybus.gateway import sender as sender_module
from bendybus.gateway.holdings import UNANSWERED_COPIES
from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.gateway.sender import Sender
from bendybus.gateway.transactions import Transactions
from fix_broker import GatedQueue, gated_queue
from fix_holdings import holdings_in

AWAY = StoreUnavailable("away")


@dataclass
class FakeLink:
    """As much of a `ReceivingLink` as a sender uses."""

    outcomes: dict[int, str] = field(default_factory=dict)

    def top_up(self, limit: int) -> None: ...

    def settle(self, deliveries: Sequence[Delivery], state: Accepted | Rejected) -> None:
        said = "accepted" if isinstance(state, Accepted) else state.error.condition
        self.outcomes |= {delivery.delivery_id: said for delivery in deliveries}


class FakeConnection:
    def __init__(self) -> None:
        self.transactions = Transactions()
        self.budget = MemoryBudget()
        self.holdings = holdings_in(self.budget)
        self.observer = None

    @property
    def unanswered(self) -> int:
        self.holdings.account()
        return self.budget.used_bytes // UNANSWERED_COPIES

    def flush_soon(self) -> None: ...


def delivery(number: int, key: str | None = None, **fields: object) -> Delivery:
    annotations = None if key is None else {"x-opt-partition-key": key}
    payload = encode_message(
        message_annotations=annotations, properties=Properties(message_id=str(number)), data=b"x"
    )
    usual = {"message_format": 0, "settled": False, "state": None, "payload": payload, "oversize": False}
    return Delivery(number, number.to_bytes(2, "big"), **{**usual, **fields})


def sender_on(gated: GatedQueue) -> tuple[Sender, FakeLink, FakeConnection]:
    link, connection = FakeLink(), FakeConnection()
    return Sender(connection, link, gated.queue), link, connection


def spread(gated: GatedQueue) -> list[int]:
    return [host.available(SubQueue.MAIN) for host in gated.queue.hosts]


@pytest.mark.row("P-16")
async def test_keyless_messages_of_one_read_stay_together_and_reads_take_turns():
    async with gated_queue(partitions=4) as gated:
        sender, link, _ = sender_on(gated)
        for read in range(3):
            sender.deliveries([delivery(read * 10 + number) for number in range(5)])
        await gated.settled()
        assert spread(gated) == [5, 5, 5, 0]
        assert set(link.outcomes.values()) == {"accepted"}


@pytest.mark.row("P-12")
async def test_a_key_decides_the_partition():
    async with gated_queue(partitions=4) as gated:
        sender, _, _ = sender_on(gated)
        keys = [f"key-{number}" for number in range(20)]
        sender.deliveries([delivery(number, key) for number, key in enumerate(keys)])
        await gated.settled()
        places = [partition_of(key, 4) for key in keys]
        assert spread(gated) == [places.count(number) for number in range(4)]


async def test_nothing_is_answered_before_it_is_durable():
    async with gated_queue() as gated:
        sender, link, connection = sender_on(gated)
        gated.store.shut()
        sender.deliveries([delivery(1)])
        await gated.at_the_gate()
        assert link.outcomes == {}
        assert connection.unanswered > 0
        gated.store.open_gate()
        await gated.settled()
        assert link.outcomes == {1: "accepted"}
        assert connection.unanswered == 0


@pytest.mark.row("P-16")
async def test_a_keyless_send_moves_on_from_a_partition_that_is_away():
    async with gated_queue(partitions=2) as gated:
        sender, link, _ = sender_on(gated)
        gated.queue.hosts[0].fail(AWAY)
        sender.deliveries([delivery(1)])
        await gated.settled()
        assert link.outcomes == {1: "accepted"}
        assert spread(gated) == [0, 1]


@pytest.mark.row("P-16")
async def test_a_keyless_send_moves_on_when_its_commit_fails():
    async with gated_queue(partitions=2, stores=2) as gated:
        sender, link, _ = sender_on(gated)
        gated.store.fails_once = AWAY
        sender.deliveries([delivery(1)])
        await gated.settled()
        await gated.settled()
        assert link.outcomes == {1: "accepted"}
        assert spread(gated) == [0, 1]


@pytest.mark.row("P-16")
async def test_a_keyless_send_moves_on_from_a_stalled_store_and_is_not_stored_twice():
    """Nor mixed up: the stalled store still reads what it was given, and writes down where it keeps it."""

    async with gated_queue(partitions=2, stores=2) as gated:
        sender, link, _ = sender_on(gated)
        gated.store.shut()
        sender.deliveries([delivery(1), delivery(2)])
        await gated.at_the_gate()
        gated.pass_time(3)
        await gated.settled()
        assert link.outcomes == {1: "accepted", 2: "accepted"}
        gated.store.open_gate()
        await gated.recovered()
        await gated.settled()
        assert spread(gated) == [0, 2]
        (late, *_) = gated.store.groups
        assert [message.sequence_number for message in late[0].stored] == [1, 2]
        stays = gated.queue.hosts[1]
        held = stays.lock(2, 1 << 20, SubQueue.MAIN)
        assert {message.sequence_number >> 48 for message in held} == {1}
        await stays.ask(Complete([message.lock_token for message in held]))
        assert [host.store.store.load(host.key).messages for host in gated.queue.hosts] == [[], []]


@pytest.mark.row("P-17")
async def test_a_keyed_send_to_a_partition_that_is_away_is_retryable_and_others_go_on():
    async with gated_queue(partitions=2) as gated:
        sender, link, _ = sender_on(gated)
        gated.queue.hosts[0].fail(AWAY)
        keys = {partition_of(f"k{number}", 2): f"k{number}" for number in range(20)}
        sender.deliveries([delivery(1, keys[0]), delivery(2, keys[1])])
        await gated.settled()
        assert link.outcomes == {1: "com.microsoft:timeout", 2: "accepted"}


async def test_when_all_are_away_the_send_is_refused_as_retryable():
    async with gated_queue(partitions=2) as gated:
        sender, link, _ = sender_on(gated)
        for host in gated.queue.hosts:
            host.fail(AWAY)
        sender.deliveries([delivery(1)])
        assert link.outcomes == {1: "com.microsoft:timeout"}


async def test_a_bad_delivery_costs_its_neighbours_nothing():
    async with gated_queue() as gated:
        sender, link, _ = sender_on(gated)
        sender.deliveries(
            [
                delivery(1),
                delivery(2, payload=b"junk"),
                delivery(3, payload=b"", oversize=True),
                delivery(4, state=TransactionalState(b"t")),
                delivery(5),
            ]
        )
        await gated.settled()
        assert link.outcomes == {
            1: "accepted",
            2: "com.microsoft:argument-error",
            3: "amqp:link:message-size-exceeded",
            4: "amqp:transaction:unknown-id",
            5: "accepted",
        }


@pytest.mark.row("P-18")
async def test_a_read_of_messages_that_are_not_usual_takes_no_more_time_for_each(
    monkeypatch: pytest.MonkeyPatch,
):
    """With 2,000 messages in a read, it took 150 ms instead of 3."""
    looked_at = 0

    def counted(payloads: Sequence[bytes], *rest: object) -> object:
        nonlocal looked_at
        looked_at += len(payloads)
        return admit_together(payloads, *rest)

    monkeypatch.setattr(sender_module, "admit_together", counted)
    async with gated_queue() as gated:
        sender, link, _ = sender_on(gated)
        usual, unusual = (
            delivery(0).payload,
            encode_message(properties=Properties(message_id=None), data=b"x"),
        )
        for odd in (1, 2, 10):
            looked_at = 0
            sent = [unusual if number % odd == 0 else usual for number in range(500)]
            sender.deliveries([delivery(number, payload=payload) for number, payload in enumerate(sent)])
            await gated.settled()
            assert len(link.outcomes) == 500
            assert set(link.outcomes.values()) == {"accepted"}
            assert looked_at < 8 * 500
            link.outcomes.clear()


async def test_a_batch_is_one_delivery_of_many_messages_in_one_partition():
    async with gated_queue(partitions=3) as gated:
        sender, link, _ = sender_on(gated)
        inner = [delivery(number).payload for number in range(7)]
        sender.deliveries([delivery(1, payload=encode_message(data=inner), message_format=BATCH_FORMAT)])
        await gated.settled()
        assert link.outcomes == {1: "accepted"}
        assert spread(gated) == [7, 0, 0]


@pytest.mark.row("P-18")
async def test_a_batch_of_one_message_is_not_taken_for_a_message():
    async with gated_queue() as gated:
        sender, link, _ = sender_on(gated)
        inner = delivery(1).payload
        around = encode_message(properties=Properties(message_id="batch"), data=inner)
        sender.deliveries([delivery(2, payload=around, message_format=BATCH_FORMAT)])
        sender.deliveries([delivery(3, payload=around, message_format=BATCH_FORMAT)])
        await gated.settled()
        assert link.outcomes == {2: "accepted", 3: "accepted"}
        first, second = gated.host.lock(2, 10_000, SubQueue.MAIN)
        assert Stored.of(first.payload).bare == Stored.of(second.payload).bare == inner


@pytest.mark.row("P-15")
async def test_with_duplicate_detection_an_id_is_a_key_and_comes_once():
    async with gated_queue(partitions=4, requires_duplicate_detection=True) as gated:
        sender, link, _ = sender_on(gated)
        for _ in range(2):
            sender.deliveries([delivery(number) for number in range(20)])
        await gated.settled()
        places = [partition_of(str(number), 4) for number in range(20)]
        assert spread(gated) == [places.count(number) for number in range(4)]
        assert set(link.outcomes.values()) == {"accepted"}


async def test_what_still_fits_the_quota_is_taken():
    async with gated_queue() as gated:
        sender, link, _ = sender_on(gated)
        partition = gated.host.partition
        size = len(delivery(1).payload) + 40
        partition._parts.stock.shelves[SubQueue.MAIN].size_bytes = (1024 << 20) - 2 * size
        sender.deliveries([delivery(number) for number in range(5)])
        await gated.settled()
        said = list(link.outcomes.values())
        assert said.count("amqp:resource-limit-exceeded") + said.count("accepted") == 5
        assert 1 <= said.count("accepted") < 5
