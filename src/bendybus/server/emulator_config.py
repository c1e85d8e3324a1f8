"""The official emulator's Config.json, read into descriptions and authorization rules.

Nothing in the file is passed over in silence: an unknown key, a wrong type and a
feature that this broker does not have yet are all refused, each with the file, the
place in it, the value and what is allowed. Ranges are checked by the description
itself (domain/entities.py). `AuthorizationRules` and `EnablePartitioning` are ours:
the emulator knows neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from bendybus.auth.rights import Right
from bendybus.auth.rules import ROOT_RULE_NAME
from bendybus.domain.access import RULES_MAX, AuthorizationRule
from bendybus.domain.durations import parse_duration
from bendybus.domain.entities import EntityStatus, QueueDescription, normalise_path
from bendybus.domain.filters import CorrelationFilter, RuleDescription, SqlRuleAction, sql_filter
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, subscription_path
from bendybus.errors import ArgumentError, ConfigError
from bendybus.names import EntityPath

__all__ = ["EmulatorConfig", "load_config"]

# Ten thousand queues with every property written out come to about 6 MB.
FILE_SIZE_MAX: Final = 32 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """What a Config.json asks for."""

    queues: tuple[QueueDescription, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    rules: Mapping[str, tuple[AuthorizationRule, ...]] = field(default_factory=dict)
    """By queue or topic; the namespace's own under the empty name."""


def load_config(file: Path) -> EmulatorConfig:
    """Read a Config.json; `ConfigError` says what is wrong with it and where."""
    try:
        if file.stat().st_size > FILE_SIZE_MAX:
            raise ConfigError(f"{file}: larger than {FILE_SIZE_MAX // 2**20} MB")
        # The vendor's own samples are saved with a byte order mark.
        content = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_no_key_twice)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not JSON: {error}") from error
    return _Reader(file).config(_Place(file, "$", content))


@dataclass(frozen=True, slots=True)
class _Place:
    """A value and where it stands, so that every complaint can say both."""

    file: Path
    path: str
    value: object

    def refuse(self, allowed: str) -> NoReturn:
        shown = json.dumps(self.value, ensure_ascii=False)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise ConfigError(f"{self.file}: {self.path} is {shown}; {allowed}")

    def members(self, *known: str) -> dict[str, _Place]:
        """The members of an object; null counts as absent, an unknown name is refused."""
        if not isinstance(self.value, dict):
            self.refuse("expected an object")
        for name in self.value:
            if name not in known:
                raise ConfigError(
                    f"{self.file}: {self.path} has the unknown key '{name}'; known are {', '.join(known)}"
                )
        return {
            name: _Place(self.file, f"{self.path}.{name}", value)
            for name, value in self.value.items()
            if value is not None
        }

    def items(self) -> Iterator[_Place]:
        if not isinstance(self.value, list):
            self.refuse("expected a list")
        for index, value in enumerate(self.value):
            yield _Place(self.file, f"{self.path}[{index}]", value)

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else self.refuse("expected a text")

    def name(self) -> str:
        return self.text().strip() or self.refuse("expected a name")

    def text_or_nothing(self) -> str | None:
        """The vendor's samples write an empty text where nothing is meant."""
        return self.text() or None

    def boolean(self) -> bool:
        return self.value if isinstance(self.value, bool) else self.refuse("expected true or false")

    def integer(self) -> int:
        # To Python true is the number 1; to whoever wrote the file it is not.
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.value
        return self.refuse("expected a whole number")

    def duration(self) -> float | None:
        try:
            return parse_duration(self.text())
        except ArgumentError:
            self.refuse("expected an ISO 8601 duration such as PT1M or P14D")

    def bounded_duration(self) -> float:
        seconds = self.duration()
        return seconds if seconds is not None else self.refuse("this duration cannot be unlimited")

    def status(self) -> EntityStatus:
        try:
            return EntityStatus(self.text())
        except ValueError:
            self.refuse(f"allowed are {', '.join(EntityStatus)}")

    def right(self) -> Right:
        return Right.named(self.text()) or self.refuse("allowed are Send, Listen, Manage")


# Property in the file -> field of the description, and how its value is read.
QUEUE_PROPERTIES: Final[Mapping[str, tuple[str, Callable[[_Place], object]]]] = {
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiry", _Place.boolean),
    "DefaultMessageTimeToLive": ("default_message_ttl_s", _Place.duration),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_s", _Place.bounded_duration),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", _Place.text_or_nothing),
    "ForwardTo": ("forward_to", _Place.text_or_nothing),
    "LockDuration": ("lock_duration_s", _Place.bounded_duration),
    "MaxDeliveryCount": ("max_delivery_count", _Place.integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _Place.boolean),
    "RequiresSession": ("requires_session", _Place.boolean),
    "EnablePartitioning": ("enable_partitioning", _Place.boolean),
    "MaxSizeInMegabytes": ("max_size_mb", _Place.integer),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", _Place.integer),
    "Status": ("status", _Place.status),
    "UserMetadata": ("user_metadata", _Place.text_or_nothing),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_s", _Place.duration),
}


TOPIC_PROPERTIES: Final = {
    name: QUEUE_PROPERTIES[name]
    for name in (
        "DefaultMessageTimeToLive",
        "DuplicateDetectionHistoryTimeWindow",
        "RequiresDuplicateDetection",
        "EnablePartitioning",
        "MaxSizeInMegabytes",
        "MaxMessageSizeInKilobytes",
        "Status",
        "UserMetadata",
        "AutoDeleteOnIdle",
    )
}

SUBSCRIPTION_PROPERTIES: Final = {
    name: QUEUE_PROPERTIES[name]
    for name in (
        "DeadLetteringOnMessageExpiration",
        "DefaultMessageTimeToLive",
        "ForwardDeadLetteredMessagesTo",
        "ForwardTo",
        "LockDuration",
        "MaxDeliveryCount",
        "RequiresSession",
        "Status",
        "UserMetadata",
        "AutoDeleteOnIdle",
    )
} | {"DeadLetteringOnFilterEvaluationExceptions": ("dead_letter_on_filter_errors", _Place.boolean)}

# Key of a correlation filter in the file -> its field.
CORRELATION_FIELDS: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}


class _Reader:
    """Walks one file from the top and collects what it finds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._queues: dict[str, QueueDescription] = {}
        self._topics: dict[str, TopicDescription] = {}
        self._subscriptions: dict[str, SubscriptionDescription] = {}
        self._rules: dict[str, tuple[AuthorizationRule, ...]] = {}

    def config(self, root: _Place) -> EmulatorConfig:
        user_config = root.members("UserConfig").get("UserConfig")
        if user_config is None:
            raise ConfigError(f"{self._file}: $ has no 'UserConfig'")
        # `Logging` says where the emulator writes its log; ours goes to stderr either way.
        members = user_config.members("Namespaces", "Logging")
        if "Namespaces" in members:
            namespaces = list(members["Namespaces"].items())
            if len(namespaces) > 1:
                namespaces[1].refuse("a server has one namespace")
            for namespace in namespaces:
                self._read_namespace(namespace)
        return EmulatorConfig(
            tuple(self._queues.values()),
            tuple(self._topics.values()),
            tuple(self._subscriptions.values()),
            self._rules,
        )

    def _read_namespace(self, namespace: _Place) -> None:
        members = namespace.members("Name", "Queues", "Topics", "AuthorizationRules")
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope="")
        if "Queues" in members:
            for queue in members["Queues"].items():
                self._read_queue(queue)

        if "Topics" in members:
            for topic in members["Topics"].items():
                self._read_topic(topic)

    def _read_queue(self, place: _Place) -> None:
        members = place.members("Name", "Properties", "AuthorizationRules")
        path = self._new_name(place, members, "queue")
        values = _values(members, QUEUE_PROPERTIES)
        queue = self._described(place, lambda: QueueDescription(EntityPath(path), **values))
        self._queues[normalise_path(queue.path)] = queue
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope=queue.path)

    # -- topics -------------------------------------------------------------------

    def _read_topic(self, place: _Place) -> None:
        members = place.members("Name", "Properties", "Subscriptions", "AuthorizationRules")
        path = self._new_name(place, members, "topic")
        values = _values(members, TOPIC_PROPERTIES)
        topic = self._described(place, lambda: TopicDescription(EntityPath(path), **values))
        self._topics[normalise_path(topic.path)] = topic
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope=topic.path)
        if "Subscriptions" in members:
            for subscription in members["Subscriptions"].items():
                self._read_subscription(topic.path, subscription)

    def _read_subscription(self, topic: str, place: _Place) -> None:
        members = place.members("Name", "Properties", "Rules")
        if "Name" not in members:
            place.refuse("a subscription needs a 'Name'")
        name = members["Name"].name()
        if normalise_path(subscription_path(topic, name)) in self._subscriptions:
            members["Name"].refuse("another subscription of this topic has that name (case does not count)")
        values = _values(members, SUBSCRIPTION_PROPERTIES)
        if "Rules" in members:
            rules = [self._read_rule(rule) for rule in members["Rules"].items()]
            if rules:
                values["rules"] = tuple(rules)
        made = self._described(place, lambda: SubscriptionDescription.of(topic, name, **values))
        self._subscriptions[normalise_path(made.path)] = made

    def _read_rule(self, place: _Place) -> RuleDescription:
        members = place.members("Name", "Properties")
        if "Name" not in members or "Properties" not in members:
            place.refuse("a rule needs a 'Name' and 'Properties'")
        properties = members["Properties"].members("FilterType", "SqlFilter", "CorrelationFilter", "Action")
        kind = properties["FilterType"].text() if "FilterType" in properties else ""
        if kind not in ("Sql", "Correlation") or f"{kind}Filter" not in properties:
            members["Properties"].refuse(
                "expected a 'FilterType', Sql or Correlation, and the 'SqlFilter' or 'CorrelationFilter'"
            )
        given = properties[f"{kind}Filter"]

        def made() -> RuleDescription:
            rule_filter = sql_filter(_expression(given)) if kind == "Sql" else _correlation_filter(given)
            action = SqlRuleAction(_expression(properties["Action"])) if "Action" in properties else None
            return RuleDescription(members["Name"].name(), rule_filter, action)

        return self._described(place, made)

    # -- all of them --------------------------------------------------------------

    def _new_name(self, place: _Place, members: Mapping[str, _Place], kind: str) -> str:
        if "Name" not in members:
            place.refuse(f"a {kind} needs a 'Name'")
        path = members["Name"].name()
        for known, what in ((self._queues, "queue"), (self._topics, "topic")):
            if normalise_path(path) in known:
                members["Name"].refuse(f"another {what} of this file has that name (case does not count)")
        return path

    def _described(self, place: _Place, describe: Callable[[], T]) -> T:
        try:
            return describe()
        except ArgumentError as error:
            raise ConfigError(f"{self._file}: {place.path}: {error}") from error

    def _read_rules(self, place: _Place, scope: str) -> None:
        rules: dict[str, AuthorizationRule] = {}
        for each in place.items():
            members = each.members("Name", "PrimaryKey", "SecondaryKey", "Rights")
            for needed in ("Name", "PrimaryKey", "Rights"):
                if needed not in members:
                    raise ConfigError(f"{self._file}: {each.path} lacks '{needed}'")
            name = members["Name"].name()
            if name in rules:
                members["Name"].refuse("another rule of this place has that name")
            if not scope and name == ROOT_RULE_NAME:
                members["Name"].refuse("the root rule always exists; BENDYBUS_SAS_KEY sets its key")
            if len(rules) >= RULES_MAX:
                raise ConfigError(f"{self._file}: {place.path} has more than {RULES_MAX} rules")
            rules[name] = self._rule(each, name, members)
        if rules:
            self._rules[scope] = tuple(rules.values())

    def _rule(self, place: _Place, name: str, members: Mapping[str, _Place]) -> AuthorizationRule:
        key = members["PrimaryKey"].text()
        if not key:
            # Not shown by refuse(): a key has no place in an error's text, not even a bad one.
            raise ConfigError(f"{self._file}: {members['PrimaryKey'].path} is empty; expected a key")
        second = members["SecondaryKey"].text() if "SecondaryKey" in members else ""
        rights = Right(0)
        for right in members["Rights"].items():
            rights |= right.right()
        if not rights:
            members["Rights"].refuse("expected at least one of Send, Listen, Manage")
        try:
            return AuthorizationRule(name, tuple(rights.label.split(", ")), key, second)
        except ArgumentError as error:
            raise ConfigError(f"{self._file}: {place.path}: {error}") from error


def _values(
    members: Mapping[str, _Place], known: Mapping[str, tuple[str, Callable[[_Place], object]]]
) -> dict[str, Any]:
    """The properties of an entity as fields of its description."""
    properties = members["Properties"].members(*known) if "Properties" in members else {}
    return {known[name][0]: known[name][1](value) for name, value in properties.items()}


def _expression(place: _Place) -> str:
    members = place.members("SqlExpression")
    return (
        members["SqlExpression"].text()
        if "SqlExpression" in members
        else place.refuse("expected a 'SqlExpression'")
    )


def _correlation_filter(place: _Place) -> CorrelationFilter:
    members = place.members(*CORRELATION_FIELDS, "Properties")
    fields = {
        field: members[name].text_or_nothing()
        for name, field in CORRELATION_FIELDS.items()
        if name in members
    }
    given = members["Properties"].value if "Properties" in members else {}
    if not isinstance(given, dict):
        members["Properties"].refuse("expected an object")
    return CorrelationFilter(**fields, properties=given)


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Plain JSON reading would quietly keep the last of two equal keys."""
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"the key '{twice}' stands twice in one object")
    return members
