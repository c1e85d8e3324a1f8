"""The tally tells what a fault excuses from what none does."""

from __future__ import annotations

import pytest

from faults.tally import Counts, Received, Tally

BODY = b"body"


def received(message_id: str, number: int = 1, locked_at: float = 1.0, body: bytes = BODY) -> Received:
    return Received(message_id, body, number, locked_at)


@pytest.fixture
def tally() -> Tally:
    """One message was sent and acknowledged."""
    tally = Tally()
    tally.attempt("a", BODY, "key")
    tally.acknowledge("a")
    return tally


def violations(counts: Counts) -> list[str]:
    return [kind for kind, found in counts.violations.items() for _ in found]


def test_a_message_that_was_sent_received_and_completed_is_in_order(tally: Tally) -> None:
    assert tally.waiting == tally.open == 1
    assert tally.receive(received("a"))
    tally.complete("a", at=2.0)
    assert tally.waiting == tally.open == 0
    counts = tally.counts()
    assert counts.holds
    assert (counts.attempted, counts.acknowledged, counts.completed) == (1, 1, 1)


def test_an_acknowledged_message_that_never_came_is_lost(tally: Tally) -> None:
    assert violations(tally.counts()) == ["lost"]


def test_one_that_came_and_stayed_when_all_was_emptied_is_lost(tally: Tally) -> None:
    tally.receive(received("a"))
    assert violations(tally.counts()) == ["lost"]


def test_what_nobody_acknowledged_may_come_or_not(tally: Tally) -> None:
    tally.receive(received("a"))
    tally.complete("a", at=2.0)
    for message_id in "bc":
        tally.attempt(message_id, BODY, None)
    tally.receive(received("b", 2))
    tally.complete("b", at=2.0)
    counts = tally.counts()
    assert counts.holds
    assert (counts.attempted, counts.acknowledged, counts.recovered) == (3, 1, 1)


def test_after_a_completion_without_an_answer_it_may_come_again(tally: Tally) -> None:
    tally.receive(received("a"))
    tally.doubt("a")
    assert tally.counts().in_doubt == 1
    tally.receive(received("a", locked_at=3.0))
    tally.complete("a", at=4.0)
    counts = tally.counts()
    assert counts.holds
    assert (counts.repeated, counts.in_doubt) == (1, 0)


def test_after_a_completion_with_an_answer_it_may_not(tally: Tally) -> None:
    tally.receive(received("a"))
    tally.complete("a", at=2.0)
    tally.receive(received("a", locked_at=3.0))
    assert violations(tally.counts()) == ["duplicated"]


def test_what_the_sdk_had_in_its_buffer_since_before_is_no_repetition(tally: Tally) -> None:
    tally.receive(received("a"))
    tally.complete("a", at=2.0)
    tally.receive(received("a", locked_at=1.5))
    assert tally.counts().holds


def test_two_completions_that_were_answered_are_one_too_many(tally: Tally) -> None:
    tally.receive(received("a"))
    tally.complete("a", at=2.0)
    tally.complete("a", at=2.1)
    assert violations(tally.counts()) == ["duplicated"]


def test_a_message_with_two_numbers_was_stored_twice(tally: Tally) -> None:
    tally.receive(received("a", 1))
    tally.receive(received("a", 2))
    tally.complete("a", at=2.0)
    assert violations(tally.counts()) == ["duplicated"]


@pytest.mark.parametrize("strange", [received("never-sent"), received("a", body=b"other")])
def test_what_was_not_sent_so_is_unexpected_and_not_to_be_completed(tally: Tally, strange: Received) -> None:
    assert not tally.receive(strange)
    assert "unexpected" in violations(tally.counts())


@pytest.mark.parametrize("second", [1, 3 << 48], ids=["before the first", "in another partition"])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_acknowledged_messages_of_a_key_are_in_their_order_and_one_partition(
    tally: Tally, second: int, acknowledged: bool
) -> None:
    tally.attempt("b", BODY, "key")
    if acknowledged:
        tally.acknowledge("b")
    for message_id, number in (("a", 2), ("b", second)):
        tally.receive(received(message_id, number))
        tally.complete(message_id, at=2.0)
    assert violations(tally.counts()) == (["disordered"] if acknowledged else [])
