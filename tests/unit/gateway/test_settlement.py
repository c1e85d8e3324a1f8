"""Outcomes and what they ask of a partition; the same from a link and through $management."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bendybus.amqp.codec import decode
from bendybus.amqp.performatives import (
    Accepted,
    Error,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from bendybus.amqp.types import Symbol
from bendybus.domain.commands import Abandon, Complete, DeadLetter, Defer, Enqueue, Release
from bendybus.domain.messages import SubQueue
from bendybus.engine.deliveries import SentDelivery
from bendybus.engine.events import OutcomesReceived
from bendybus.errors import ArgumentError, MessageLockLost, NotSupported
from bendybus.gateway.dispositions import Dispositions
from bendybus.gateway.joined_outcomes import JoinedOutcomes
from bendybus.gateway.settlement import command_for_outcome, command_for_status, echo, lock_lost, rejection
from bendybus.gateway.transactions import Transactions
from bendybus.names import LockToken
from fix_broker import gated_queue, message

TOKENS = [LockToken(bytes(16))]
DEAD = Rejected(
    Error(
        "com.microsoft:dead-letter",
        None,
        {Symbol("DeadLetterReason"): "r", "DeadLetterErrorDescription": "d", "extra": 1},
    )
)


def properties(command: Abandon | Defer | DeadLetter) -> object:
    return None if command.properties is None else decode(command.properties)[0]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Accepted(), Complete),
        (Released(), Release),
        (Modified(), Abandon),
        (Modified(delivery_failed=True), Abandon),
        (Modified(undeliverable_here=True), Defer),
        (Rejected(), DeadLetter),
    ],
)
def test_an_outcome_is_a_command(outcome, kind):
    command = command_for_outcome(TOKENS, outcome)
    assert type(command) is kind
    assert command.lock_tokens == TOKENS


def test_a_dead_lettering_carries_its_reason_and_changed_properties():
    command = command_for_outcome(TOKENS, DEAD)
    assert isinstance(command, DeadLetter)
    assert (command.reason, command.description, properties(command)) == ("r", "d", {"extra": 1})


def test_changed_properties_travel_with_abandon_and_defer():
    for here in (None, True):
        outcome = Modified(undeliverable_here=here, message_annotations={Symbol("a"): "b"})
        command = command_for_outcome(TOKENS, outcome)
        assert isinstance(command, Abandon | Defer)
        assert properties(command) == {"a": "b"}


@pytest.mark.parametrize("outcome", [None, Received(0, 0), TransactionalState(b"t", Accepted())])
def test_what_is_no_outcome_is_refused_by_name(outcome):
    with pytest.raises(NotSupported):
        command_for_outcome(TOKENS, outcome)


@pytest.mark.parametrize(
    ("status", "kind"),
    [("completed", Complete), ("abandoned", Abandon), ("defered", Defer), ("suspended", DeadLetter)],
)
def test_a_disposition_status_is_the_same_command(status, kind):
    assert type(command_for_status(TOKENS, {"disposition-status": status})) is kind


def test_an_empty_reason_is_no_reason():
    body = {"disposition-status": "suspended", "deadletter-reason": "", "deadletter-description": "why"}
    command = command_for_status(TOKENS, body)
    assert isinstance(command, DeadLetter)
    assert (command.reason, command.description) == (None, "why")


def test_an_unknown_disposition_status_is_named():
    with pytest.raises(ArgumentError, match="'deferred'"):
        command_for_status(TOKENS, {"disposition-status": "deferred"})


def test_success_echoes_the_outcome_and_a_dead_lettering_bare():
    """The Python SDK takes a rejected outcome that carries an error for a failure."""
    assert echo(Modified(undeliverable_here=True)) == Modified(undeliverable_here=True)
    assert echo(DEAD) == Rejected()


def test_a_refusal_carries_the_condition_the_sdks_look_for():
    refusal = rejection(lock_lost("orders"))
    assert refusal.error is not None
    assert refusal.error.condition == MessageLockLost.condition
    assert "'orders'" in (refusal.error.description or "")


def test_a_reason_that_is_no_text_keeps_its_type():
    info = {"DeadLetterReason": 5, "DeadLetterErrorDescription": "why", "other": True}
    by_link = command_for_outcome(TOKENS, Rejected(error=Error(Symbol("x"), None, info)))
    body = {
        "disposition-status": "suspended",
        "deadletter-reason": 5,
        "deadletter-description": "why",
        "properties-to-modify": {"other": True},
    }
    for command in (by_link, command_for_status(TOKENS, body)):
        assert (command.reason, command.description) == (None, "why")
        assert decode(command.properties)[0] == {"DeadLetterReason": 5, "other": True}


class FakeConnection:
    observer = None

    def __init__(self) -> None:
        self.transactions = Transactions()
        self.joined_outcomes = JoinedOutcomes()

    def flush_soon(self) -> None: ...


class FakeLink:
    def __init__(self) -> None:
        self.settled: list[tuple[bytes, object]] = []

    def answer(self, sent: list[SentDelivery], state: object) -> None: ...

    def settle(self, sent: list[SentDelivery], state: object) -> None:
        self.settled += [(delivery.tag, state) for delivery in sent]


async def test_outcomes_that_are_repeated_during_a_transaction_are_one_after_its_rollback() -> None:
    """Each would be kept until the transaction ends, and a client may send any number."""
    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([message("m")]))
        (locked,) = gated.host.lock(1, 1000, SubQueue.MAIN)
        assert locked.lock_token is not None
        connection, link = FakeConnection(), FakeLink()
        dispositions = Dispositions(cast(Any, connection), cast(Any, link), gated.queue, lambda: None)
        delivery = SentDelivery(0, locked.lock_token, cast(Any, link))
        transaction = connection.transactions.declare(cast(Any, None), cast(Any, None))
        enlisted = TransactionalState(transaction.id, Accepted())
        dispositions.outcomes(OutcomesReceived(cast(Any, link), [delivery], enlisted, False))
        before = len(transaction._ended)
        for _ in range(1000):
            dispositions.outcomes(OutcomesReceived(cast(Any, link), [delivery] * 10, Released(), False))
        assert len(transaction._ended) == before + 1
        connection.transactions.discharge(transaction.id).over(committed=False)
        assert link.settled == [(delivery.tag, Released())]
        assert gated.host.available(SubQueue.MAIN) == 1


@pytest.mark.parametrize("outcome", [Accepted(), Modified(), Released()])
async def test_a_delivery_that_is_named_twice_is_settled_once(outcome) -> None:
    """The second time it would be too late, and the answer would say so of the first time too."""
    async with gated_queue() as gated:
        await gated.host.ask(Enqueue([message("m")]))
        (locked,) = gated.host.lock(1, 1000, SubQueue.MAIN)
        assert locked.lock_token is not None
        connection, link = FakeConnection(), FakeLink()
        dispositions = Dispositions(cast(Any, connection), cast(Any, link), gated.queue, lambda: None)
        delivery = SentDelivery(0, locked.lock_token, cast(Any, link))
        dispositions.outcomes(OutcomesReceived(cast(Any, link), [delivery, delivery], outcome, False))
        connection.joined_outcomes.submit()
        await gated.settled()
        assert {state for _, state in link.settled} == {outcome}
