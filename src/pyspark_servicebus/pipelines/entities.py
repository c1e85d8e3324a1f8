"""The management that repartition needs: describe entities, create similar ones, disable and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from xml.etree import ElementTree

from bendybus.atom import SERVICE_BUS
from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import EntityExists, EntityNotFound
from bendybus.management.client import ManagementClient
from bendybus.management.entries import Entry, bare_name
from bendybus.management.filter_rules import RULE_DESCRIPTION
from bendybus.management.properties import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntityKind,
    changed_elements,
    new_elements,
    subscription_path,
)

__all__ = ["Entities", "is_topic"]

_AUTHORIZATION_RULES: Final = f"{{{SERVICE_BUS}}}AuthorizationRules"
_KINDS: Final[Mapping[str, EntityKind]] = {kind.element: kind for kind in (QUEUE, TOPIC, SUBSCRIPTION)}

# What a rule is, without the time of its creation.
_RULE_PARTS: Final = ("Filter", "Action", "Name")


def is_topic(entry: Entry) -> bool:
    return entry.kind == TOPIC.element


class Entities:
    """The entities of a namespace. Needs the right Manage.

    Minutes may pass between two calls, and no connection survives that, so each call opens its own.
    """

    def __init__(self, connection_string: str, certificate: str | None = None) -> None:
        self._namespace = ConnectionString.parse(connection_string)
        self._certificate = certificate

    def find(self, path: str) -> Entry | None:
        with self._management() as management:
            try:
                return management.get(path)
            except EntityNotFound:
                return None

    def get(self, path: str) -> Entry:
        entry = self.find(path)
        if entry is None:
            raise EntityNotFound(path)
        return entry

    def subscriptions(self, topic: str) -> list[Entry]:
        with self._management() as management:
            return list(management.list(f"{topic}/Subscriptions"))

    def create_like(self, pattern: Entry, partition_count: int, path: str, **changed: object) -> None:
        """Create an entity like another, including its authorization rules, except for the named changes."""
        kind = _KINDS[pattern.kind]
        # Shown for all partitions together, but set for one.
        size = int(pattern.text("MaxSizeInMegabytes") or 0) // partition_count
        children = list(changed_elements(kind, pattern, {"MaxSizeInMegabytes": size or None, **changed}))
        rules = pattern.description.find(_AUTHORIZATION_RULES)
        if rules is not None and len(rules):
            children.insert(_rules_place(children), ElementTree.tostring(rules, encoding="unicode"))
        with self._management() as management:
            management.create(path, kind.element, children)

    def create_forwarding(self, topic: str, name: str, target: str) -> None:
        """A subscription that forwards all messages of a topic."""
        children = new_elements(SUBSCRIPTION, {"ForwardTo": target})
        with self._management() as management, suppress(EntityExists):
            management.create(subscription_path(topic, name), SUBSCRIPTION.element, children)

    def copy_rules(self, source: str, target: str) -> None:
        """Give a subscription the rules of another one, and no others."""
        with self._management() as management:
            wanted = {rule.name: _rule_of(rule) for rule in management.list(f"{source}/Rules")}
            there = {rule.name: _rule_of(rule) for rule in management.list(f"{target}/Rules")}
            for name, rule in wanted.items():
                if there.get(name) != rule:
                    put = management.create if name not in there else management.update
                    put(f"{target}/Rules/{name}", RULE_DESCRIPTION, rule)
            for name in there.keys() - wanted.keys():
                management.delete(f"{target}/Rules/{name}")

    def update(self, path: str, **changed: object) -> None:
        """Change these properties. "" removes one."""
        entry = self.get(path)
        if any((entry.text(name) or "") != value for name, value in changed.items()):
            kind = _KINDS[entry.kind]
            with self._management() as management:
                management.update(path, kind.element, changed_elements(kind, entry, changed))

    def delete(self, path: str) -> None:
        """Delete an entity. It is not an error if it does not exist."""
        with self._management() as management, suppress(EntityNotFound):
            management.delete(path)

    def _management(self) -> ManagementClient:
        return ManagementClient(self._namespace, self._certificate)


def _rule_of(entry: Entry) -> list[str]:
    return [
        ElementTree.tostring(part, encoding="unicode").strip()
        for part in entry.description
        if bare_name(part) in _RULE_PARTS
    ]


def _rules_place(children: list[str]) -> int:
    """The index before `Status`. The service is said to depend on the order."""
    for place, child in enumerate(children):
        if child.startswith("<Status"):
            return place
    return len(children)
