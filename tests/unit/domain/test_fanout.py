"""Fan-out: each subscription takes exactly what its rules say, and copies share what they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bendybus.domain.evaluation import Evaluated
from bendybus.domain.fanout import FanOut
from bendybus.domain.filters import (
    DEFAULT_RULE,
    Changes,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
    match,
)
from bendybus.domain.messages import Message, Origin, SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription
from bendybus.errors import FilterError
from bendybus.names import Instant, SequenceNumber, SessionId
from fix_filters import SomeMessage, reading

NEVER = Instant(1 << 63)


@dataclass
class Numbers:
    """Payloads that are one digit; the property `n` is what they say."""

    views: int = 0

    def view(self, message: Message) -> SomeMessage:
        self.views += 1
        assert message.payload is not None
        if message.payload == b"?":
            raise FilterError("unreadable")
        return SomeMessage({"n": int(message.payload)})

    def changed(self, payload: bytes, changes: Changes) -> bytes:
        if b"9" in payload:
            raise FilterError("unwritable")
        return payload + b"!"


def numbered(*payloads: bytes, **properties: object) -> list[Message]:
    messages = [Message(payload, size=len(payload), **properties) for payload in payloads]
    for number, message in enumerate(messages, 1):
        message.sequence_number = SequenceNumber(number)
        message.enqueued_at = Instant(1000)
    return messages


def subscription(name: str, *rules: RuleDescription, **properties: object) -> SubscriptionDescription:
    return SubscriptionDescription.of("t", name, rules=rules, **properties)


def take(
    messages: Sequence[Message], *subscriptions: SubscriptionDescription, contents: Numbers | None = None
) -> list[list[Message]]:
    fan_out = FanOut(subscriptions, contents or Numbers(), lambda: UUID(int=0))
    return [[] if each is None else each.messages for each in fan_out.take(messages, NEVER)]


conditions = st.sampled_from(
    ["n = 1", "n > 4", "n <> 2 AND n < 8", "n IN (3, 5)", "n / (n - 3) > 0", "x = 1"]
)
filters = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    conditions.map(SqlFilter),
    st.integers(0, 9).map(lambda n: CorrelationFilter(properties={"n": n})),
)
actions = st.none() | st.just(SqlRuleAction("SET seen = 1"))
rule_lists = st.lists(st.builds(lambda f, a: (f, a), filters, actions), max_size=4).map(
    lambda pairs: tuple(RuleDescription(f"r{i}", *pair) for i, pair in enumerate(pairs))
)


@given(
    st.lists(st.sampled_from([b"%d" % n for n in range(9)]), max_size=12),
    st.lists(st.tuples(rule_lists, st.booleans()), max_size=5),
)
def test_each_subscription_gets_what_a_reference_evaluation_says_in_order(
    payloads: list[bytes], given_rules: list[tuple[tuple[RuleDescription, ...], bool]]
) -> None:
    subscriptions = [
        subscription(f"s{i}", *rules, dead_letter_on_filter_errors=buries)
        for i, (rules, buries) in enumerate(given_rules)
    ]
    taken = take(numbered(*payloads), *subscriptions)
    for each, got in zip(subscriptions, taken, strict=True):
        expected: list[tuple[bytes, SubQueue]] = []
        for payload in payloads:
            outcome = match(each.rules, reading({"n": int(payload)}))
            expected += [
                (payload if copy.rule_name is None else payload + b"!", SubQueue.MAIN)
                for copy in outcome.copies
            ]
            if each.dead_letter_on_filter_errors:
                expected += [(payload, SubQueue.DEAD_LETTER)] * len(outcome.failures)
        assert [(message.payload, message.subqueue) for message in got] == expected


def test_unchanged_copies_share_one_origin_and_changed_ones_have_their_own() -> None:
    action = SqlRuleAction("SET a = 1")
    changing = subscription("c", RuleDescription("r", TrueFilter(), action))
    first, second, changed = take(
        numbered(b"1"), subscription("a", DEFAULT_RULE), subscription("b", DEFAULT_RULE), changing
    )
    assert first[0].origin is second[0].origin
    assert changed[0].origin is not first[0].origin
    assert [copy.origin and copy.origin.sequence_number for (copy,) in (first, second, changed)] == [1, 1, 1]


def test_nobody_looks_inside_for_true_and_false_filters_and_once_for_all_others() -> None:
    everything = subscription("a", DEFAULT_RULE)
    nothing = subscription("b", RuleDescription("never", FalseFilter()))
    none = subscription("c")
    contents = Numbers()
    assert [len(each) for each in take(numbered(b"1"), everything, nothing, none, contents=contents)] == [
        1,
        0,
        0,
    ]
    assert contents.views == 0
    curious = [subscription(f"s{i}", RuleDescription("r", SqlFilter(f"n = {i}"))) for i in range(10)]
    take(numbered(b"1", b"2"), everything, *curious, contents=contents)
    assert contents.views == 2


def test_what_cannot_be_read_or_written_is_dead_lettered_with_the_reason() -> None:
    asks = subscription("a", RuleDescription("r", SqlFilter("n = 9"), SqlRuleAction("SET a = 1")))
    ((unreadable, unwritable),) = take(numbered(b"?", b"9"), asks)
    told = [
        (each.subqueue, each.amendment.dead_letter_reason)
        for each in (unreadable, unwritable)
        if each.amendment is not None
    ]
    assert told == [(SubQueue.DEAD_LETTER, "FilterException"), (SubQueue.DEAD_LETTER, "RuleActionException")]


def test_a_session_aware_subscription_buries_what_has_no_session() -> None:
    sessions = subscription("a", DEFAULT_RULE, requires_session=True)
    ((lost,),) = take(numbered(b"1"), sessions)
    assert lost.subqueue is SubQueue.DEAD_LETTER
    assert lost.amendment is not None and lost.amendment.dead_letter_reason == "Session ID is null."
    assert lost.amendment.dead_letter_description == (
        "Session enabled entity doesn't allow a message whose session identifier is null."
    )
    ((kept,),) = take(numbered(b"1", session_id=SessionId("s")), sessions)
    assert (kept.subqueue, kept.session_id) == (SubQueue.MAIN, "s")


def test_an_action_can_change_the_session_and_the_lifetime_within_the_topics() -> None:
    action = SqlRuleAction(
        "SET sys.SessionId = 'new'; SET sys.TimeToLive = @ttl", {"ttl": timedelta(seconds=5)}
    )
    changing = subscription("c", RuleDescription("r", TrueFilter(), action))
    fan_out = FanOut([changing], Numbers(), lambda: UUID(int=0))
    for latest, expected in ((NEVER, 6000), (Instant(3000), 3000)):
        (taking,) = fan_out.take(numbered(b"1"), latest)
        assert taking is not None
        (copy,) = taking.messages
        assert (copy.session_id, copy.expires_at) == ("new", expected)


def test_a_message_forwarded_to_the_topic_keeps_where_it_came_from() -> None:
    (message,) = numbered(b"1")
    message.origin = Origin(SequenceNumber(77), hops=2)
    ((copy,),) = take([message], subscription("a", DEFAULT_RULE))
    assert copy.origin is not None
    assert (copy.origin.sequence_number, copy.origin.hops) == (77, 2)


# -- what nobody takes ------------------------------------------------------------------


def catching(name: str = "rest", *rules: RuleDescription, **properties: object) -> SubscriptionDescription:
    return SubscriptionDescription.of(
        "t", name, rules=rules or (DEFAULT_RULE,), catch_unmatched=True, **properties
    )


def takers(fan_out: FanOut, messages: list[Message], evaluated: Evaluated | None = None) -> list[list[bytes]]:
    takings = fan_out.take(messages, NEVER, evaluated=evaluated)
    return [[] if each is None else [message.payload for message in each.messages] for each in takings]


@pytest.mark.row("B-05")
@pytest.mark.parametrize("beforehand", [False, True])
def test_a_message_that_no_subscription_takes_is_caught(beforehand: bool) -> None:
    small = RuleDescription("small", SqlFilter("n < 3"))
    changed = RuleDescription("changed", SqlFilter("n = 5"), SqlRuleAction("SET x = 1"))
    fan_out = FanOut(
        [
            SubscriptionDescription.of("t", "small", rules=(small,)),
            catching(),
            SubscriptionDescription.of("t", "changed", rules=(changed,)),
        ],
        Numbers(),
        lambda: UUID(int=0),
    )
    messages = numbered(b"1", b"4", b"5", b"7")
    evaluated = None
    if beforehand:
        evaluated = Evaluated(fan_out)
        for message in messages:
            for _ in fan_out.evaluate(message, message, evaluated):
                pass
    assert takers(fan_out, messages, evaluated) == [[b"1"], [b"4", b"7"], [b"5!"]]


def test_rules_of_the_catching_subscription_count_too() -> None:
    seven = RuleDescription("seven", SqlFilter("n = 7"))
    fan_out = FanOut([catching("rest", seven), catching("all")], Numbers(), lambda: UUID(int=0))
    assert takers(fan_out, numbered(b"4", b"7")) == [[b"7"], [b"4", b"7"]]


def test_what_a_subscription_dead_letters_counts_as_taken() -> None:
    failing = RuleDescription("fails", SqlFilter("n > 'text'"))
    for dead_letters in (True, False):
        fan_out = FanOut(
            [
                SubscriptionDescription.of(
                    "t", "fails", rules=(failing,), dead_letter_on_filter_errors=dead_letters
                ),
                catching(),
            ],
            Numbers(),
            lambda: UUID(int=0),
        )
        failed, caught = takers(fan_out, numbered(b"4"))
        assert (len(failed), len(caught)) == ((1, 0) if dead_letters else (0, 1))


def test_copies_for_constant_rules_are_those_of_the_general_path() -> None:
    """A subscription whose rule reads messages makes the fan-out take the general path for all."""
    messages = numbered(b"1", b"2", b"3", expires_at=Instant(5000))
    messages[1].session_id = SessionId("s")
    messages[2].origin = Origin(SequenceNumber(70), hops=1, body=8)
    constant = [
        subscription("a", DEFAULT_RULE),
        subscription("b", RuleDescription("never", FalseFilter())),
        subscription("c", DEFAULT_RULE, requires_session=True),
    ]
    curious = subscription("d", RuleDescription("r", SqlFilter("n = 9")))

    def said(taken: list[list[Message]]) -> list[list[object]]:
        return [
            [
                (copy.payload, copy.size, copy.expires_at, copy.session_id, copy.origin, copy.subqueue)
                for copy in each
            ]
            for each in taken
        ]

    at_once = take(messages, *constant)
    assert said(at_once) == said(take(messages, *constant, curious))[:-1]
    assert [len(each) for each in at_once] == [3, 0, 3]
    assert [copy.subqueue for copy in at_once[2]] == [
        SubQueue.DEAD_LETTER,
        SubQueue.MAIN,
        SubQueue.DEAD_LETTER,
    ]
    assert all(one.origin is other.origin for one, other in zip(at_once[0], at_once[2], strict=True))
