"""The descriptions of topics and their subscriptions, including rules.

A subscription is a queue that a topic fills. It has the properties of a queue, except
those that belong to its topic (size, duplicates, partitions), and it has rules.
As with queues, every description that exists is valid. What a rule matches: filters/.
How a message gets from a topic into its subscriptions: fanout.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from bendybus.domain.access import AuthorizationRule, check_rules
from bendybus.domain.client_scopes import ClientScope
from bendybus.domain.entities import (
    EntityStatus,
    QueueDescription,
    Tier,
    check_path,
    check_values,
    max_message_bytes,
    recorded_values,
)
from bendybus.domain.filters import (
    DEFAULT_RULE,
    CorrelationFilter,
    RuleDescription,
    SelectorFilter,
    SqlFilter,
    TrueFilter,
    rule_from_record,
    rule_to_record,
)
from bendybus.domain.properties import MAX_SIZE, SUBSCRIPTION, TOPIC, Properties
from bendybus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    RulesTooCostly,
)
from bendybus.names import EntityPath

__all__ = [
    "SUBSCRIPTIONS_MAX",
    "SubscriptionDescription",
    "TopicDescription",
    "check_client_scope",
    "check_filter_cost",
    "check_filter_quota",
    "check_topic_tier",
    "count_filters",
    "rebased",
    "split_subscription",
    "subscription_path",
]

SUBSCRIPTION_NAME_LENGTH_MAX: Final = 50

# "Number of subscriptions per topic: 2,000", and of filters over all of them.
SUBSCRIPTIONS_MAX: Final = 2_000
SQL_FILTERS_MAX: Final = 2_000
CORRELATION_FILTERS_MAX: Final = 100_000
# Enough for the maximum number of SQL filters, each with one LIKE that searches for a text (filters/cost.py).
FILTER_COST_MAX: Final = 4_000

_SUBSCRIPTION_NAME: Final = re.compile(r"[\w.-]+")
_SUBSCRIPTION: Final = re.compile(r"(?P<topic>.+)/subscriptions/(?P<name>[^/]+)", re.IGNORECASE)


def subscription_path(topic: str, name: str) -> EntityPath:
    """The path of a subscription, as clients spell it."""
    return EntityPath(f"{topic}/Subscriptions/{name}")


def split_subscription(path: str) -> tuple[str, str] | None:
    """Split a subscription's path, in any case, into the topic's path and the name; None for other paths."""
    found = _SUBSCRIPTION.fullmatch(path)
    return None if found is None else (found["topic"], found["name"])


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as its creator described it. Durations are in seconds; None means unlimited.

    `max_size_mb` is the size that was chosen, for all subscriptions together.
    """

    PROPERTIES: ClassVar[Properties] = TOPIC

    path: EntityPath
    max_size_mb: int = 1024
    max_message_size_kb: int | None = None
    requires_duplicate_detection: bool = False
    duplicate_detection_window_s: float = 600
    default_message_ttl_s: float | None = None
    auto_delete_on_idle_s: float | None = None
    enable_partitioning: bool | None = None
    enable_batched_operations: bool = True
    enable_express: bool = False
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    exact_keys: bool = False
    temporary: bool = False
    """As with queues."""
    as_sent: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Properties as a client wrote them, as with queues."""

    def __post_init__(self) -> None:
        # The class is frozen, so this is how the path is stored with normalised slashes.
        object.__setattr__(self, "path", check_path(self.path))
        check_rules(self.label, self.authorization_rules)
        check_values(self)
        if self.status is EntityStatus.RECEIVE_DISABLED:
            raise ArgumentError(f"{self.label}: Status is ReceiveDisabled; nobody receives from a topic.")
        if self.enable_express and self.requires_duplicate_detection:
            raise ArgumentError(
                f"{self.label}: EnableExpress and RequiresDuplicateDetection cannot be combined."
            )

    @property
    def may_have_sessions(self) -> bool:
        """Always true, because its subscriptions may require sessions."""
        return True

    @property
    def label(self) -> str:
        return f"Topic '{self.path}'"

    @property
    def max_message_bytes(self) -> int:
        return max_message_bytes(self)

    def to_record(self) -> dict[str, object]:
        """Plain values for a catalog."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> TopicDescription:
        """Read a record made by `to_record`, also by an earlier version with fewer properties."""
        return cls(**recorded_values(cls, record))


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(QueueDescription):
    """A subscription. Inherited properties that belong to its topic keep their defaults."""

    PROPERTIES: ClassVar[Properties] = SUBSCRIPTION

    # Always the wider limit: the topic checks the size, over all its subscriptions.
    max_size_mb: int = MAX_SIZE.allowed[-1]
    max_message_size_kb: int | None = None
    """The topic's, which the broker fills in."""
    enable_partitioning: bool | None = False
    dead_letter_on_filter_errors: bool = True
    catch_unmatched: bool = False
    rules: tuple[RuleDescription, ...] = (DEFAULT_RULE,)
    shared: bool | None = None
    """Whether a client-scoped subscription has several consumers. None: the first consumer decides."""

    @classmethod
    def of(cls, topic: str, name: str, **properties: object) -> SubscriptionDescription:
        """A subscription with this name to the topic with this path."""
        return cls(subscription_path(topic, name), **properties)  # type: ignore[arg-type]  # it checks every value

    @property
    def topic_path(self) -> EntityPath:
        return EntityPath(self.path.rpartition("/")[0].rpartition("/")[0])

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def scope(self) -> ClientScope | None:
        """None for a subscription that is not client-scoped."""
        return ClientScope.parse(self.name)

    @property
    def selector(self) -> str | None:
        """The selector of a client-scoped subscription, in whose place it has one rule; "" for none.

        None if an administrator has given it other rules.
        """
        if len(self.rules) != 1 or self.rules[0].action is not None:
            return None
        match self.rules[0].filter:
            case TrueFilter():
                return ""
            case SelectorFilter(expression):
                return expression
        return None

    @property
    def label(self) -> str:
        return f"Subscription '{self.path}'"

    def to_record(self) -> dict[str, object]:
        # Not asdict: it would copy the compiled filters, which a record cannot hold.
        values: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"rules": [rule_to_record(rule) for rule in self.rules]}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> SubscriptionDescription:
        rules = cast("Sequence[Mapping[str, object]]", record.get("rules", ()))
        return cls(
            **recorded_values(cls, record) | {"rules": tuple(rule_from_record(rule) for rule in rules)}
        )

    # -- rules --------------------------------------------------------------------

    def rule(self, name: str) -> RuleDescription:
        """The rule with this name, in any case. `EntityNotFound` if there is none."""
        for rule in self.rules:
            if rule.name.lower() == name.lower():
                return rule
        raise EntityNotFound(f"{self.path}/Rules/{name}")

    def with_rule(self, rule: RuleDescription) -> Self:
        """The subscription with one more rule. `EntityExists` if its name is taken."""
        if any(known.name.lower() == rule.name.lower() for known in self.rules):
            raise EntityExists(f"The messaging entity '{self.path}/Rules/{rule.name}' already exists.")
        return replace(self, rules=(*self.rules, rule))

    def with_changed_rule(self, rule: RuleDescription) -> Self:
        """The subscription with another filter and action for an existing rule name."""
        known = self.rule(rule.name)
        changed = replace(rule, name=known.name, created_at=known.created_at)
        return replace(self, rules=tuple(changed if each is known else each for each in self.rules))

    def without_rule(self, name: str) -> Self:
        known = self.rule(name)
        return replace(self, rules=tuple(each for each in self.rules if each is not known))

    # -- checks -------------------------------------------------------------------

    def _check_path(self) -> EntityPath:
        found = split_subscription(self.path)
        if found is None:
            raise ArgumentError(f"'{self.path}' is not the path of a subscription.")
        topic, name = found
        if ClientScope.parse(name) is not None:
            return subscription_path(check_path(topic), name)
        if len(name) > SUBSCRIPTION_NAME_LENGTH_MAX:
            raise ArgumentError(
                f"The subscription name '{name[:40]}...' has {len(name)} characters; "
                f"at most {SUBSCRIPTION_NAME_LENGTH_MAX}."
            )
        if not _SUBSCRIPTION_NAME.fullmatch(name):
            raise ArgumentError(
                f"The subscription name '{name}' is not allowed: letters, digits, '.', '-' and '_'."
            )
        return subscription_path(check_path(topic), name)

    def _check_combinations(self) -> None:
        # super() without arguments fails: with slots, the dataclass is another class than the one written.
        QueueDescription._check_combinations(self)
        if self.status is EntityStatus.SEND_DISABLED:
            raise ArgumentError(f"{self.label}: Status is SendDisabled; nobody sends to a subscription.")
        if self.requires_duplicate_detection:
            raise ArgumentError(f"{self.label}: duplicates are detected at the topic.")


D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)


def rebased(wanted: D, read: D, present: D) -> D:
    """`wanted`, which a client made from `read`, with what others have changed since: `present`."""
    since: dict[str, Any] = {
        each.name: getattr(present, each.name)
        for each in fields(wanted)
        if getattr(wanted, each.name) == getattr(read, each.name)
    }
    if "as_sent" not in since:
        own = {name: text for name, text in wanted.as_sent.items() if read.as_sent.get(name) != text}
        since["as_sent"] = {**present.as_sent, **own}
    return replace(wanted, **since)


def check_topic_tier(tier: Tier, topic: TopicDescription, present: TopicDescription | None = None) -> None:
    """Refuse what this tier does not offer; in Basic that is every new topic."""
    if tier is Tier.BASIC and present is None:
        raise InvalidOperation(f"{topic.label}: the {tier} tier does not offer topics.")
    tier.check(topic, present)


def check_client_scope(tier: Tier, subscription: SubscriptionDescription) -> None:
    """Refuse a client-scoped subscription outside of Premium, and one that would end with no consumer."""
    scope = subscription.scope
    if scope is None:
        return
    if tier is not Tier.PREMIUM:
        raise InvalidOperation(
            f"{subscription.label}: the {tier} tier does not offer client-scoped subscriptions."
        )
    if not scope.durable and not subscription.temporary:
        raise ArgumentError(
            f"{subscription.label} is not durable, so it is created by its first consumer and by nobody else."
        )


def count_filters(subscriptions: Iterable[SubscriptionDescription]) -> tuple[int, int]:
    """How many SQL filters and how many correlation filters a topic's subscriptions have together.

    In Service Bus, true and false filters are SQL filters, so the default rule counts.
    """
    filters = [rule.filter for subscription in subscriptions for rule in subscription.rules]
    return (
        sum(not isinstance(each, CorrelationFilter) for each in filters),
        sum(isinstance(each, CorrelationFilter) for each in filters),
    )


def check_filter_cost(
    topic: str, before: Iterable[SubscriptionDescription], after: Iterable[SubscriptionDescription]
) -> None:
    """Refuse filters that cost too much per message in total. A change that makes them cheaper is allowed."""
    cost = filter_cost(after)
    if cost > FILTER_COST_MAX and cost > filter_cost(before):
        raise RulesTooCostly(
            f"The filters of topic '{topic}' would cost {cost} over all its subscriptions; at most "
            f"{FILTER_COST_MAX} are allowed. A LIKE that searches the text costs 1, with '_' in what it "
            "searches for 16."
        )


def filter_cost(subscriptions: Iterable[SubscriptionDescription]) -> int:
    return sum(
        rule.filter.cost
        for subscription in subscriptions
        for rule in subscription.rules
        if isinstance(rule.filter, SqlFilter | SelectorFilter)
    )


def check_filter_quota(topic: str, subscriptions: Iterable[SubscriptionDescription]) -> None:
    """Refuse more rules than a topic may have over all its subscriptions."""
    limits = {"SQL": SQL_FILTERS_MAX, "correlation": CORRELATION_FILTERS_MAX}
    for (kind, limit), count in zip(limits.items(), count_filters(subscriptions), strict=True):
        if count > limit:
            raise QuotaExceeded(
                f"Topic '{topic}' would have {count} {kind} filters over all its subscriptions; "
                f"at most {limit} are allowed."
            )
