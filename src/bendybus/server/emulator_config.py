"""The official emulator's Config.json, read into descriptions and authorization rules.

Nothing in the file is ignored silently: an unknown key, a wrong type and a missing feature
are refused, with the file, the position, the value and what is allowed (json_nodes.py). Which
properties there are: domain/properties.py. The description checks the ranges
(domain/entities.py), so the emulator's own limits do not apply. `AuthorizationRules`,
`EnablePartitioning`, `Tier`, `PremiumMessagingPartitions` and a second namespace are ours: the
emulator does not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from bendybus.atom import CORRELATION_ELEMENTS
from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.auth.rights import Right
from bendybus.auth.roles import Role
from bendybus.domain.access import RULES_MAX, AuthorizationRule
from bendybus.domain.entities import PREMIUM_PARTITIONS, QueueDescription, Tier, normalise_path
from bendybus.domain.filters import CorrelationFilter, RuleDescription, SqlFilter, SqlRuleAction
from bendybus.domain.properties import QUEUE, SUBSCRIPTION, TOPIC, Properties, ValueType
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, subscription_path
from bendybus.errors import ArgumentError, ConfigError
from bendybus.names import EntityPath
from bendybus.namespaces import NAMESPACE_DEFAULT, check_namespace_name
from bendybus.server.json_nodes import JsonNode, parse_json, read_json

__all__ = ["NamespaceConfig", "load_config", "parse_config"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """What a Config.json asks for in one namespace."""

    name: str = NAMESPACE_DEFAULT
    queues: tuple[QueueDescription, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    rules: Mapping[str, tuple[AuthorizationRule, ...]] = field(default_factory=dict)
    """By queue or topic; the namespace's own under the empty name."""
    with_status: frozenset[str] = frozenset()
    """The entities whose status the file sets, by normalised path."""
    tier: Tier | None = None
    premium_partitions: int | None = None
    disable_local_auth: bool | None = None
    roles: tuple[Role, ...] = ()
    """What principals of the identity provider may do in this namespace."""


def load_config(file: Path) -> tuple[NamespaceConfig, ...]:
    """The namespaces of a Config.json; `ConfigError` says what is wrong with it and where."""
    return _namespaces(file, read_json(file))


def parse_config(file: Path, text: str) -> tuple[NamespaceConfig, ...]:
    """The same, of a file that was read already."""
    return _namespaces(file, parse_json(file, text))


def _namespaces(file: Path, root: JsonNode) -> tuple[NamespaceConfig, ...]:
    # Editors use `$schema` to check the file.
    user_config = root.members("UserConfig", "$schema").get("UserConfig")
    if user_config is None:
        raise ConfigError(f"{file}: $ has no 'UserConfig'")
    # `Logging` says where the emulator writes its log; ours goes to stderr either way.
    nodes = user_config.members("Namespaces", "Logging").get("Namespaces")
    namespaces = [(node, _Reader(file).namespace(node)) for node in (nodes.items() if nodes else ())]
    if len(namespaces) > 1:
        _refuse_unclear_names(namespaces)
    return tuple(namespace for _, namespace in namespaces)


def _refuse_unclear_names(namespaces: list[tuple[JsonNode, NamespaceConfig]]) -> None:
    """A single namespace may have any name. Several need names that differ."""
    seen: set[str] = set()
    for node, namespace in namespaces:
        name = node.members(*NAMESPACE_MEMBERS).get("Name") or node.refuse("one of several needs a 'Name'")
        try:
            check_namespace_name(namespace.name)
        except ArgumentError as error:
            name.refuse(str(error))
        if namespace.name.lower() in seen:
            name.refuse("another namespace of this file has that name (case does not count)")
        seen.add(namespace.name.lower())


NAMESPACE_MEMBERS: Final = (
    "Name",
    "Tier",
    "PremiumMessagingPartitions",
    "DisableLocalAuth",
    "RoleAssignments",
    "Queues",
    "Topics",
    "AuthorizationRules",
)

_READERS: Final[Mapping[ValueType, Callable[[JsonNode], object]]] = {
    ValueType.BOOLEAN: JsonNode.boolean,
    ValueType.INTEGER: JsonNode.integer,
    ValueType.DURATION: JsonNode.bounded_duration,
    ValueType.DURATION_OR_UNLIMITED: JsonNode.duration,
    ValueType.TEXT: JsonNode.text_or_nothing,
    ValueType.ENTITY: JsonNode.text_or_nothing,
    ValueType.STATUS: JsonNode.status,
}


class _Reader:
    """Walks through one namespace and collects what it finds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._queues: dict[str, QueueDescription] = {}
        self._topics: dict[str, TopicDescription] = {}
        self._subscriptions: dict[str, SubscriptionDescription] = {}
        self._rules: dict[str, tuple[AuthorizationRule, ...]] = {}
        self._with_status: set[str] = set()

    def namespace(self, node: JsonNode) -> NamespaceConfig:
        members = node.members(*NAMESPACE_MEMBERS)
        name = members["Name"].name() if "Name" in members else NAMESPACE_DEFAULT
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope="")
        if "Queues" in members:
            for queue in members["Queues"].items():
                self._read_queue(queue)
        if "Topics" in members:
            for topic in members["Topics"].items():
                self._read_topic(topic)
        return NamespaceConfig(
            name,
            tuple(self._queues.values()),
            tuple(self._topics.values()),
            tuple(self._subscriptions.values()),
            self._rules,
            frozenset(self._with_status),
            _tier(members["Tier"]) if "Tier" in members else None,
            _premium_partitions(members),
            members["DisableLocalAuth"].boolean() if "DisableLocalAuth" in members else None,
            tuple(map(self._read_role, members["RoleAssignments"].items()))
            if "RoleAssignments" in members
            else (),
        )

    def _read_role(self, node: JsonNode) -> Role:
        members = node.members("Principal", "Role", "Scope")
        if "Principal" not in members or "Role" not in members:
            node.refuse("a role assignment needs a 'Principal' and a 'Role'")
        scope = members["Scope"].text() if "Scope" in members else ""
        return self._described(
            node, lambda: Role.of(members["Principal"].text(), members["Role"].text(), scope)
        )

    def _read_queue(self, node: JsonNode) -> None:
        members = node.members("Name", "Properties", "AuthorizationRules")
        path = self._new_name(node, members, "queue")
        values = _values(members, QUEUE)
        queue = self._described(node, lambda: QueueDescription(EntityPath(path), **values))
        self._queues[normalise_path(queue.path)] = queue
        self._note_status(queue.path, values)
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope=queue.path)

    # -- topics -------------------------------------------------------------------

    def _read_topic(self, node: JsonNode) -> None:
        members = node.members("Name", "Properties", "Subscriptions", "AuthorizationRules")
        path = self._new_name(node, members, "topic")
        values = _values(members, TOPIC)
        topic = self._described(node, lambda: TopicDescription(EntityPath(path), **values))
        self._topics[normalise_path(topic.path)] = topic
        self._note_status(topic.path, values)
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope=topic.path)
        if "Subscriptions" in members:
            for subscription in members["Subscriptions"].items():
                self._read_subscription(topic.path, subscription)

    def _read_subscription(self, topic: str, node: JsonNode) -> None:
        members = node.members("Name", "Properties", "Rules")
        if "Name" not in members:
            node.refuse("a subscription needs a 'Name'")
        name = members["Name"].name()
        if normalise_path(subscription_path(topic, name)) in self._subscriptions:
            members["Name"].refuse("another subscription of this topic has that name (case does not count)")
        values = _values(members, SUBSCRIPTION)
        if "Rules" in members:
            rules = [self._read_rule(rule) for rule in members["Rules"].items()]
            if rules:
                values["rules"] = tuple(rules)
        made = self._described(node, lambda: SubscriptionDescription.of(topic, name, **values))
        self._subscriptions[normalise_path(made.path)] = made
        self._note_status(made.path, values)

    def _read_rule(self, node: JsonNode) -> RuleDescription:
        members = node.members("Name", "Properties")
        if "Name" not in members or "Properties" not in members:
            node.refuse("a rule needs a 'Name' and 'Properties'")
        properties = members["Properties"].members("FilterType", "SqlFilter", "CorrelationFilter", "Action")
        kind = properties["FilterType"].text() if "FilterType" in properties else ""
        if kind not in ("Sql", "Correlation") or f"{kind}Filter" not in properties:
            members["Properties"].refuse(
                "expected a 'FilterType', Sql or Correlation, and the 'SqlFilter' or 'CorrelationFilter'"
            )
        given = properties[f"{kind}Filter"]

        def made() -> RuleDescription:
            rule_filter = SqlFilter(_expression(given)) if kind == "Sql" else _correlation_filter(given)
            action = SqlRuleAction(_expression(properties["Action"])) if "Action" in properties else None
            return RuleDescription(members["Name"].name(), rule_filter, action)

        return self._described(node, made)

    # -- all of them --------------------------------------------------------------

    def _new_name(self, node: JsonNode, members: Mapping[str, JsonNode], kind: str) -> str:
        if "Name" not in members:
            node.refuse(f"a {kind} needs a 'Name'")
        path = members["Name"].name()
        for known, what in ((self._queues, "queue"), (self._topics, "topic")):
            if normalise_path(path) in known:
                members["Name"].refuse(f"another {what} of this file has that name (case does not count)")
        return path

    def _note_status(self, path: str, values: Mapping[str, Any]) -> None:
        if "status" in values:
            self._with_status.add(normalise_path(path))

    def _described(self, node: JsonNode, describe: Callable[[], T]) -> T:
        try:
            return describe()
        except ArgumentError as error:
            raise ConfigError(f"{self._file}: {node.path}: {error}") from error

    def _read_rules(self, node: JsonNode, scope: str) -> None:
        rules: dict[str, AuthorizationRule] = {}
        for each in node.items():
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
                raise ConfigError(f"{self._file}: {node.path} has more than {RULES_MAX} rules")
            rules[name] = self._rule(each, name, members)
        if rules:
            self._rules[scope] = tuple(rules.values())

    def _rule(self, node: JsonNode, name: str, members: Mapping[str, JsonNode]) -> AuthorizationRule:
        key = members["PrimaryKey"].text()
        if not key:
            # Not shown by refuse(): an error text must not contain a key, not even a bad one.
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
            raise ConfigError(f"{self._file}: {node.path}: {error}") from error


def _tier(node: JsonNode) -> Tier:
    tier = node.text().lower()
    return Tier(tier) if tier in list(Tier) else node.refuse("expected Basic, Standard or Premium")


def _premium_partitions(members: Mapping[str, JsonNode]) -> int | None:
    if (node := members.get("PremiumMessagingPartitions")) is None:
        return None
    count = node.integer()
    return count if count in PREMIUM_PARTITIONS else node.refuse("expected 1, 2 or 4")


def _values(members: Mapping[str, JsonNode], properties: Properties) -> dict[str, Any]:
    """The properties of an entity as fields of its description."""
    known = {row.name: row for row in properties if row.in_config}
    given = members["Properties"].members(*known) if "Properties" in members else {}
    return {known[name].field: _READERS[known[name].type](value) for name, value in given.items()}


def _expression(node: JsonNode) -> str:
    members = node.members("SqlExpression")
    return (
        members["SqlExpression"].text()
        if "SqlExpression" in members
        else node.refuse("expected a 'SqlExpression'")
    )


def _correlation_filter(node: JsonNode) -> CorrelationFilter:
    members = node.members(*CORRELATION_ELEMENTS.values(), "Properties")
    fields = {
        field: members[name].text_or_nothing()
        for field, name in CORRELATION_ELEMENTS.items()
        if name in members
    }
    given = members["Properties"].value if "Properties" in members else {}
    if not isinstance(given, dict):
        members["Properties"].refuse("expected an object")
    return CorrelationFilter(**fields, properties=given, spelled={})
