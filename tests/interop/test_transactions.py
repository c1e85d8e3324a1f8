"""Transactions by a raw AMQP client against a real server: all or nothing, and every rule about keys.

The Python SDK offers none; the Java SDK's are in the `make interop` suite.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, DeliveryState, Modified, Rejected, TransactionalState
from bendybus.amqp.types import Array, Symbol, Timestamp
from bendybus.engine.deliveries import Delivery
from fix_client import Client, Coordinator, Endpoint, LinkRefused, Receiver, Requester, Sender
from fix_server import ServerProcess, StartServer

NOT_ALLOWED = "amqp:not-allowed"
NUMBERS = count(1)
PREMIUM = ("--tier", "premium")  # two partitions each

KINDS = pytest.mark.parametrize(
    ("partitioned", "options"),
    [(False, ()), (True, ()), (True, PREMIUM)],
    ids=["1 partition", "16 partitions", "2 partitions"],
)
PARTITIONED = pytest.mark.parametrize("options", [(), PREMIUM], ids=["16 partitions", "2 partitions"])

Test: TypeAlias = Callable[["Table"], Coroutine[Any, Any, None]]


def message(
    text: str,
    *,
    key: str | None = None,
    session: str | None = None,
    id: str | None = None,  # noqa: A002 - the property's own name
    via: str | None = None,
    due: int | None = None,
) -> bytes:
    annotations: dict[str, object] = {}
    if key is not None:
        annotations["x-opt-partition-key"] = key
    if via is not None:
        annotations["x-opt-via-partition-key"] = via
    if due is not None:
        annotations["x-opt-scheduled-enqueue-time"] = Timestamp(due)
    return encode_message(
        message_annotations={Symbol(name): value for name, value in annotations.items()} or None,
        properties=Properties(message_id=id, group_id=session),
        data=text.encode(),
    )


def text_of(delivery: Delivery) -> str:
    (data,) = decode_message(delivery.payload).data
    return bytes(data).decode()


def condition(outcome: DeliveryState | None) -> str | None:
    """Why something was rejected, inside or outside a transaction."""
    if isinstance(outcome, TransactionalState):
        outcome = outcome.outcome
    return None if not isinstance(outcome, Rejected) or outcome.error is None else outcome.error.condition


@dataclass
class Table:
    """One connection with a coordinator, and short words for what the tests do."""

    client: Client
    coordinator: Coordinator
    senders: dict[str, Sender] = field(default_factory=dict)

    async def sender(self, queue: str = "q") -> Sender:
        if queue not in self.senders:
            self.senders[queue] = await self.client.sender(queue)
        return self.senders[queue]

    async def send(self, *messages: bytes, txn: bytes | None = None, queue: str = "q") -> list[str | None]:
        """Send each; None, or why it was refused."""
        sender = await self.sender(queue)
        state = None if txn is None else TransactionalState(txn)
        outcomes = await sender.send(*messages, state=state)
        if txn is not None:
            for outcome in outcomes:
                wrapped = isinstance(outcome, TransactionalState) and outcome.txn_id == txn
                assert wrapped or isinstance(outcome, Rejected), outcome
        return [condition(outcome) for outcome in outcomes]

    async def receive(self, number: int, queue: str = "q") -> tuple[Receiver, list[Delivery]]:
        receiver = await self.client.receiver(queue, credit=number)
        return receiver, await receiver.receive(number)

    async def settle(
        self, receiver: Receiver, deliveries: list[Delivery], txn: bytes, outcome: DeliveryState | None = None
    ) -> str | None:
        """In the transaction; None, or why not."""
        answers = await receiver.settled_as(deliveries, TransactionalState(txn, outcome or Accepted()))
        return condition(answers[0])

    async def contents(self, queue: str = "q") -> list[str]:
        """What can be received now; it goes back."""
        receiver = await self.client.receiver(queue)
        found = await receiver.drain(1000)
        if found:
            await receiver.settled_as(found, Modified(delivery_failed=False))
        receiver.detach()
        await receiver.detached()
        return sorted(map(text_of, found))

    async def arrived(self, number: int, queue: str) -> list[str]:
        """The texts of so many messages, which may still be on their way there."""
        receiver, found = await self.receive(number, queue)
        await receiver.settled_as(found)
        return sorted(map(text_of, found))


@asynccontextmanager
async def at_table(server: ServerProcess, *, spans_entities: bool = False) -> AsyncIterator[Table]:
    async with await Client.connect(Endpoint.parse(server.connection_string)) as client:
        if not spans_entities:
            # Whatever comes first, so that the coordinator is not the first link of its session.
            yield Table(client, await client.coordinator())
            return
        session = await client.begin()
        begin = client.begin

        async def same() -> Any:
            return session

        client.begin = same  # type: ignore[method-assign]  # all links on one session, as SDKs do for this
        try:
            yield Table(client, await client.coordinator(session))
        finally:
            client.begin = begin  # type: ignore[method-assign]


def run(server: ServerProcess, test: Test, **options: bool) -> None:
    async def whole() -> None:
        async with at_table(server, **options) as table:
            await test(table)

    asyncio.run(whole())


@pytest.fixture
def server(start_server: StartServer, partitioned: bool, options: tuple[str, ...]) -> ServerProcess:
    properties = {"EnablePartitioning": partitioned}
    return start_server({"q": properties, "other": properties, "plain": {}}, None, *options)


@KINDS
def test_a_commit_makes_sends_and_settlements_visible_together(server: ServerProcess) -> None:  # P-23
    async def test(table: Table) -> None:
        await table.send(message("old", key="k"))
        receiver, [old] = await table.receive(1)
        txn = await table.coordinator.declare()
        assert await table.send(message("new 1", key="k"), message("new 2", key="k"), txn=txn) == [None, None]
        assert await table.settle(receiver, [old], txn) is None
        assert await table.contents() == []
        assert await table.coordinator.commit(txn) == Accepted()
        assert await table.contents() == ["new 1", "new 2"]

    run(server, test)


@KINDS
def test_a_rollback_leaves_no_trace_and_the_message_locked(server: ServerProcess) -> None:  # P-23
    async def test(table: Table) -> None:
        await table.send(message("old", key="k"))
        receiver, [old] = await table.receive(1)
        txn = await table.coordinator.declare()
        await table.send(message("new", key="k"), txn=txn)
        await table.settle(receiver, [old], txn)
        assert await table.coordinator.roll_back(txn) == Accepted()
        assert await table.contents() == []
        # Still its receiver's: it may be settled after all, in another transaction or none.
        again = await table.coordinator.declare()
        requester = await table.client.requester("q/$management")
        reply = await requester.ask(
            "com.microsoft:update-disposition",
            {"disposition-status": "completed", "lock-tokens": lock_tokens(old)},
        )
        assert reply.application_properties["statusCode"] == 200
        assert await table.coordinator.commit(again) == Accepted()

    run(server, test)


def lock_tokens(*deliveries: Delivery) -> Any:
    return Array(uuid.UUID, [uuid.UUID(bytes_le=delivery.tag) for delivery in deliveries])


@KINDS
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
def test_a_crash_leaves_all_of_it_or_nothing(server: ServerProcess, when: str) -> None:  # P-23 B-08
    async def test(table: Table) -> None:
        await table.send(message("old", key="k"))
        receiver, [old] = await table.receive(1)
        txn = await table.coordinator.declare()
        await table.send(message("new", key="k"), txn=txn)
        await table.settle(receiver, [old], txn)
        if when == "after the commit":
            assert await table.coordinator.commit(txn) == Accepted()
        server.kill()

    async def after(table: Table) -> None:
        assert await table.contents() == (["old"] if when == "before the commit" else ["new"])

    run(server, test)
    server.start()
    run(server, after)


@KINDS
@pytest.mark.parametrize("leaving", ["link", "connection"])
def test_who_goes_away_has_rolled_back(server: ServerProcess, leaving: str) -> None:
    async def test(table: Table) -> None:
        txn = await table.coordinator.declare()
        await table.send(message("new", key="k"), txn=txn)
        if leaving == "link":
            table.coordinator.detach()
            await table.coordinator.detached()
            assert await table.send(message("late", key="k"), txn=txn) == ["amqp:transaction:unknown-id"]

    async def after(table: Table) -> None:
        assert await table.contents() == []

    run(server, test)
    run(server, after)


@KINDS
def test_each_outcome_can_be_part_of_a_transaction(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        await table.send(*(message(text, key="k") for text in ("complete", "abandon", "defer", "dead")))
        receiver, found = await table.receive(4)
        by_text = {text_of(delivery): delivery for delivery in found}
        txn = await table.coordinator.declare()
        outcomes: dict[str, DeliveryState] = {
            "complete": Accepted(),
            "abandon": Modified(delivery_failed=True),
            "defer": Modified(undeliverable_here=True),
            "dead": Rejected(),
        }
        for text, outcome in outcomes.items():
            assert await table.settle(receiver, [by_text[text]], txn, outcome) is None
        assert await table.contents() == []
        assert await table.coordinator.commit(txn) == Accepted()
        assert await table.contents() == ["abandon"]
        assert await table.contents("q/$deadletterqueue") == ["dead"]

    run(server, test)


@pytest.mark.parametrize("partitioned", [True])
@PARTITIONED
def test_on_a_partitioned_queue_every_message_needs_a_key(server: ServerProcess) -> None:  # P-19
    async def test(table: Table) -> None:
        txn = await table.coordinator.declare()
        assert await table.send(message("no key"), txn=txn) == [NOT_ALLOWED]
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"
        for key in ({"key": "k"}, {"session": "k"}, {"id": "k"}):
            txn = await table.coordinator.declare()
            assert await table.send(message("new", **key), txn=txn) == [None]
            assert await table.coordinator.commit(txn) == Accepted()
        assert await table.contents() == ["new"] * 3

    run(server, test)


@pytest.mark.parametrize("partitioned", [True])
@PARTITIONED
def test_on_a_partitioned_queue_all_messages_have_one_key(server: ServerProcess) -> None:  # P-20 P-22
    async def test(table: Table) -> None:
        for first, second in (
            ({"key": "a"}, {"key": "b"}),
            ({"session": "a"}, {"session": "b"}),
            ({"id": "a"}, {"id": "b"}),
        ):
            txn = await table.coordinator.declare()
            sent = await table.send(message("1", **first), message("2", **second), txn=txn)
            assert sent == [None, NOT_ALLOWED]
            assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await table.contents() == []

    run(server, test)


@pytest.mark.parametrize("partitioned", [True])
@PARTITIONED
def test_on_a_partitioned_queue_settlements_count_too(server: ServerProcess) -> None:  # P-20
    """What is settled and what is sent must be in one partition."""

    async def test(table: Table) -> None:
        await table.send(*(message(str(number), key=f"key-{number}") for number in range(20)))
        receiver, found = await table.receive(20)
        partitions = {delivery.tag[:2]: delivery for delivery in found}
        one, other = list(partitions.values())[:2]
        txn = await table.coordinator.declare()
        assert await table.settle(receiver, [one], txn) is None
        assert await table.settle(receiver, [other], txn) == NOT_ALLOWED
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"

    run(server, test)


@pytest.mark.parametrize(("partitioned", "options"), [(False, ())], ids=["1 partition"])
def test_on_an_unpartitioned_queue_keys_and_sessions_may_differ(server: ServerProcess) -> None:  # P-22
    async def test(table: Table) -> None:
        txn = await table.coordinator.declare()
        sent = await table.send(
            message("1", session="a"), message("2", session="b"), message("3", key="c"), message("4"), txn=txn
        )
        assert sent == [None] * 4
        assert await table.coordinator.commit(txn) == Accepted()
        assert await table.contents() == ["1", "2", "3", "4"]

    run(server, test)


@KINDS
def test_a_session_and_a_key_that_differ_are_refused(server: ServerProcess) -> None:  # P-14 P-21
    async def test(table: Table) -> None:
        txn = await table.coordinator.declare()
        assert await table.send(message("1", session="a", key="b"), txn=txn) == [NOT_ALLOWED]
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"

    run(server, test)


@KINDS
def test_a_transaction_is_about_one_entity(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        txn = await table.coordinator.declare()
        assert await table.send(message("1", key="k"), txn=txn) == [None]
        assert await table.send(message("2", key="k"), txn=txn, queue="other") == [NOT_ALLOWED]
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await table.contents() == await table.contents("other") == []

    run(server, test)


@KINDS
def test_a_hundred_messages_are_the_most(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        txn = await table.coordinator.declare()
        sent = await table.send(*(message(str(number), key="k") for number in range(101)), txn=txn)
        assert sent == [None] * 100 + ["amqp:resource-limit-exceeded"]
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await table.contents() == []

    run(server, test)


@KINDS
def test_a_message_is_settled_once_in_a_transaction(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        await table.send(message("old", key="k"))
        receiver, [old] = await table.receive(1)
        txn = await table.coordinator.declare()
        requester = await table.client.requester("q/$management")
        assert await table.settle(receiver, [old], txn) is None
        body = {"disposition-status": "completed", "lock-tokens": lock_tokens(old)}
        request = requester.encode(body, {"operation": "com.microsoft:update-disposition"})
        await requester.sender.send(request, state=TransactionalState(txn))
        (reply,) = await requester.replies.receive()
        answer = decode_message(reply.payload).application_properties
        assert (answer["statusCode"], answer["errorCondition"]) == (410, "com.microsoft:message-lock-lost")

    run(server, test)


@KINDS
def test_messages_are_scheduled_in_a_transaction(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        requester = await table.client.requester("q/$management")
        for commits in (False, True):
            txn = await table.coordinator.declare()
            body = {
                "messages": [{"message-id": "m", "message": message("later", key="k", due=4_000_000_000_000)}]
            }
            request = requester.encode(body, {"operation": "com.microsoft:schedule-message"})
            await requester.sender.send(request, state=TransactionalState(txn))
            (reply,) = await requester.replies.receive()
            (number,) = decode_message(reply.payload).value["sequence-numbers"].values
            if commits:
                assert await table.coordinator.commit(txn) == Accepted()
            else:
                assert await table.coordinator.roll_back(txn) == Accepted()
            peeked = await requester.ask(
                "com.microsoft:peek-message", {"from-sequence-number": number, "message-count": 1}
            )
            assert peeked.application_properties["statusCode"] == (200 if commits else 204)

    run(server, test)


@KINDS
def test_requests_that_cannot_be_part_of_a_transaction_say_so(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        requester = await table.client.requester("q/$management")
        txn = await table.coordinator.declare()
        request = requester.encode(
            {"from-sequence-number": 1, "message-count": 1}, {"operation": "com.microsoft:peek-message"}
        )
        await requester.sender.send(request, state=TransactionalState(txn))
        (reply,) = await requester.replies.receive()
        assert decode_message(reply.payload).application_properties["errorCondition"] == NOT_ALLOWED

    run(server, test)


@KINDS
def test_unknown_and_finished_transactions_are_refused_by_name(server: ServerProcess) -> None:
    async def test(table: Table) -> None:
        assert await table.send(message("1", key="k"), txn=b"nonsense") == ["amqp:transaction:unknown-id"]
        assert condition(await table.coordinator.commit(b"nonsense")) == "amqp:transaction:unknown-id"
        txn = await table.coordinator.declare()
        assert await table.coordinator.commit(txn) == Accepted()
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:unknown-id"
        (refused,) = await table.coordinator.send(encode_message(value="what?"))
        assert condition(refused) == "com.microsoft:argument-error"
        # And the link goes on working.
        assert await table.coordinator.commit(await table.coordinator.declare()) == Accepted()

    run(server, test)


# -- through another entity ---------------------------------------------------------


@KINDS
def test_a_session_begun_by_the_coordinator_spans_entities(
    server: ServerProcess,
) -> None:  # P-23 P-34
    async def test(table: Table) -> None:
        await table.send(message("old", key="k"))
        receiver, [old] = await table.receive(1)
        with pytest.raises(LinkRefused) as refused:
            await table.client.receiver("other")
        assert refused.value.condition == NOT_ALLOWED
        txn = await table.coordinator.declare()
        assert await table.settle(receiver, [old], txn) is None
        for queue in ("other", "plain"):
            assert await table.send(message(f"to {queue}", key="k"), txn=txn, queue=queue) == [None]
        assert await table.coordinator.commit(txn) == Accepted()

    async def after(table: Table) -> None:
        assert await table.arrived(1, "other") == ["to other"]
        assert await table.arrived(1, "plain") == ["to plain"]
        assert await table.contents() == []

    run(server, test, spans_entities=True)
    run(server, after)


@KINDS
def test_a_rollback_of_what_spans_entities_sends_nothing(server: ServerProcess) -> None:  # P-23
    async def test(table: Table) -> None:
        await table.sender("q")
        txn = await table.coordinator.declare()
        assert await table.send(message("to other", key="k"), txn=txn, queue="other") == [None]
        assert await table.coordinator.roll_back(txn) == Accepted()

    async def after(table: Table) -> None:
        assert await table.contents("other") == []

    run(server, test, spans_entities=True)
    run(server, after)


@KINDS
def test_a_link_may_name_the_queue_behind_the_one_it_sends_to(
    server: ServerProcess,
) -> None:  # P-23 P-34
    async def test(table: Table) -> None:
        properties = {"com.microsoft:transfer-destination-address": "other"}
        table.senders["other"] = await table.client.sender("q", properties=properties)
        await table.send(message("old", key="k"))
        receiver, [old] = await table.receive(1)
        txn = await table.coordinator.declare()
        assert await table.settle(receiver, [old], txn) is None
        # The key for the partition at the end of the way, and the one for the partition on it.
        sent = await table.send(message("in it", key="end", via="k"), txn=txn, queue="other")
        assert sent == [None]
        assert await table.send(message("outside of it"), queue="other") == [None]
        assert await table.arrived(1, "other") == ["outside of it"]
        assert await table.coordinator.commit(txn) == Accepted()
        assert await table.arrived(1, "other") == ["in it"]
        assert await table.contents() == []

    run(server, test)


# -- rules ------------------------------------------------------------------------------


async def request_all(
    requester: Requester, txn: bytes | None, *changes: tuple[str, dict[str, object]]
) -> list[str | None]:
    """None for each that was taken, or why not."""
    told: list[str | None] = []
    for operation, body in changes:
        request = requester.encode(body, {"operation": f"com.microsoft:{operation}"})
        await requester.sender.send(request, state=None if txn is None else TransactionalState(txn))
        (reply,) = await requester.replies.receive()
        condition_given = decode_message(reply.payload).application_properties.get("errorCondition")
        told.append(None if condition_given is None else str(condition_given))
    return told


def red(name: str) -> tuple[str, dict[str, object]]:
    described = {"sql-filter": {"expression": "colour = 'red'"}, "sql-rule-action": None}
    return "add-rule", {"rule-name": name, "rule-description": described}


async def rule_names(requester: Requester) -> list[str]:
    reply = await requester.ask("com.microsoft:enumerate-rules", {"top": 100, "skip": 0})
    return [str(entry["rule-description"].value[2]) for entry in reply.value["rules"]]


@pytest.mark.parametrize("partitioned", [False, True])
def test_rules_change_inside_a_transaction_where_nothing_is_partitioned(
    start_server: StartServer, partitioned: bool
) -> None:  # P-24
    topic = {
        "Name": "news",
        "Properties": {"EnablePartitioning": partitioned},
        "Subscriptions": [{"Name": "all"}],
    }
    server = start_server({}, None, topics=[topic])

    async def test(table: Table) -> None:
        requester = await table.client.requester("news/Subscriptions/all/$management")
        txn = await table.coordinator.declare()
        changes = red("red"), ("remove-rule", {"rule-name": "$Default"})
        if partitioned:
            assert await request_all(requester, txn, *changes) == [NOT_ALLOWED, NOT_ALLOWED]
            # Outside of it they work as ever.
            assert await request_all(requester, None, *changes) == [None, None]
            return
        assert await request_all(requester, txn, *changes) == [None, None]
        assert await rule_names(requester) == ["$Default"]
        assert await table.coordinator.roll_back(txn) == Accepted()
        txn = await table.coordinator.declare()
        assert await request_all(requester, txn, *changes) == [None, None]
        assert await table.coordinator.commit(txn) == Accepted()
        assert await rule_names(requester) == ["red"]
        # Rules and messages are kept in different places, so no transaction has both.
        txn = await table.coordinator.declare()
        assert await request_all(requester, txn, red("also")) == [None]
        assert await table.send(message("x"), txn=txn, queue="news") == [NOT_ALLOWED]
        assert condition(await table.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await rule_names(requester) == ["red"]

    run(server, test)


# -- sessions ---------------------------------------------------------------------------


@KINDS
def test_the_state_of_a_session_is_set_with_the_messages_or_not_at_all(
    start_server: StartServer, partitioned: bool, options: tuple[str, ...]
) -> None:  # P-13 P-23
    server = start_server({"q": {"EnablePartitioning": partitioned, "RequiresSession": True}}, None, *options)

    async def test(table: Table) -> None:
        await table.send(message("old", session="s"))
        receiver = await table.client.receiver("q", credit=1, filter={"com.microsoft:session-filter": "s"})
        old = await receiver.receive(1)
        requester = await table.client.requester("q/$management")

        async def state() -> object:
            reply = await requester.ask("com.microsoft:get-session-state", {"session-id": "s"})
            return reply.value["session-state"]

        for commits in (False, True):
            txn = await table.coordinator.declare()
            body = {"session-id": "s", "session-state": b"new"}
            assert await request_all(requester, txn, ("set-session-state", body)) == [None]
            assert await state() is None
            if commits:
                assert await table.settle(receiver, old, txn) is None
                assert await table.coordinator.commit(txn) == Accepted()
            else:
                assert await table.coordinator.roll_back(txn) == Accepted()
            assert await state() == (b"new" if commits else None)

    run(server, test)
