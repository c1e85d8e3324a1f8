"""Entities as the emulator's Config.json: written from a namespace, and created in one.

It works with Azure's namespaces too. Reading a file as the server does at its start, with every check:
server/emulator_config.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from bendybus.atom import CORRELATION_ELEMENTS
from bendybus.domain.properties import (
    DEAD_LETTER_ON_FILTER_ERROR,
    ENABLE_PARTITIONING,
    FORWARD_DEAD_LETTERED_TO,
    FORWARD_TO,
    MAX_MESSAGE_SIZE,
    MAX_SIZE,
    STATUS,
    USER_METADATA,
    Property,
    ValueType,
)
from bendybus.errors import ArgumentError, BrokerError, EntityExists, EntityNotFound, Unauthorized
from bendybus.management.client import NAMESPACE, QUEUES, TOPICS, ManagementClient
from bendybus.management.entries import Entry
from bendybus.management.filter_rules import (
    RULE_DESCRIPTION,
    correlation_elements,
    rule_elements,
    shown_rule,
    sql_elements,
)
from bendybus.management.properties import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntityKind,
    new_elements,
    shown_name,
    subscription_path,
)

__all__ = ["INCOMPLETE", "Outcome", "Step", "as_document", "exported_namespace", "imported", "read_config"]

DEFAULT_RULE: Final = "$Default"
EVERYTHING: Final = "1=1"
# The user metadata of an entity while it is imported in several steps.
INCOMPLETE: Final = "The import of this entity is not complete. If it was interrupted, repeat it."
# A partitioned entity shows the size of all its partitions, except in Premium.
PARTITIONS_IN_STANDARD: Final = 16

_FORWARDS: Final = (FORWARD_TO, FORWARD_DEAD_LETTERED_TO)
_CORRELATION: Final = {name: field for field, name in CORRELATION_ELEMENTS.items()}


# -- to a file ----------------------------------------------------------------------


def as_document(namespace: Mapping[str, object]) -> str:
    """The text of a Config.json with this namespace."""
    config = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def exported_namespace(management: ManagementClient, name: str) -> dict[str, Any]:
    """All entities with their properties and rules, and no keys."""
    premium = _is_premium(management)
    queues = [
        {"Name": entry.name, "Properties": _properties(QUEUE, entry, premium)}
        for entry in management.list(QUEUES)
    ]
    topics = [_topic(management, entry, premium) for entry in management.list(TOPICS)]
    return {"Name": name, "Queues": queues, "Topics": topics}


def _is_premium(management: ManagementClient) -> bool:
    try:
        return management.get(NAMESPACE).text("MessagingSKU") == "Premium"
    except Unauthorized:
        return False


def _topic(management: ManagementClient, entry: Entry, premium: bool) -> dict[str, object]:
    subscriptions = []
    for each in management.list(f"{entry.name}/Subscriptions"):
        rules = [
            _rule(shown_rule(rule))
            for rule in management.list(f"{subscription_path(entry.name, each.name)}/Rules")
        ]
        shown = {"Name": each.name, "Properties": _properties(SUBSCRIPTION, each, premium)}
        # A subscription without rules in the file accepts everything.
        subscriptions.append(shown if rules == [_ACCEPTS_ALL] else {**shown, "Rules": rules})
    return {
        "Name": entry.name,
        "Properties": _properties(TOPIC, entry, premium),
        "Subscriptions": subscriptions,
    }


def _properties(kind: EntityKind, entry: Entry, premium: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for row in kind.properties:
        text = (entry.text(row.name) or "").strip()
        if row.in_config and text:
            found[row.name] = _value(row, text)
    if not premium:
        found.pop(MAX_MESSAGE_SIZE.name, None)
        size = found.get(MAX_SIZE.name)
        if found.get(ENABLE_PARTITIONING.name) and isinstance(size, int):
            found[MAX_SIZE.name] = size // PARTITIONS_IN_STANDARD
    # The emulator does not know it, and most entities are active.
    if found.get(STATUS.name) == STATUS.default:
        del found[STATUS.name]
    return found


def _value(row: Property, text: str) -> object:
    match row.type:
        case ValueType.BOOLEAN:
            return text.lower() == "true"
        case ValueType.INTEGER:
            return int(text)
        case ValueType.ENTITY:
            # Azure shows the destination of a forward as a URL.
            return urlsplit(text).path.strip("/") if "://" in text else text
    return text


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any]
    if rule.get("filterType") == "CorrelationFilter":
        given = {name: rule[shown_name(name)] for name in _CORRELATION if shown_name(name) in rule}
        own = {"Properties": rule["properties"]} if rule.get("properties") else {}
        described = {"FilterType": "Correlation", "CorrelationFilter": {**given, **own}}
    else:
        given = _parameters(rule.get("parameters"))
        described = {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": rule.get("sqlExpression") or EVERYTHING, **given},
        }
    if rule.get("action"):
        given = _parameters(rule.get("actionParameters"))
        described["Action"] = {"SqlExpression": rule["action"], **given}
    return {"Name": rule["name"], "Properties": described}


def _parameters(given: object) -> dict[str, object]:
    """The emulator does not have them, and a file with them is refused; `import --from` takes them over."""
    return {"Parameters": given} if given else {}


_ACCEPTS_ALL: Final = _rule({"name": DEFAULT_RULE, "sqlExpression": EVERYTHING})


# -- from a file --------------------------------------------------------------------


def read_config(text: str) -> Sequence[Mapping[str, Any]]:
    """The namespaces of a file; `ArgumentError` if it is not such a file. What is in them is not checked."""
    try:
        namespaces = json.loads(text)["UserConfig"]["Namespaces"]
        if not namespaces or not all(isinstance(each, dict) for each in namespaces):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArgumentError("The file is not a Config.json: UserConfig.Namespaces is missing.") from None
    return list(namespaces)


class Outcome(StrEnum):
    CREATED = "created"
    EXISTS = "exists"
    """It existed, and was not changed."""
    COMPLETED = "completed"
    """An import that was interrupted had begun to create it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One entity or rule of the file, and what was done with it."""

    path: str
    kind: str
    """`queue`, `topic`, `subscription` or `rule`."""
    outcome: Outcome


def imported(
    management: ManagementClient, namespace: Mapping[str, Any], *, dry_run: bool = False
) -> Iterator[Step]:
    """Create the entities that do not exist; existing ones are not changed.

    Most are complete when they are created. A subscription gets its further rules after that, and entities
    that forward in a circle get their forwards when everything exists. Until then they are marked
    (`INCOMPLETE`), so that a repetition after an interruption completes them and no others.
    """
    circles: list[tuple[str, EntityKind, Mapping[str, object]]] = []
    for path, kind, described, in_circle in _destinations_first(_wanted(namespace)):
        whole = _given(described)
        first = {name: value for name, value in whole.items() if not (in_circle and name in _FORWARD_NAMES)}
        lacks_forwards = len(first) < len(whole)
        rules = (described.get("Rules") or ()) if kind is SUBSCRIPTION else ()
        if in_steps := lacks_forwards or len(rules) > 1:
            first[USER_METADATA.name] = INCOMPLETE
        made = _Made(management, path, dry_run=dry_run)
        step = made.create(kind.label, kind.element, _elements(kind, first, rules))
        if in_steps and step.outcome is Outcome.EXISTS and made.is_incomplete():
            step = replace(step, outcome=Outcome.COMPLETED)
        yield step
        if not in_steps or step.outcome is Outcome.EXISTS:
            continue
        # The first one was created with the subscription.
        for rule in made.missing(rules[1:], step.outcome):
            yield made.with_rule(rule, step.outcome)
        if lacks_forwards:
            circles.append((path, kind, whole))
        elif not dry_run:
            management.update(path, kind.element, new_elements(kind, whole))
    if not dry_run:
        for path, kind, given in circles:
            management.update(path, kind.element, new_elements(kind, given))


_FORWARD_NAMES: Final = frozenset(row.name for row in _FORWARDS)


class _Made:
    def __init__(self, management: ManagementClient, path: str, *, dry_run: bool) -> None:
        self._management = management
        self._path = path
        self._dry_run = dry_run

    def create(self, kind: str, element: str, children: Sequence[str]) -> Step:
        outcome = Outcome.CREATED
        try:
            if self._dry_run:
                outcome = self._seen()
            else:
                self._management.create(self._path, element, children)
        except EntityExists:
            outcome = Outcome.EXISTS
        return Step(self._path, kind, outcome)

    def is_incomplete(self) -> bool:
        """Whether an import that was interrupted has begun to create it."""
        return self._management.get(self._path).text(USER_METADATA.name) == INCOMPLETE

    def missing(self, rules: Sequence[Mapping[str, Any]], outcome: Outcome) -> Sequence[Mapping[str, Any]]:
        """Those of these rules that the subscription does not have."""
        if outcome is Outcome.CREATED or not rules:
            return rules
        present = {entry.name.lower() for entry in self._management.list(f"{self._path}/Rules")}
        return [rule for rule in rules if rule["Name"].lower() not in present]

    def with_rule(self, rule: Mapping[str, Any], outcome: Outcome) -> Step:
        """One more rule. Without it the subscription would take the wrong messages, so it is deleted if this
        import has just created it. An older one may have messages.
        """
        made = _Made(self._management, f"{self._path}/Rules/{rule['Name']}", dry_run=self._dry_run)
        try:
            return made.create("rule", RULE_DESCRIPTION, _rule_elements(rule))
        except BrokerError:
            if not self._dry_run and outcome is Outcome.CREATED:
                with suppress(BrokerError):
                    self._management.delete(self._path)
            raise

    def _seen(self) -> Outcome:
        try:
            self._management.get(self._path)
        except EntityNotFound:
            return Outcome.CREATED
        return Outcome.EXISTS


def _wanted(namespace: Mapping[str, Any]) -> Iterator[tuple[str, EntityKind, Mapping[str, Any]]]:
    for queue in namespace.get("Queues") or ():
        yield queue["Name"], QUEUE, queue
    for topic in namespace.get("Topics") or ():
        yield topic["Name"], TOPIC, topic
        for each in topic.get("Subscriptions") or ():
            yield subscription_path(topic["Name"], each["Name"]), SUBSCRIPTION, each


def _destinations_first(
    wanted: Iterable[tuple[str, EntityKind, Mapping[str, Any]]],
) -> Iterator[tuple[str, EntityKind, Mapping[str, Any], bool]]:
    """Each entity after its topic and after its destinations. True for one that forwards in a circle."""
    waiting = {path.lower(): (path, kind, described) for path, kind, described in wanted}
    while waiting:
        ready = [name for name, (_, _, each) in waiting.items() if not _needed(name, each) & waiting.keys()]
        for name in ready or [*waiting][:1]:
            yield *waiting.pop(name), not ready


def _needed(name: str, described: Mapping[str, Any]) -> set[str]:
    topic = name.partition("/subscriptions/")[0]
    properties = described.get("Properties") or {}
    targets = (str(properties.get(each) or "") for each in _FORWARD_NAMES)
    paths = {urlsplit(each).path if "://" in each else each for each in targets}
    return {path.strip("/").lower() for path in paths if path} | {topic} - {name}


def _given(described: Mapping[str, Any]) -> dict[str, object]:
    properties = described.get("Properties") or {}
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in properties.items()
        if value not in (None, "")
    }


def _elements(kind: EntityKind, given: Mapping[str, object], rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """In the order that Azure requires; the first rule is a part of the subscription."""
    if not rules:
        return list(new_elements(kind, given))
    place = kind.properties.index(DEAD_LETTER_ON_FILTER_ERROR) + 1
    before, after = kind.properties[:place], kind.properties[place:]
    first = f"<DefaultRuleDescription>{''.join(_rule_elements(rules[0]))}</DefaultRuleDescription>"
    return [
        *new_elements(EntityKind(kind.label, kind.element, before), given),
        first,
        *new_elements(EntityKind(kind.label, kind.element, after), given),
    ]


def _rule_elements(rule: Mapping[str, Any]) -> list[str]:
    properties = rule.get("Properties") or {}
    correlation = properties.get("CorrelationFilter") or {}
    if properties.get("FilterType") == "Correlation" or correlation:
        fields = {
            _CORRELATION[name]: str(value)
            for name, value in correlation.items()
            if name in _CORRELATION and value not in (None, "")
        }
        made = correlation_elements(fields, correlation.get("Properties") or {})
    else:
        sql = properties.get("SqlFilter") or {}
        made = sql_elements("SqlFilter", sql.get("SqlExpression", EVERYTHING), sql.get("Parameters"))
    action = properties.get("Action") or {}
    return list(rule_elements(rule["Name"], made, action.get("SqlExpression"), action.get("Parameters")))
