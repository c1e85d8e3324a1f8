"""Create, update, show, list and delete, the same for every kind of entity.

The commands of each kind (queue.py) name the options; here they become requests,
and what comes back is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bendybus.cli.command import Command
from bendybus.cli.entity_options import Properties
from bendybus.cli.options import confirm
from bendybus.cli.output import OutputFormat, note, show_many, show_one
from bendybus.errors import ConfigError, EntityNotFound, InvalidOperation
from bendybus.management.client import ManagementClient
from bendybus.management.durations import short_duration
from bendybus.management.entries import Entry
from bendybus.management.properties import EntityKind, changed_elements, new_elements, shown_values

__all__ = ["create", "delete", "show", "show_entry", "show_list", "update"]


def create(command: Command, kind: EntityKind, path: str, properties: Properties) -> None:
    with command.management() as management:
        show_entry(command, management.create(path, kind.element, new_elements(kind, properties)))


def update(command: Command, kind: EntityKind, path: str, properties: Properties) -> None:
    if all(value is None for value in properties.values()):
        raise ConfigError(
            f"nothing is to be changed: name a property, see 'bendybus {kind.label} update --help'"
        )
    with command.management() as management:
        current = _get(management, kind, path)
        changed = changed_elements(kind, current, properties)
        show_entry(command, management.update(path, kind.element, changed))


def show(command: Command, kind: EntityKind, path: str) -> None:
    with command.management() as management:
        show_entry(command, _get(management, kind, path))


def show_list(
    command: Command,
    path: str,
    columns: Sequence[str],
    row: Callable[[dict[str, object]], Sequence[object]],
) -> None:
    """Everything under `path`; in a table as `row` says."""
    with command.management() as management:
        found = [shown_values(entry) for entry in management.list(path)]
    if command.as_json:
        show_many(columns, (), found)
    elif found:
        show_many(columns, map(row, found), None)
    else:
        note("There are none.")


def delete(command: Command, kind: EntityKind, path: str, yes: bool) -> None:
    with command.management() as management:
        _get(management, kind, path)
        confirm(f"Delete the {kind.label} '{path}' and everything in it?", yes)
        management.delete(path)


def show_entry(command: Command, entry: Entry) -> None:
    values = shown_values(entry)
    if command.output is OutputFormat.TABLE:
        values = {name: _shortened(value) for name, value in values.items()}
    show_one(values, command.output)


def _shortened(value: object) -> object:
    if not isinstance(value, str):
        return value
    # The first moment that .NET can write down.
    return "never" if value.startswith("0001-01-01T") else short_duration(value)


def _get(management: ManagementClient, kind: EntityKind, path: str) -> Entry:
    entry = management.get(path)
    if entry.kind != kind.element:
        other = entry.kind.removesuffix("Description").lower()
        if not other:
            raise EntityNotFound(path)
        raise InvalidOperation(f"'{path}' is a {other} and not a {kind.label}: use 'bendybus {other}'.")
    return entry
