"""Transactions by a raw AMQP client against a real server: all or nothing, and every rule about keys.

The Python SDK offers none; the Java SDK's are in the `make interop` suite. Across entities:
test_cross_entity_transactions.py; after a rollback: test_rollbacks.py; scheduled messages:
test_transactional_scheduling.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeAlias

import pytest

from bendybus.amqp.message import decode_message, encode_message
from bendybus.amqp.performatives import (
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from fix_client import Requester
from fix_rows import on_kind, use_entity
from fix_server import ServerProcess, StartServer, namespace
from fix_transactions import (
    NOT_ALLOWED,
    OwnEntities,
    TransactionClient,
    condition,
    lock_tokens,
    message,
    request_all,
    text_of,
    transaction_client,
)

PREMIUM = ("--tier", "premium")  # two partitions each

ON_1 = on_kind(1, False, (), id="1 partition")
ON_2 = on_kind(2, True, PREMIUM, id="2 partitions")
ON_16 = on_kind(16, True, (), id="16 partitions")

KINDS = pytest.mark.parametrize(("partitioned", "options"), [ON_1, ON_16, ON_2])
PARTITIONED = pytest.mark.parametrize(("partitioned", "options"), [ON_16, ON_2])
UNPARTITIONED = pytest.mark.parametrize(("partitioned", "options"), [ON_1])

# So many tests share a server, each with entities of its own; more of them would be too many for Standard.
SETS_OF_ENTITIES = 32

Start: TypeAlias = Callable[[bool, tuple[str, ...]], tuple[ServerProcess, int]]


@pytest.fixture(scope="module")
def _start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The server of a kind, started when it is first asked for, and a number that nobody else has there."""
    servers: dict[object, ServerProcess] = {}
    numbers: dict[object, Iterator[int]] = {}

    def start(partitioned: bool, options: tuple[str, ...]) -> tuple[ServerProcess, int]:
        kind = partitioned, options
        if kind not in servers:
            properties = {"EnablePartitioning": partitioned}
            queues = {
                f"{name}-{number}": {} if name == "plain" else properties
                for name in ("q", "other", "plain")
                for number in range(SETS_OF_ENTITIES)
            }
            servers[kind] = ServerProcess(tmp_path_factory.mktemp("server"), namespace(queues), options)
            servers[kind].start()
            numbers[kind] = count()
        return servers[kind], next(numbers[kind])

    yield start
    for server in servers.values():
        server.stop()
        server.refuse_trouble()


@pytest.fixture
def entities(_start: Start, partitioned: bool, options: tuple[str, ...]) -> Iterator[OwnEntities]:
    server, number = _start(partitioned, options)
    assert number < SETS_OF_ENTITIES, "more tests than sets of entities: raise SETS_OF_ENTITIES"
    use_entity(server, f"q-{number}")
    yield OwnEntities(server, number)
    server.refuse_trouble()


@pytest.mark.row("P-23")
@KINDS
async def test_a_commit_makes_sends_and_settlements_visible_together(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        await tx.send(message("old", key="k"))
        receiver, [old] = await tx.receive(1)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("new 1", key="k"), message("new 2", key="k"), txn=txn) == [None, None]
        assert await tx.settle(receiver, [old], txn) is None
        assert await tx.contents() == []
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await tx.contents() == ["new 1", "new 2"]


@pytest.mark.row("P-23")
@KINDS
async def test_a_rollback_leaves_no_trace_and_the_message_locked(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        await tx.send(message("old", key="k"))
        receiver, [old] = await tx.receive(1)
        txn = await tx.coordinator.declare()
        await tx.send(message("new", key="k"), txn=txn)
        await tx.settle(receiver, [old], txn)
        assert await tx.coordinator.roll_back(txn) == Accepted()
        assert await tx.contents() == []
        # Still its receiver's: it may be settled after all, in another transaction or none.
        again = await tx.coordinator.declare()
        requester = await tx.requester()
        reply = await requester.ask(
            "com.microsoft:update-disposition",
            {"disposition-status": "completed", "lock-tokens": lock_tokens(old)},
        )
        assert reply.application_properties["statusCode"] == 200
        assert await tx.coordinator.commit(again) == Accepted()


@pytest.mark.row("B-08", "P-23")
@KINDS
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
async def test_a_crash_leaves_all_of_it_or_nothing(entities: OwnEntities, when: str) -> None:
    async with transaction_client(entities) as tx:
        await tx.send(message("old", key="k"))
        receiver, [old] = await tx.receive(1)
        txn = await tx.coordinator.declare()
        await tx.send(message("new", key="k"), txn=txn)
        await tx.settle(receiver, [old], txn)
        if when == "after the commit":
            assert await tx.coordinator.commit(txn) == Accepted()
        entities.server.kill()

    entities.server.start()
    async with transaction_client(entities) as tx:
        assert await tx.contents() == (["old"] if when == "before the commit" else ["new"])


@KINDS
@pytest.mark.parametrize("leaving", ["link", "connection"])
async def test_who_goes_away_has_rolled_back(entities: OwnEntities, leaving: str) -> None:
    async with transaction_client(entities) as tx:
        txn = await tx.coordinator.declare()
        await tx.send(message("new", key="k"), txn=txn)
        if leaving == "link":
            tx.coordinator.detach()
            await tx.coordinator.detached()
            assert await tx.send(message("late", key="k"), txn=txn) == ["amqp:transaction:unknown-id"]

    async with transaction_client(entities) as tx:
        assert await tx.contents() == []


@KINDS
async def test_each_outcome_can_be_part_of_a_transaction(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        await tx.send(*(message(text, key="k") for text in ("complete", "abandon", "defer", "dead")))
        receiver, found = await tx.receive(4)
        by_text = {text_of(delivery): delivery for delivery in found}
        txn = await tx.coordinator.declare()
        outcomes: dict[str, DeliveryState] = {
            "complete": Accepted(),
            "abandon": Modified(delivery_failed=True),
            "defer": Modified(undeliverable_here=True),
            "dead": Rejected(),
        }
        for text, outcome in outcomes.items():
            assert await tx.settle(receiver, [by_text[text]], txn, outcome) is None
        assert await tx.contents() == []
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await tx.contents() == ["abandon"]
        assert await tx.contents("q/$deadletterqueue") == ["dead"]


@pytest.mark.row("P-19")
@PARTITIONED
async def test_on_a_partitioned_queue_every_message_needs_a_key(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        txn = await tx.coordinator.declare()
        assert await tx.send(message("no key"), txn=txn) == [NOT_ALLOWED]
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        for key in ({"key": "k"}, {"session": "k"}, {"id": "k"}):
            txn = await tx.coordinator.declare()
            assert await tx.send(message("new", **key), txn=txn) == [None]
            assert await tx.coordinator.commit(txn) == Accepted()
        assert await tx.contents() == ["new"] * 3


@pytest.mark.row("P-20")
@PARTITIONED
async def test_on_a_partitioned_queue_all_messages_have_one_key(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        for first, second in (
            ({"key": "a"}, {"key": "b"}),
            ({"session": "a"}, {"session": "b"}),
            ({"id": "a"}, {"id": "b"}),
        ):
            txn = await tx.coordinator.declare()
            sent = await tx.send(message("1", **first), message("2", **second), txn=txn)
            assert sent == [None, NOT_ALLOWED]
            assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await tx.contents() == []


@pytest.mark.row("P-20")
@PARTITIONED
async def test_on_a_partitioned_queue_settlements_count_too(entities: OwnEntities) -> None:
    """What is settled and what is sent must be in one partition."""

    async with transaction_client(entities) as tx:
        await tx.send(*(message(str(number), key=f"key-{number}") for number in range(20)))
        receiver, found = await tx.receive(20)
        partitions = {delivery.tag[:2]: delivery for delivery in found}
        one, other = list(partitions.values())[:2]
        txn = await tx.coordinator.declare()
        assert await tx.settle(receiver, [one], txn) is None
        assert await tx.settle(receiver, [other], txn) == NOT_ALLOWED
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"


@UNPARTITIONED
async def test_on_an_unpartitioned_queue_keys_and_sessions_may_differ(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        txn = await tx.coordinator.declare()
        sent = await tx.send(
            message("1", session="a"), message("2", session="b"), message("3", key="c"), message("4"), txn=txn
        )
        assert sent == [None] * 4
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await tx.contents() == ["1", "2", "3", "4"]


@pytest.mark.row("P-14")
@KINDS
async def test_a_session_and_a_key_that_differ_are_refused(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1", session="a", key="b"), txn=txn) == [NOT_ALLOWED]
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"


@KINDS
async def test_a_transaction_is_about_one_entity(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        txn = await tx.coordinator.declare()
        assert await tx.send(message("1", key="k"), txn=txn) == [None]
        assert await tx.send(message("2", key="k"), txn=txn, queue="other") == [NOT_ALLOWED]
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await tx.contents() == await tx.contents("other") == []


@KINDS
async def test_a_hundred_messages_are_the_most(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        txn = await tx.coordinator.declare()
        sent = await tx.send(*(message(str(number), key="k") for number in range(101)), txn=txn)
        assert sent == [None] * 100 + ["amqp:resource-limit-exceeded"]
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        assert await tx.contents() == []


@KINDS
async def test_a_message_is_settled_once_in_a_transaction(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        await tx.send(message("old", key="k"))
        receiver, [old] = await tx.receive(1)
        txn = await tx.coordinator.declare()
        requester = await tx.requester()
        assert await tx.settle(receiver, [old], txn) is None
        body = {"disposition-status": "completed", "lock-tokens": lock_tokens(old)}
        request = requester.encode(body, {"operation": "com.microsoft:update-disposition"})
        await requester.sender.send(request, state=TransactionalState(txn))
        (reply,) = await requester.replies.receive()
        answer = decode_message(reply.payload).application_properties
        assert (answer["statusCode"], answer["errorCondition"]) == (410, "com.microsoft:message-lock-lost")


@KINDS
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_an_outcome_outside_a_transaction_waits_for_its_end(entities: OwnEntities, ends: str) -> None:
    """As the Java SDK does when its link closes: it releases what it has settled in a transaction."""
    async with transaction_client(entities) as tx:
        await tx.send(message("old", key="k"))
        receiver, [old] = await tx.receive(1)
        txn = await tx.coordinator.declare()
        assert await tx.settle(receiver, [old], txn) is None
        receiver.settle([old], Released())
        assert await tx.contents() == []
        if ends == "commit":
            assert await tx.coordinator.commit(txn) == Accepted()
            assert await tx.contents() == []
        else:
            assert await tx.coordinator.roll_back(txn) == Accepted()
            assert await tx.arrived(1, "q") == ["old"]


@KINDS
async def test_requests_that_cannot_be_part_of_a_transaction_say_so(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        requester = await tx.requester()
        txn = await tx.coordinator.declare()
        request = requester.encode(
            {"from-sequence-number": 1, "message-count": 1}, {"operation": "com.microsoft:peek-message"}
        )
        await requester.sender.send(request, state=TransactionalState(txn))
        (reply,) = await requester.replies.receive()
        assert decode_message(reply.payload).application_properties["errorCondition"] == NOT_ALLOWED


@KINDS
async def test_unknown_and_finished_transactions_are_refused_by_name(entities: OwnEntities) -> None:
    async with transaction_client(entities) as tx:
        assert await tx.send(message("1", key="k"), txn=b"nonsense") == ["amqp:transaction:unknown-id"]
        assert condition(await tx.coordinator.commit(b"nonsense")) == "amqp:transaction:unknown-id"
        txn = await tx.coordinator.declare()
        assert await tx.coordinator.commit(txn) == Accepted()
        assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:unknown-id"
        (refused,) = await tx.coordinator.send(encode_message(value="what?"))
        assert condition(refused) == "com.microsoft:argument-error"
        # And the link goes on working.
        assert await tx.coordinator.commit(await tx.coordinator.declare()) == Accepted()


# -- rules ------------------------------------------------------------------------------


def red(name: str) -> tuple[str, dict[str, object]]:
    described = {"sql-filter": {"expression": "colour = 'red'"}, "sql-rule-action": None}
    return "add-rule", {"rule-name": name, "rule-description": described}


async def rule_names(requester: Requester) -> list[str]:
    reply = await requester.ask("com.microsoft:enumerate-rules", {"top": 100, "skip": 0})
    return [str(entry["rule-description"].value[2]) for entry in reply.value["rules"]]


@pytest.mark.row("P-24")
@KINDS
async def test_rules_change_inside_a_transaction_where_nothing_is_partitioned(
    start_server: StartServer, partitioned: bool, options: tuple[str, ...]
) -> None:
    topic = {
        "Name": "news",
        "Properties": {"EnablePartitioning": partitioned},
        "Subscriptions": [{"Name": "all"}],
    }
    server = start_server({}, None, *options, topics=[topic])
    use_entity(server, "news")

    async def test(tx: TransactionClient) -> None:
        requester = await tx.client.requester("news/Subscriptions/all/$management")
        txn = await tx.coordinator.declare()
        changes = red("red"), ("remove-rule", {"rule-name": "$Default"})
        if partitioned:
            assert await request_all(requester, txn, *changes) == [NOT_ALLOWED, NOT_ALLOWED]
            # Outside of it they work as ever.
            assert await request_all(requester, None, *changes) == [None, None]
            return
        assert await request_all(requester, txn, *changes) == [None, None]
        assert await rule_names(requester) == ["$Default"]
        assert await tx.coordinator.roll_back(txn) == Accepted()
        txn = await tx.coordinator.declare()
        assert await request_all(requester, txn, *changes) == [None, None]
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await rule_names(requester) == ["red"]
        # Rules and messages are kept in different places, so no transaction has both. The refusal says so.
        txn = await tx.coordinator.declare()
        assert await request_all(requester, txn, red("also")) == [None]
        assert await tx.send(message("x"), txn=txn, queue="news") == [NOT_ALLOWED]
        refused = await tx.coordinator.commit(txn)
        assert condition(refused) == "amqp:transaction:rollback"
        assert "rules are kept in the catalog and messages in messaging stores" in str(refused)
        txn = await tx.coordinator.declare()
        assert await tx.send(message("x"), txn=txn, queue="news") == [None]
        assert await request_all(requester, txn, red("also")) == [NOT_ALLOWED]
        assert await rule_names(requester) == ["red"]

    async with transaction_client(OwnEntities(server)) as tx:
        await test(tx)


# -- sessions ---------------------------------------------------------------------------


@pytest.mark.row("P-13", "P-23")
@KINDS
async def test_the_state_of_a_session_is_set_with_the_messages_or_not_at_all(
    start_server: StartServer, partitioned: bool, options: tuple[str, ...]
) -> None:
    server = start_server({"q": {"EnablePartitioning": partitioned, "RequiresSession": True}}, None, *options)
    use_entity(server, "q")

    async with transaction_client(OwnEntities(server)) as tx:
        await tx.send(message("old", session="s"))
        receiver = await tx.client.receiver("q", credit=1, filter={"com.microsoft:session-filter": "s"})
        old = await receiver.receive(1)
        requester = await tx.client.requester("q/$management")

        async def state() -> object:
            reply = await requester.ask("com.microsoft:get-session-state", {"session-id": "s"})
            return reply.value["session-state"]

        for commits in (False, True):
            txn = await tx.coordinator.declare()
            body = {"session-id": "s", "session-state": b"new"}
            assert await request_all(requester, txn, ("set-session-state", body)) == [None]
            assert await state() is None
            if commits:
                assert await tx.settle(receiver, old, txn) is None
                assert await tx.coordinator.commit(txn) == Accepted()
            else:
                assert await tx.coordinator.roll_back(txn) == Accepted()
            assert await state() == (b"new" if commits else None)


@pytest.fixture
def sessions(start_server: StartServer, partitioned: bool, options: tuple[str, ...]) -> ServerProcess:
    """A server whose queue `q` requires sessions."""
    server = start_server({"q": {"EnablePartitioning": partitioned, "RequiresSession": True}}, None, *options)
    use_entity(server, "q")
    return server


async def texts_of_session(tx: TransactionClient, session: str, number: int) -> list[str]:
    """So many messages of a session, received in order and completed."""
    chosen = {"com.microsoft:session-filter": session}
    receiver = await tx.client.receiver("q", credit=number, filter=chosen)
    found = await receiver.receive(number)
    await receiver.settled_as(found)
    receiver.detach()
    await receiver.detached()
    return [text_of(delivery) for delivery in found]


@pytest.mark.row("P-21")
@KINDS
async def test_where_sessions_are_required_a_key_is_no_session_and_must_be_equal_to_it(
    sessions: ServerProcess,
) -> None:
    async with transaction_client(OwnEntities(sessions)) as tx:
        for refused in ({"key": "s"}, {"id": "s"}, {}, {"session": "s", "key": "other"}):
            txn = await tx.coordinator.declare()
            assert await tx.send(message("first", session="s"), txn=txn) == [None]
            assert await tx.send(message("refused", **refused), txn=txn) == [NOT_ALLOWED], refused
            assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
        txn = await tx.coordinator.declare()
        sent = await tx.send(message("1", session="s", key="s"), message("2", session="s"), txn=txn)
        assert sent == [None, None]
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await texts_of_session(tx, "s", 2) == ["1", "2"]


@pytest.mark.row("P-22")
@KINDS
async def test_two_sessions_in_a_transaction_are_allowed_only_where_nothing_is_partitioned(
    sessions: ServerProcess, partitioned: bool
) -> None:
    async with transaction_client(OwnEntities(sessions)) as tx:
        txn = await tx.coordinator.declare()
        sent = await tx.send(message("1", session="a"), message("2", session="b"), txn=txn)
        if partitioned:
            assert sent == [None, NOT_ALLOWED]
            assert condition(await tx.coordinator.commit(txn)) == "amqp:transaction:rollback"
            # Nothing of it is there: what comes is what is sent next.
            assert await tx.send(message("after", session="a")) == [None]
            assert await texts_of_session(tx, "a", 1) == ["after"]
            return
        assert sent == [None, None]
        assert await tx.coordinator.commit(txn) == Accepted()
        assert await texts_of_session(tx, "a", 1) == ["1"]
        assert await texts_of_session(tx, "b", 1) == ["2"]
