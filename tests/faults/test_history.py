"""The checker sees what it is there to see: each kind of violation, and none where a crash explains it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.history import History, Place, Seen, Settlement, Violation

FIRST = Seen("a", b"body", sequence_number=1, delivery_count=0, generation=1, link="one")


@pytest.fixture
def history() -> History:
    """One message was sent and acknowledged."""
    history = History()
    history.attempt(["a"], "stream", [b"body"])
    history.acknowledge(["a"])
    return history


def settle(history: History, how: Settlement, generation: int = 1, message_id: str = "a") -> None:
    history.settling(message_id, how, generation)
    history.settled(message_id, how, generation)


def kinds(history: History) -> set[Violation]:
    return {kind for kind, _ in history.verdict().violations}


def test_a_message_received_and_completed_is_no_violation(history: History) -> None:
    history.deliver(FIRST)
    settle(history, Settlement.COMPLETE)
    verdict = history.verdict()
    assert verdict.holds
    assert (verdict.attempted, verdict.acknowledged, verdict.completed, verdict.in_doubt) == (1, 1, 1, 0)


def test_an_acknowledged_message_that_never_comes_is_lost(history: History) -> None:
    assert kinds(history) == {Violation.LOST}


def test_an_unacknowledged_message_may_come_or_not() -> None:
    history = History()
    history.attempt(["a"], "stream", [b"body"])
    history.attempt(["b"], "stream", [b"body"])
    history.deliver(FIRST)
    verdict = history.verdict()
    assert verdict.holds and verdict.recovered == 1


def test_a_completion_that_was_never_answered_leaves_a_message_in_doubt(history: History) -> None:
    history.deliver(FIRST)
    history.settling("a", Settlement.COMPLETE, 1)
    verdict = history.verdict()
    assert verdict.holds and verdict.in_doubt == 1


def test_a_message_that_came_again_after_such_a_completion_can_still_be_lost(history: History) -> None:
    history.deliver(FIRST)
    history.settling("a", Settlement.COMPLETE, 1)
    history.deliver(replace(FIRST, generation=2))
    assert kinds(history) == {Violation.LOST}


@pytest.mark.parametrize("generation", [1, 2])
def test_a_message_seen_after_its_completion_is_resurrected(history: History, generation: int) -> None:
    history.deliver(FIRST)
    settle(history, Settlement.COMPLETE)
    history.deliver(replace(FIRST, generation=generation, link="two"))
    assert kinds(history) == {Violation.RESURRECTED}


def test_a_delivery_of_a_dead_process_read_late_resurrects_nothing(history: History) -> None:
    history.deliver(replace(FIRST, generation=2))
    settle(history, Settlement.COMPLETE, generation=2)
    history.deliver(replace(FIRST, link="two"))
    assert history.verdict().holds


def test_one_message_under_two_numbers_is_a_duplicate(history: History) -> None:
    history.deliver(FIRST)
    history.deliver(replace(FIRST, sequence_number=2))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.DUPLICATED}


@pytest.mark.parametrize("stranger", [replace(FIRST, message_id="z"), replace(FIRST, body=b"other")])
def test_a_message_nobody_sent_so_is_unexpected(history: History, stranger: Seen) -> None:
    assert not history.deliver(stranger)
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.UNEXPECTED}


def test_numbers_of_a_stream_against_the_order_of_sending_are_disorder(history: History) -> None:
    history.attempt(["b"], "stream", [b"body"])
    history.deliver(replace(FIRST, sequence_number=2))
    history.deliver(replace(FIRST, message_id="b", sequence_number=1, link="two"))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.DISORDERED}


def test_a_stream_in_two_partitions_is_disorder(history: History) -> None:
    history.attempt(["b"], "stream", [b"body"])
    history.deliver(FIRST)
    history.deliver(replace(FIRST, message_id="b", sequence_number=1 << 48))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.DISORDERED}


def test_first_deliveries_of_one_link_against_the_order_of_their_partition_are_disorder(
    history: History,
) -> None:
    history.attempt(["b"], "another stream", [b"body"])
    history.deliver(replace(FIRST, sequence_number=2))
    history.deliver(replace(FIRST, message_id="b", sequence_number=1))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.DISORDERED}


def test_a_message_that_was_abandoned_may_come_after_later_ones(history: History) -> None:
    history.attempt(["b"], "stream", [b"body"])
    history.deliver(FIRST)
    settle(history, Settlement.ABANDON)
    history.deliver(replace(FIRST, message_id="b", sequence_number=2))
    history.deliver(replace(FIRST, delivery_count=1))
    settle(history, Settlement.COMPLETE)
    assert history.verdict().holds


def test_a_part_of_a_batch_is_torn_even_without_an_acknowledgement() -> None:
    history = History()
    history.attempt(["a", "b"], "stream", [b"body", b"body"])
    history.deliver(FIRST)
    assert kinds(history) == {Violation.TORN}


@pytest.mark.parametrize(
    ("how", "next_place"),
    [
        (Settlement.ABANDON, Place.MAIN),
        (Settlement.DEFER, Place.MAIN),
        (Settlement.DEAD_LETTER, Place.MAIN),
        (Settlement.DEAD_LETTER, Place.DEFERRED),
    ],
)
def test_a_settlement_without_a_trace_is_forgotten(
    history: History, how: Settlement, next_place: Place
) -> None:
    history.deliver(FIRST)
    settle(history, how)
    history.deliver(replace(FIRST, generation=2, place=next_place))
    settle(history, Settlement.COMPLETE, generation=2)
    assert kinds(history) == {Violation.FORGOTTEN}


@pytest.mark.parametrize(
    ("how", "place"), [(Settlement.DEFER, Place.DEFERRED), (Settlement.DEAD_LETTER, Place.DEAD_LETTER)]
)
def test_a_message_found_where_its_settlement_put_it_is_no_violation(
    history: History, how: Settlement, place: Place
) -> None:
    history.deliver(FIRST)
    settle(history, how)
    history.deliver(replace(FIRST, generation=2, place=place))
    settle(history, Settlement.COMPLETE, generation=2)
    assert history.verdict().holds


def test_an_error_without_a_reason_is_a_violation(history: History) -> None:
    history.deliver(FIRST)
    settle(history, Settlement.COMPLETE)
    history.refuse("a was answered with an error")
    assert kinds(history) == {Violation.REFUSED}


# -- groups and transactions ---------------------------------------------------------------


def transaction(history: History) -> None:
    """In the first generation somebody took "a", and is about to commit "x" and "y" in its place."""
    history.deliver(FIRST)
    history.attempt(["x", "y"], ["x", "y"], [b"x", b"y"], group="txn")
    history.committing("txn", "a", 1)


def come(history: History, *ids: str, generation: int = 2) -> None:
    for number, message_id in enumerate(ids, 10):
        body = b"body" if message_id == "a" else message_id.encode()
        history.deliver(Seen(message_id, body, number, 0, generation, link=message_id))
        settle(history, Settlement.COMPLETE, generation, message_id)


def test_an_unanswered_commit_may_have_happened(history: History) -> None:
    transaction(history)
    come(history, "x", "y")
    assert history.verdict().holds


def test_an_unanswered_commit_may_not_have_happened(history: History) -> None:
    transaction(history)
    history.deliver(replace(FIRST, generation=2))
    settle(history, Settlement.COMPLETE, 2)
    assert history.verdict().holds


def test_a_transaction_of_which_only_the_sends_happened_is_torn(history: History) -> None:
    transaction(history)
    come(history, "x", "y")
    history.deliver(replace(FIRST, generation=2))
    settle(history, Settlement.COMPLETE, 2)
    assert kinds(history) == {Violation.TORN}


def test_a_transaction_of_which_only_the_settlement_happened_is_torn(history: History) -> None:
    transaction(history)
    assert kinds(history) == {Violation.TORN}


def test_a_transaction_of_which_one_send_happened_is_torn(history: History) -> None:
    transaction(history)
    come(history, "x")
    assert kinds(history) == {Violation.TORN}


def test_what_an_answered_commit_sent_must_come(history: History) -> None:
    transaction(history)
    history.committed("txn", "a", 1)
    assert kinds(history) == {Violation.LOST, Violation.TORN}


def test_what_was_rolled_back_is_unexpected(history: History) -> None:
    history.attempt(["x"], "x", [b"x"])
    history.roll_back(["x"])
    come(history, "a", "x")
    assert kinds(history) == {Violation.UNEXPECTED}


def test_a_message_for_several_subscriptions_comes_to_all_or_none() -> None:
    history = History()
    history.attempt(["m@one", "m@two"], ["m@one", "m@two"], [b"m@one", b"m@two"], group="m")
    come(history, "m@one")
    assert kinds(history) == {Violation.TORN}


def test_a_message_may_be_acknowledged_twice_and_comes_once(history: History) -> None:
    history.acknowledge(["a"])
    history.deliver(FIRST)
    settle(history, Settlement.COMPLETE)
    assert history.verdict().holds and history.open == 0


# -- time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "expected"), [(99.9, {Violation.EARLY}), (100.0, set())])
def test_a_message_before_its_time_is_early(at: float, expected: set[Violation]) -> None:
    history = History()
    history.attempt(["a"], "a", [b"body"], due=100.0)
    history.deliver(replace(FIRST, at=at))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == expected


def test_a_message_that_was_cancelled_does_not_come(history: History) -> None:
    history.cancelling("a")
    history.cancelled("a", 1, succeeded=True)
    assert history.verdict().holds
    history.deliver(replace(FIRST, generation=2))
    assert kinds(history) == {Violation.RESURRECTED}


def test_a_message_whose_cancellation_was_refused_must_come(history: History) -> None:
    history.cancelling("a")
    assert history.waiting == 0
    history.cancelled("a", 1, succeeded=False)
    assert kinds(history) == {Violation.LOST}


# -- forwarded dead letters ------------------------------------------------------------------


def test_a_dead_letter_gets_one_new_number_where_it_is_forwarded_to(history: History) -> None:
    history.deliver(FIRST)
    settle(history, Settlement.DEAD_LETTER)
    history.deliver(replace(FIRST, sequence_number=7, place=Place.FORWARDED, link="two"))
    settle(history, Settlement.COMPLETE)
    assert history.verdict().holds


def test_a_dead_letter_forwarded_twice_is_a_duplicate(history: History) -> None:
    for number in (7, 8):
        history.deliver(replace(FIRST, sequence_number=number, place=Place.FORWARDED, link="two"))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.DUPLICATED}


def test_a_dead_letter_that_was_forwarded_and_is_still_there_is_resurrected(history: History) -> None:
    history.deliver(replace(FIRST, sequence_number=7, place=Place.FORWARDED))
    history.deliver(replace(FIRST, link="two"))
    settle(history, Settlement.COMPLETE)
    assert kinds(history) == {Violation.RESURRECTED}


# -- sessions --------------------------------------------------------------------------------


def test_a_session_gives_no_message_before_an_older_one(history: History) -> None:
    history.attempt(["b"], "stream", [b"body"])
    history.deliver_in_session(replace(FIRST, message_id="b", sequence_number=2))
    history.deliver_in_session(replace(FIRST, generation=2))
    settle(history, Settlement.COMPLETE, 2)
    assert kinds(history) == {Violation.DISORDERED}


@pytest.mark.parametrize("how", [Settlement.COMPLETE, Settlement.DEAD_LETTER])
def test_a_session_goes_on_after_what_was_settled_answered_or_not(history: History, how: Settlement) -> None:
    history.attempt(["b"], "stream", [b"body"])
    history.deliver_in_session(FIRST)
    history.settling("a", how, 1)
    history.deliver_in_session(replace(FIRST, message_id="b", sequence_number=2, link="two"))
    assert Violation.DISORDERED not in kinds(history)


def test_a_session_state_is_the_last_that_was_answered_or_one_asked_for_since() -> None:
    history = History()
    history.state_found("s", None)
    for state in (b"1", b"2", b"3"):
        history.setting_state("s", state)
    history.state_found("s", b"2")
    assert history.verdict().holds
    history.state_found("s", b"3")  # it was the second: what is found is found again
    assert kinds(history) == {Violation.FORGOTTEN}


def test_a_session_state_that_was_answered_and_is_gone_is_forgotten() -> None:
    history = History()
    history.setting_state("s", b"1")
    history.state_set("s", b"1")
    history.state_found("s", None)
    assert kinds(history) == {Violation.FORGOTTEN}
