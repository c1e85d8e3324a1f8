"""Values of a JSON file, each with its position, so that an error can name both.

A wrong value is refused with the file, the position, the value and what is allowed. What the
values mean: emulator_config.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from bendybus.auth.rights import Right
from bendybus.domain.durations import parse_duration
from bendybus.domain.entities import EntityStatus
from bendybus.errors import ArgumentError, ConfigError

__all__ = ["JsonNode", "parse_json", "read_json"]

# Ten thousand queues with every property written out come to about 6 MB.
FILE_SIZE_MAX: Final = 32 * 1024 * 1024


def read_json(file: Path) -> JsonNode:
    """The whole content of a file; `ConfigError` when it cannot be read or is not JSON."""
    try:
        if file.stat().st_size > FILE_SIZE_MAX:
            raise ConfigError(f"{file}: larger than {FILE_SIZE_MAX // 2**20} MB")
        # The vendor's own samples are saved with a byte order mark.
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON: {error}") from error
    return parse_json(file, text)


def parse_json(file: Path, text: str) -> JsonNode:
    """The content of a file that was read already."""
    try:
        content = json.loads(text, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not JSON: {error}") from error
    return JsonNode(file, "$", content)


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value and its position in the file, such as `$.UserConfig.Namespaces[0]`."""

    file: Path
    path: str
    value: object

    def refuse(self, allowed: str) -> NoReturn:
        shown = json.dumps(self.value, ensure_ascii=False)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise ConfigError(f"{self.file}: {self.path} is {shown}; {allowed}")

    def members(self, *known: str) -> dict[str, JsonNode]:
        """The members of an object; null counts as absent, an unknown name is refused."""
        if not isinstance(self.value, dict):
            self.refuse("expected an object")
        for name in self.value:
            if name not in known:
                raise ConfigError(
                    f"{self.file}: {self.path} has the unknown key '{name}'; known are {', '.join(known)}"
                )
        return {
            name: JsonNode(self.file, f"{self.path}.{name}", value)
            for name, value in self.value.items()
            if value is not None
        }

    def items(self) -> Iterator[JsonNode]:
        if not isinstance(self.value, list):
            self.refuse("expected a list")
        for index, value in enumerate(self.value):
            yield JsonNode(self.file, f"{self.path}[{index}]", value)

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else self.refuse("expected a text")

    def name(self) -> str:
        return self.text().strip() or self.refuse("expected a name")

    def text_or_nothing(self) -> str | None:
        """The vendor's samples write an empty text for none."""
        return self.text() or None

    def boolean(self) -> bool:
        return self.value if isinstance(self.value, bool) else self.refuse("expected true or false")

    def integer(self) -> int:
        # In Python true is also the number 1. In the file it is not.
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


def _no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuses a repeated key, of which `json` would keep the last."""
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"the key '{twice}' appears twice in one object")
    return members
