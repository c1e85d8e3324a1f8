"""Open transactions of a connection: found by their id while they last, and they do not last for ever."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bendybus.amqp.frames import encode_frame
from bendybus.amqp.performatives import Accepted, End, TransactionalState
from bendybus.broker.clock import now
from bendybus.domain.routing import partition_of
from bendybus.domain.transactions import LIFETIME_S, MESSAGES_MAX, MessageKeys, Scope
from bendybus.errors import InvalidOperation, QuotaExceeded, TransactionTimedOut, TransactionUnknown
from bendybus.gateway.transactions import OPEN_MAX, Transactions
from bendybus.names import Instant, PartitionNumber
from fix_engine import begin_frame
from unit.gateway.test_probation import ALL, opened

NODE = cast(Any, object())
SESSION = cast(Any, object())


def test_a_transaction_open_for_too_long_is_rolled_back_and_says_so_once() -> None:
    transactions = Transactions()
    transaction = transactions.declare(NODE, SESSION)
    state = TransactionalState(transaction.id)
    assert transactions.find(state) is transaction
    transactions.tick(Instant(now() + LIFETIME_S * 1000 - 5000))
    assert transactions.find(state) is transaction
    transactions.tick(Instant(now() + LIFETIME_S * 1000 + 5000))
    with pytest.raises(TransactionTimedOut):
        transactions.discharge(transaction.id)
    with pytest.raises(TransactionUnknown):
        transactions.discharge(transaction.id)


def test_only_so_many_that_were_open_for_too_long_are_remembered() -> None:
    transactions = Transactions()
    late: list[TransactionalState] = []
    for turn in range(2):
        for _ in range(OPEN_MAX):
            late.append(TransactionalState(transactions.declare(NODE, SESSION).id))
            transactions.find(late[-1])
        transactions.tick(Instant(now() + LIFETIME_S * 1000 * (turn + 2)))
    with pytest.raises(TransactionUnknown):
        transactions.find(late[0])
    with pytest.raises(TransactionTimedOut):
        transactions.find(late[-1])


def test_time_runs_from_the_first_operation_not_from_the_declaration() -> None:
    transactions = Transactions()
    transaction = transactions.declare(NODE, SESSION)
    transactions.tick(Instant(now() + LIFETIME_S * 10_000))
    assert transactions.find(TransactionalState(transaction.id)) is transaction


def test_only_a_transactional_state_names_a_transaction() -> None:
    with pytest.raises(Exception, match="not the state of a transfer"):
        Transactions().find(Accepted())


def test_a_connection_has_only_so_many_open() -> None:
    transactions = Transactions()
    for _ in range(OPEN_MAX):
        transactions.declare(NODE, SESSION)
    with pytest.raises(InvalidOperation):
        transactions.declare(NODE, SESSION)


async def test_a_session_that_has_ended_is_forgotten() -> None:
    """Some clients begin a session for each link, and keep their connection for days."""
    connection, _ = opened()
    connection.client.accept_claim(ALL)
    connection.data_received(begin_frame())
    (session,) = connection._engine.sessions
    known = connection.transactions.coordination(session)
    assert connection.transactions.coordination(session) is known
    connection.data_received(encode_frame(0, End()))
    assert connection.transactions.coordination(session) is not known


def sent(scope: Scope, *, crosses: bool = False, **keys: str) -> None:
    scope.send(
        "q", 16, MessageKeys(**{"own": None, "message_id": None, "via": None, **keys}), crosses=crosses
    )


@pytest.mark.row("P-19", "P-20")
def test_a_scope_has_one_entity_one_partition_one_key_and_a_hundred_messages() -> None:
    scope = Scope()
    scope.enter("q", partition_of("a", 16))
    scope.enter("q", partition_of("a", 16))
    with pytest.raises(InvalidOperation, match="top-level"):
        scope.enter("other", partition_of("a", 16))
    with pytest.raises(InvalidOperation, match="partition"):
        scope.enter("q", PartitionNumber(partition_of("a", 16) ^ 1))
    with pytest.raises(InvalidOperation, match="needs a SessionId"):
        sent(scope)
    with pytest.raises(InvalidOperation, match="same"):
        sent(scope, own="a")
        sent(scope, message_id="b")
    for _ in range(MESSAGES_MAX - 3):
        sent(scope, own="a")
    with pytest.raises(QuotaExceeded, match="100 messages"):
        sent(scope, own="a")


@pytest.mark.row("P-37")
def test_a_scope_across_entities_is_in_the_partition_of_a_via_key_or_of_what_is_settled() -> None:
    by_key, by_settlement, by_message_id, anywhere = Scope(), Scope(), Scope(), Scope()
    sent(by_key, crosses=True, message_id="1", via="k")
    assert by_key.settle_partition(16) == partition_of("k", 16)
    for scope in (by_settlement, by_message_id):
        sent(scope, crosses=True, message_id="1")
        assert scope.partition is None
    by_settlement.decide("q", PartitionNumber(7))
    assert by_settlement.settle_partition(16) == 7
    assert by_message_id.settle_partition(16) == partition_of("1", 16)
    anywhere.send_through("q", 16, MessageKeys("own", None, None))
    assert anywhere.settle_partition(16) is None
    with pytest.raises(InvalidOperation, match="span multiple entities or partitions"):
        by_key.decide("q", PartitionNumber(partition_of("k", 16) ^ 1))


@pytest.mark.row("P-19", "P-20")
def test_a_scope_without_a_decision_keeps_to_the_rules_of_one_entity() -> None:
    keyless, two_ids = Scope(), Scope()
    sent(keyless, crosses=True)
    with pytest.raises(InvalidOperation, match="needs a SessionId"):
        keyless.settle_partition(16)
    sent(two_ids, crosses=True, message_id="1")
    sent(two_ids, crosses=True, message_id="2")
    with pytest.raises(InvalidOperation, match="same"):
        two_ids.settle_partition(16)
