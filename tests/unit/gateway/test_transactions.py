"""Open transactions of a connection: found by their id while they last, and they do not last for ever."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bendybus.amqp.performatives import Accepted, TransactionalState
from bendybus.broker.clock import now
from bendybus.domain.transactions import LIFETIME_S, MESSAGES_MAX, Scope
from bendybus.errors import InvalidOperation, QuotaExceeded, TransactionTimedOut, TransactionUnknown
from bendybus.gateway.transactions import OPEN_MAX, Transactions
from bendybus.names import Instant, PartitionNumber

NODE = cast(Any, object())


def test_a_transaction_open_for_too_long_is_rolled_back_and_says_so_once() -> None:
    transactions = Transactions()
    transaction = transactions.declare(NODE)
    state = TransactionalState(transaction.id)
    assert transactions.find(state) is transaction
    transactions.tick(Instant(now() + LIFETIME_S * 1000 - 5000))
    assert transactions.find(state) is transaction
    transactions.tick(Instant(now() + LIFETIME_S * 1000 + 5000))
    with pytest.raises(TransactionTimedOut):
        transactions.discharge(transaction.id)
    with pytest.raises(TransactionUnknown):
        transactions.discharge(transaction.id)


def test_time_runs_from_the_first_operation_not_from_the_declaration() -> None:
    transactions = Transactions()
    transaction = transactions.declare(NODE)
    transactions.tick(Instant(now() + LIFETIME_S * 10_000))
    assert transactions.find(TransactionalState(transaction.id)) is transaction


def test_only_a_transactional_state_names_a_transaction() -> None:
    with pytest.raises(Exception, match="not the state of a transfer"):
        Transactions().find(Accepted())


def test_a_connection_has_only_so_many_open() -> None:
    transactions = Transactions()
    for _ in range(OPEN_MAX):
        transactions.declare(NODE)
    with pytest.raises(InvalidOperation):
        transactions.declare(NODE)


def test_a_scope_has_one_entity_one_partition_one_key_and_a_hundred_messages() -> None:  # P-19 P-20
    scope = Scope()
    scope.enter("q", PartitionNumber(3))
    scope.enter("q", PartitionNumber(3))
    with pytest.raises(InvalidOperation, match="top-level"):
        scope.enter("other", PartitionNumber(3))
    with pytest.raises(InvalidOperation, match="partition"):
        scope.enter("q", PartitionNumber(4))
    with pytest.raises(InvalidOperation, match="needs a SessionId"):
        scope.check_key(None, "q")
    scope.send(MESSAGES_MAX, scope.check_key("a", "q"))
    with pytest.raises(InvalidOperation, match="same"):
        scope.check_key("b", "q")
    with pytest.raises(QuotaExceeded, match="100 messages"):
        scope.send(1, "a")
