"""The official emulator's Config.json, read into descriptions and authorization rules.

Nothing in the file is passed over in silence: an unknown key, a wrong type and a
feature that this broker does not have yet are all refused, each with the file, the
place in it, the value and what is allowed (places.py). Ranges are checked by the
description itself (domain/entities.py), so the emulator's own caps are not here.
`AuthorizationRules`, `EnablePartitioning` and a second namespace are ours: the
emulator knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bendybus.auth.rights import Right
from bendybus.auth.rules import ROOT_RULE_NAME
from bendybus.domain.access import RULES_MAX, AuthorizationRule
from bendybus.domain.entities import QueueDescription, normalise_path
from bendybus.errors import ArgumentError, ConfigError
from bendybus.names import EntityPath
from bendybus.namespaces import NAMESPACE_DEFAULT, check_namespace_name
from bendybus.server.places import Place, read_json

__all__ = ["NamespaceConfig", "load_config", "unsupported_features"]


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """What a Config.json asks for in one namespace."""

    name: str = NAMESPACE_DEFAULT
    queues: tuple[QueueDescription, ...] = ()
    rules: Mapping[str, tuple[AuthorizationRule, ...]] = field(default_factory=dict)
    """By queue; the namespace's own under the empty name."""


def unsupported_features(queue: QueueDescription) -> list[str]:
    """What this queue asks for and the broker cannot do yet, by the name it has in the file.

    A feature that becomes available loses its line here and nothing else.
    """
    asked = {
        "RequiresSession": queue.requires_session,
    }
    return [name for name, wanted in asked.items() if wanted]


def load_config(file: Path) -> tuple[NamespaceConfig, ...]:
    """The namespaces of a Config.json; `ConfigError` says what is wrong with it and where."""
    # `$schema` is what editors go by when they help to write the file.
    user_config = read_json(file).members("UserConfig", "$schema").get("UserConfig")
    if user_config is None:
        raise ConfigError(f"{file}: $ has no 'UserConfig'")
    # `Logging` says where the emulator writes its log; ours goes to stderr either way.
    places = user_config.members("Namespaces", "Logging").get("Namespaces")
    namespaces = [(place, _Reader(file).namespace(place)) for place in (places.items() if places else ())]
    if len(namespaces) > 1:
        _refuse_unclear_names(namespaces)
    return tuple(namespace for _, namespace in namespaces)


def _refuse_unclear_names(namespaces: list[tuple[Place, NamespaceConfig]]) -> None:
    """One alone may be called anything; several are told apart by what they are called."""
    seen: set[str] = set()
    for place, namespace in namespaces:
        name = place.members(*NAMESPACE_MEMBERS).get("Name") or place.refuse("one of several needs a 'Name'")
        try:
            check_namespace_name(namespace.name)
        except ArgumentError as error:
            name.refuse(str(error))
        if namespace.name.lower() in seen:
            name.refuse("another namespace of this file has that name (case does not count)")
        seen.add(namespace.name.lower())


NAMESPACE_MEMBERS: Final = ("Name", "Queues", "Topics", "AuthorizationRules")

# Property in the file -> field of the description, and how its value is read.
QUEUE_PROPERTIES: Final[Mapping[str, tuple[str, Callable[[Place], object]]]] = {
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiry", Place.boolean),
    "DefaultMessageTimeToLive": ("default_message_ttl_s", Place.duration),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_window_s", Place.bounded_duration),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", Place.text_or_nothing),
    "ForwardTo": ("forward_to", Place.text_or_nothing),
    "LockDuration": ("lock_duration_s", Place.bounded_duration),
    "MaxDeliveryCount": ("max_delivery_count", Place.integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", Place.boolean),
    "RequiresSession": ("requires_session", Place.boolean),
    "EnablePartitioning": ("enable_partitioning", Place.boolean),
    "MaxSizeInMegabytes": ("max_size_mb", Place.integer),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", Place.integer),
    "Status": ("status", Place.status),
    "UserMetadata": ("user_metadata", Place.text_or_nothing),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_s", Place.duration),
}


class _Reader:
    """Walks through one namespace and collects what it finds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._queues: dict[str, QueueDescription] = {}
        self._rules: dict[str, tuple[AuthorizationRule, ...]] = {}

    def namespace(self, place: Place) -> NamespaceConfig:
        members = place.members(*NAMESPACE_MEMBERS)
        name = members["Name"].name() if "Name" in members else NAMESPACE_DEFAULT
        if "Topics" in members and next(members["Topics"].items(), None) is not None:
            raise ConfigError(f"{self._file}: {members['Topics'].path}: Topics are not supported yet")
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope="")
        if "Queues" in members:
            for queue in members["Queues"].items():
                self._read_queue(queue)
        return NamespaceConfig(name, tuple(self._queues.values()), self._rules)

    def _read_queue(self, place: Place) -> None:
        members = place.members("Name", "Properties", "AuthorizationRules")
        if "Name" not in members:
            place.refuse("a queue needs a 'Name'")
        path = members["Name"].name()
        if normalise_path(path) in self._queues:
            members["Name"].refuse("another queue of this file has that name (case does not count)")
        properties = members["Properties"].members(*QUEUE_PROPERTIES) if "Properties" in members else {}
        values: dict[str, Any] = {}
        for name, value in properties.items():
            field, read = QUEUE_PROPERTIES[name]
            values[field] = read(value)
        try:
            queue = QueueDescription(EntityPath(path), **values)
        except ArgumentError as error:
            raise ConfigError(f"{self._file}: {place.path}: {error}") from error
        for feature in unsupported_features(queue):
            properties[feature].refuse(f"{feature} is not supported yet")
        self._queues[normalise_path(queue.path)] = queue
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope=queue.path)

    def _read_rules(self, place: Place, scope: str) -> None:
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

    def _rule(self, place: Place, name: str, members: Mapping[str, Place]) -> AuthorizationRule:
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
