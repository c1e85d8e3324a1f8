"""Fan-out: which subscriptions of a topic take which copies of its messages.

A message is decoded once, however many rules read it, and not at all if no rule
does. Unchanged copies share one `Origin`, and so one stored body; a copy that a
rule's action has changed has its own. If a rule fails and the subscription is configured
for it, a copy goes to the subscription's dead-letter queue. If an action gives a copy the
key of another partition, the copy is posted into the outbox and moved there (P-13). A
subscription may catch the messages that no other one takes (B-05).
The rules themselves: filters/.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

from bendybus.domain.commands import Enqueue
from bendybus.domain.copies import bury, copy_for, give, give_all, origin_of
from bendybus.domain.deadletter import SESSION_ID_MISSING, Cause
from bendybus.domain.evaluation import Answer, Evaluated, RuleResult, evaluate, weight
from bendybus.domain.expiry import NEVER
from bendybus.domain.filters import (
    Changes,
    Failure,
    MessageView,
    Outcome,
    Reading,
    SystemProperty,
    match,
)
from bendybus.domain.messages import Amendment, Message, Origin, Posting, SubQueue
from bendybus.domain.routing import partition_of, routing_key
from bendybus.domain.topic_entities import SubscriptionDescription
from bendybus.errors import FILTER_EXCEPTION, RULE_ACTION_EXCEPTION, FilterError, RequestError
from bendybus.names import Instant, PartitionNumber, SessionId

__all__ = ["Contents", "FanOut", "Opaque"]

_MILLISECOND: Final = timedelta(milliseconds=1)

# Chooses the partition of a copy.
_KEYS: Final = frozenset({SystemProperty.SESSION_ID, SystemProperty.PARTITION_KEY})

# This many subscriptions that take everything, or nothing, cost as much as one simple filter.
PASSED_PER_WEIGHT: Final = 50

FIRST: Final = PartitionNumber(0)


class Contents(Protocol):
    """Reads and changes payloads. The domain itself never looks inside them."""

    def view(self, message: Message) -> MessageView:
        """What rules see of a message whose payload is in memory. `FilterError` if it cannot be decoded."""

    def changed(self, payload: bytes, changes: Changes) -> bytes:
        """The payload with the changes of an action. `FilterError` if they cannot be encoded."""


class Opaque:
    """For a broker whose topics have only true and false filters."""

    def view(self, message: Message) -> MessageView:
        raise FilterError("this broker does not look into messages")

    def changed(self, payload: bytes, changes: Changes) -> bytes:
        raise FilterError("this broker does not change messages")


class FanOut:
    """The rules of a topic's subscriptions, sorted once and evaluated for every message."""

    __slots__ = (
        *("_catchers", "_contents", "_new_id", "_partition_count", "_plans", "_filters", "_subscriptions"),
        *("_is_constant", "_weights", "work"),
    )

    def __init__(
        self,
        subscriptions: Sequence[SubscriptionDescription],
        contents: Contents,
        new_id: Callable[[], UUID],
        partition_count: int = 1,
    ) -> None:
        self._partition_count = partition_count
        self._subscriptions = subscriptions
        self._catchers = [
            index for index, subscription in enumerate(subscriptions) if subscription.catch_unmatched
        ]
        """The subscriptions that take what no other takes. They are asked last, and only then."""
        self._plans = [
            False if subscription.catch_unmatched else _takes_everything(subscription)
            for subscription in subscriptions
        ]
        self._is_constant = not self._catchers and None not in self._plans
        """Whether no rule depends on the message."""
        self._filters = [_plain_filters(subscription) for subscription in subscriptions]
        self._contents = contents
        self._new_id = new_id
        self._weights = [
            [weight(rule.filter) for rule in subscription.rules] if everything is None else []
            for subscription, everything in zip(subscriptions, self._plans, strict=True)
        ]
        self.work = sum(map(sum, self._weights))
        """The maximum weight of evaluating all rules for one message, in simple filters."""

    @property
    def subscription_count(self) -> int:
        return len(self._subscriptions)

    def evaluate(self, message: Message, seen: Message, evaluated: Evaluated) -> Generator[int, None, None]:
        """Evaluate all rules for one message, which they see as `seen`. Yields the weight of each step."""
        yield 1 + len(self._subscriptions) // PASSED_PER_WEIGHT
        reading = self._read(seen)
        assert seen.payload is not None, "published messages have their payloads"
        answers: dict[int, Answer] = {}
        for index, subscription in enumerate(self._subscriptions):
            if (everything := self._plans[index]) is not None:
                evaluated.copies += everything
                continue
            filters, weights = self._filters[index], self._weights[index]
            if isinstance(reading, FilterError):
                yield 1
                answer: Answer = RuleResult(_unreadable(reading))
            else:
                rules = subscription.rules
                answer = yield from evaluate(rules, filters, weights, reading, seen.payload, self._contents)
            if answer is not False:
                answers[index] = answer
            evaluated.copies += len(answer.outcome.copies) if isinstance(answer, RuleResult) else answer
        evaluated.answers[id(message)] = answers

    def take(
        self,
        messages: Sequence[Message],
        latest: Instant,
        number: PartitionNumber = FIRST,
        evaluated: Evaluated | None = None,
    ) -> list[Enqueue | None]:
        """What each subscription has to enqueue in this partition, in their order; None for nothing.

        `latest`: the latest expiry time the topic allows, in case an action extends a time to live.
        `evaluated`: earlier results of these rules. For other messages, the rules are evaluated now.
        """
        takings = [Enqueue([]) for _ in self._subscriptions]
        if self._is_constant:
            # No message is asked for: the same subscriptions take all of them.
            each = zip(self._subscriptions, self._plans, takings, strict=True)
            give_all(messages, [(taker, taking) for taker, everything, taking in each if everything])
        else:
            self._take_each(messages, latest, number, takings, evaluated)
        return [taking if taking.messages else None for taking in takings]

    def _take_each(
        self,
        messages: Sequence[Message],
        latest: Instant,
        number: PartitionNumber,
        takings: Sequence[Enqueue],
        evaluated: Evaluated | None,
    ) -> None:
        for message in messages:
            if self._catchers and self._catch(message, latest, number, takings, evaluated):
                continue
            answers = None if evaluated is None else evaluated.answers.get(id(message))
            if answers is not None:
                self._take_evaluated(message, answers, latest, takings, number)
                continue
            origin = origin_of(message)
            reading: Reading | FilterError | None = None
            for subscription, everything, filters, taking in zip(
                self._subscriptions, self._plans, self._filters, takings, strict=True
            ):
                if everything is None:
                    if reading is None:
                        reading = self._read(message)
                    wanted = _is_wanted(filters, reading)
                    if wanted is None:
                        result = RuleResult(_outcome(subscription, reading))
                        self._give_result(subscription, message, origin, result, latest, taking, number)
                    elif wanted:
                        give(subscription, copy_for(message, origin), taking)
                elif everything:
                    give(subscription, copy_for(message, origin), taking)

    def _catch(
        self,
        message: Message,
        latest: Instant,
        number: PartitionNumber,
        takings: Sequence[Enqueue],
        evaluated: Evaluated | None,
    ) -> bool:
        """Give a message that no ordinary subscription takes to those that catch such messages."""
        answers = None if evaluated is None else evaluated.answers.get(id(message))
        reading: Reading | FilterError | None = None
        for index, everything in enumerate(self._plans):
            if everything is None and answers is not None:
                answer = answers.get(index, False)
                if isinstance(answer, RuleResult):
                    everything = _comes_to_something(self._subscriptions[index], answer.outcome)
                else:
                    everything = answer
            elif everything is None:
                reading = self._read(message) if reading is None else reading
                everything = _takes_some(self._subscriptions[index], self._filters[index], reading)
            if everything:
                return False
        origin = origin_of(message)
        for index in self._catchers:
            subscription = self._subscriptions[index]
            if _takes_everything(subscription):
                give(subscription, copy_for(message, origin), takings[index])
                continue
            reading = self._read(message) if reading is None else reading
            result = RuleResult(_outcome(subscription, reading))
            self._give_result(subscription, message, origin, result, latest, takings[index], number)
        return True

    def _read(self, message: Message) -> Reading | FilterError:
        try:
            return Reading(self._contents.view(message), self._new_id)
        except FilterError as unreadable:
            return unreadable

    def _take_evaluated(
        self,
        message: Message,
        answers: Mapping[int, Answer],
        latest: Instant,
        takings: Sequence[Enqueue],
        number: PartitionNumber,
    ) -> None:
        """The same for one message, using the results of the subscriptions that read it."""
        origin = origin_of(message)
        for index, everything in enumerate(self._plans):
            answer = answers.get(index, False) if everything is None else everything
            subscription, taking = self._subscriptions[index], takings[index]
            if isinstance(answer, RuleResult):
                self._give_result(subscription, message, origin, answer, latest, taking, number)
            elif answer:
                give(subscription, copy_for(message, origin), taking)

    def _give_result(
        self,
        subscription: SubscriptionDescription,
        message: Message,
        origin: Origin,
        result: RuleResult,
        latest: Instant,
        taking: Enqueue,
        number: PartitionNumber,
    ) -> None:
        failures, payloads = result.outcome.failures, iter(result.payloads)
        for copy in result.outcome.copies:
            if copy.rule_name is None:
                give(subscription, copy_for(message, origin), taking)
                continue
            try:
                changed = self._changed(message, copy.changes, latest, next(payloads, None))
                home = self._home(subscription, changed, copy.changes, message)
            except FilterError as error:
                description = f"Rule '{copy.rule_name}': {error.description}."
                failures = (*failures, Failure(copy.rule_name, RULE_ACTION_EXCEPTION, description))
                continue
            if home is None or home == number or subscription.forward_to is not None:
                # A subscription that forwards does not need the outbox step: its forwarder routes by the key.
                give(subscription, changed, taking)
            else:
                _divert(subscription, changed, home, taking)
        if failures and subscription.dead_letter_on_filter_errors:
            for failure in failures:
                bury(copy_for(message, origin), Cause(failure.reason, failure.description), taking)

    def _home(
        self, subscription: SubscriptionDescription, changed: Message, changes: Changes, message: Message
    ) -> PartitionNumber | None:
        """The partition of the key that an action has set; None if it set no key, or removed the key.

        `FilterError` for keys that a sender may not set either (P-14).
        """
        if not changes.system.keys() & _KEYS:
            return None
        partition_key = (
            changes.system[SystemProperty.PARTITION_KEY]
            if SystemProperty.PARTITION_KEY in changes.system
            else self._contents.view(message).system(SystemProperty.PARTITION_KEY)
        )
        try:
            key = routing_key(
                changed.session_id,
                None if partition_key is None else str(partition_key),
                None,
                duplicate_detection=False,
                exact=subscription.exact_keys,
            )
        except RequestError as refusal:
            raise FilterError(refusal.description.rstrip(".")) from None
        return None if key is None else partition_of(key, self._partition_count)

    def _changed(
        self, message: Message, changes: Changes, latest: Instant, made: bytes | FilterError | None
    ) -> Message:
        """The copy that an action makes. `made`: its payload, if that was written before."""
        assert message.payload is not None, "published messages have their payloads"
        if isinstance(made, FilterError):
            raise made
        payload = self._contents.changed(message.payload, changes) if made is None else made
        session_id, expires_at = message.session_id, message.expires_at
        if SystemProperty.SESSION_ID in changes.system:
            given = changes.system[SystemProperty.SESSION_ID]
            session_id = None if given is None else SessionId(str(given))
        if SystemProperty.TIME_TO_LIVE in changes.system:
            ttl = changes.system[SystemProperty.TIME_TO_LIVE]
            own = message.enqueued_at + ttl // _MILLISECOND if isinstance(ttl, timedelta) else NEVER
            expires_at = None if min(own, latest) >= NEVER else Instant(min(own, latest))
        return Message(
            payload,
            size=len(payload),
            expires_at=expires_at,
            session_id=session_id,
            origin=origin_of(message, keeps_body=False),
        )


def _takes_some(
    subscription: SubscriptionDescription,
    filters: tuple[Callable[[Reading], bool], ...],
    reading: Reading | FilterError,
) -> bool:
    """Whether a subscription takes copies of a message, or dead letters about it."""
    wanted = _is_wanted(filters, reading)
    if wanted is not None:
        return wanted
    return _comes_to_something(subscription, _outcome(subscription, reading))


def _comes_to_something(subscription: SubscriptionDescription, outcome: Outcome) -> bool:
    return bool(outcome.copies or (outcome.failures and subscription.dead_letter_on_filter_errors))


def _outcome(subscription: SubscriptionDescription, reading: Reading | FilterError) -> Outcome:
    return _unreadable(reading) if isinstance(reading, FilterError) else match(subscription.rules, reading)


def _unreadable(reason: FilterError) -> Outcome:
    """A message that cannot be decoded matches no rule."""
    return Outcome((), (Failure("", FILTER_EXCEPTION, f"{reason.description}."),))


def _takes_everything(subscription: SubscriptionDescription) -> bool | None:
    """True or False if the answer is the same for all messages; None if it depends on the message."""
    rules = subscription.rules
    if all(rule.filter.constant is False for rule in rules):
        return False
    if rules[0].filter.constant and all(rule.action is None for rule in rules):
        return True
    return None


def _plain_filters(subscription: SubscriptionDescription) -> tuple[Callable[[Reading], bool], ...]:
    """The filters of a subscription whose rules have no actions; empty if a rule does more."""
    rules = subscription.rules
    return () if any(rule.action for rule in rules) else tuple(rule.filter.matches for rule in rules)


def _is_wanted(filters: tuple[Callable[[Reading], bool], ...], reading: Reading | FilterError) -> bool | None:
    """Fast path for the common case. Returns None if the general path is needed."""
    if not filters or isinstance(reading, FilterError):
        return None
    try:
        for matches in filters:
            if matches(reading):
                return True
    except FilterError:
        return None
    return False


def _divert(
    subscription: SubscriptionDescription, copy: Message, partition: PartitionNumber, taking: Enqueue
) -> None:
    """Post a copy to another partition of the same subscription."""
    if subscription.requires_session and copy.session_id is None:
        bury(copy, SESSION_ID_MISSING, taking)
        return
    assert copy.origin is not None, "every copy comes from a topic"
    copy.subqueue = SubQueue.OUTBOX
    posting = Posting(subscription.path, copy.origin.sequence_number, partition=partition)
    copy.amendment = Amendment(posting=posting)
    taking.messages.append(copy)
    taking.shelved = True
