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
from typing import Any, Final, NoReturn

from bendybus.auth.rights import Right
from bendybus.auth.rules import ROOT_RULE_NAME
from bendybus.domain.access import RULES_MAX, AuthorizationRule
from bendybus.domain.durations import parse_duration
from bendybus.domain.entities import EntityStatus, QueueDescription, normalise_path
from bendybus.errors import ArgumentError, ConfigError
from bendybus.names import EntityPath

__all__ = ["EmulatorConfig", "load_config", "unsupported_features"]

# Ten thousand queues with every property written out come to about 6 MB.
FILE_SIZE_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """What a Config.json asks for."""

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


class _Reader:
    """Walks one file from the top and collects what it finds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._queues: dict[str, QueueDescription] = {}
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
        return EmulatorConfig(tuple(self._queues.values()), self._rules)

    def _read_namespace(self, namespace: _Place) -> None:
        members = namespace.members("Name", "Queues", "Topics", "AuthorizationRules")
        if "Topics" in members and next(members["Topics"].items(), None) is not None:
            raise ConfigError(f"{self._file}: {members['Topics'].path}: Topics are not supported yet")
        if "AuthorizationRules" in members:
            self._read_rules(members["AuthorizationRules"], scope="")
        if "Queues" in members:
            for queue in members["Queues"].items():
                self._read_queue(queue)

    def _read_queue(self, place: _Place) -> None:
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


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Plain JSON reading would quietly keep the last of two equal keys."""
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"the key '{twice}' stands twice in one object")
    return members
