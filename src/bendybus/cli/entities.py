"""`bendybus queue`, `topic` and `subscription`: create, update, show, list and delete.

The three groups have the same commands, made by one factory; a `Kind` says what differs.
Options become requests, and the answers are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from bendybus.atom import NEVER
from bendybus.cli.brokers import show_owners
from bendybus.cli.command import Command, server_command
from bendybus.cli.completion import queue_names, topic_names
from bendybus.cli.entity_options import property_options, taken_properties
from bendybus.cli.options import Decorator, confirm, topic_argument, yes_option
from bendybus.cli.output import OutputFormat, note, show_many, show_one
from bendybus.domain.properties import ENABLE_PARTITIONING
from bendybus.errors import ConfigError, EntityNotFound, InvalidOperation, Unauthorized
from bendybus.management.client import NAMESPACE, QUEUES, TOPICS, ManagementClient
from bendybus.management.durations import shown_duration
from bendybus.management.entries import Entry
from bendybus.management.properties import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntityKind,
    changed_elements,
    new_elements,
    shown_values,
    subscription_path,
)

__all__ = ["queue", "subscription", "topic"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between the commands of the three kinds."""

    described: EntityKind
    help: str
    helps: Mapping[str, str]
    """Command -> its line of help."""
    name_argument: Decorator
    columns: Mapping[str, str]
    """Heading of `list` -> the property below it, as `show` calls it."""
    collection: str = ""
    """The path of the list of all; empty for subscriptions, which belong to a topic."""

    @property
    def label(self) -> str:
        return self.described.label

    @property
    def of_topic(self) -> bool:
        return not self.collection

    def arguments(self, function: Callable[..., None]) -> Callable[..., None]:
        """The arguments that name an entity."""
        function = self.name_argument(function)
        return topic_argument(function) if self.of_topic else function

    def list_arguments(self, function: Callable[..., None]) -> Callable[..., None]:
        return topic_argument(function) if self.of_topic else function

    def path(self, given: Mapping[str, Any]) -> str:
        """The path that these arguments name."""
        return subscription_path(given["topic"], given["name"]) if self.of_topic else str(given["name"])


def _group(kind: Kind) -> click.Group:
    group = click.Group(kind.label, help=kind.help, no_args_is_help=True)
    properties = kind.described.properties
    changeable = tuple(row for row in properties if not row.fixed)

    @group.command(help=kind.helps["create"])
    @kind.arguments
    @property_options(properties)
    @server_command
    def create(command: Command, **given: Any) -> None:
        wanted = taken_properties(properties, given)
        with command.management() as management:
            if wanted.get(ENABLE_PARTITIONING.name, False) is None:
                wanted[ENABLE_PARTITIONING.name] = _partitioned_by_default(management)
            elements = new_elements(kind.described, wanted)
            management.create(kind.path(given), kind.described.element, elements)
            # The answer to a create has no counts.
            _show_entry(command, management.get(kind.path(given)))

    @group.command(help=f"Change properties of a {kind.label}; other properties keep their values.")
    @kind.arguments
    @property_options(changeable)
    @server_command
    def update(command: Command, **given: Any) -> None:
        wanted = taken_properties(changeable, given)
        if all(value is None for value in wanted.values()):
            raise ConfigError(
                f"there is nothing to change: name a property, see 'bendybus {kind.label} update --help'"
            )
        path = kind.path(given)
        with command.management() as management:
            elements = changed_elements(kind.described, _get(management, kind, path), wanted)
            _show_entry(command, management.update(path, kind.described.element, elements))

    @group.command(help=kind.helps["show"])
    @kind.arguments
    @click.option("--owners", is_flag=True, help="Show only which broker owns each partition.")
    @server_command
    def show(command: Command, owners: bool, **given: Any) -> None:
        if owners:
            show_owners(command, kind.path(given))
            return
        with command.management() as management:
            _show_entry(command, _get(management, kind, kind.path(given)))

    @group.command("list", help=kind.helps["list"])
    @kind.list_arguments
    @server_command
    def show_list(command: Command, topic: str = "") -> None:
        _show_list(command, kind, f"{topic}/subscriptions" if kind.of_topic else kind.collection)

    @group.command(help=kind.helps["delete"])
    @kind.arguments
    @click.option(
        "--force",
        is_flag=True,
        help="Delete even if a messaging store is away; its part is deleted when it is available again.",
    )
    @yes_option
    @server_command
    def delete(command: Command, force: bool, yes: bool, **given: Any) -> None:
        path = kind.path(given)
        with command.management() as management:
            _get(management, kind, path)
            confirm(f"Delete the {kind.label} '{path}' and everything in it?", yes)
            management.delete(path, force=force)

    return group


def _partitioned_by_default(management: ManagementClient) -> bool | None:
    """New entities are partitioned by default (P-06); in Premium the namespace decides (P-09)."""
    try:
        premium = management.get(NAMESPACE).text("MessagingSKU") == "Premium"
    except Unauthorized:
        # A key for this entity alone.
        return True
    return None if premium else True


def _get(management: ManagementClient, kind: Kind, path: str) -> Entry:
    entry = management.get(path)
    if entry.kind != kind.described.element:
        other = entry.kind.removesuffix("Description").lower()
        if not other:
            raise EntityNotFound(path)
        raise InvalidOperation(f"'{path}' is a {other} and not a {kind.label}: use 'bendybus {other}'.")
    return entry


def _show_entry(command: Command, entry: Entry) -> None:
    values = shown_values(entry)
    if command.output is OutputFormat.TABLE:
        values = {name: _shortened(value) for name, value in values.items()}
    show_one(values, command.output)
    _tell_of_partial_counts([values])


def _shortened(value: object) -> object:
    if not isinstance(value, str):
        return value
    return "never" if value == NEVER else shown_duration(value)


def _show_list(command: Command, kind: Kind, path: str) -> None:
    with command.management() as management:
        found = [shown_values(entry) for entry in management.list(path)]
    if command.as_json:
        show_many((), (), found)
    elif found:
        rows = ([_cell(each, name) for name in kind.columns.values()] for each in found)
        show_many(list(kind.columns), rows, None)
    else:
        note("There are none.")
    _tell_of_partial_counts(found)


def _cell(values: Mapping[str, object], name: str) -> object:
    """A property or a count. A partial count is marked."""
    counts = values.get("countDetails")
    if name in values or not isinstance(counts, dict):
        return values.get(name)
    return f"{counts.get(name)} (partial)" if _is_partial(values) else counts.get(name)


def _is_partial(values: Mapping[str, object]) -> bool:
    """Whether partitions are away, so that the counts leave them out."""
    return values.get("entityAvailabilityStatus") == "Limited"


def _tell_of_partial_counts(found: Sequence[Mapping[str, object]]) -> None:
    partial = [str(values["name"]) for values in found if _is_partial(values)]
    if partial:
        names = ", ".join(partial[:3]) + (f" and {len(partial) - 3} more" if len(partial) > 3 else "")
        note(
            f"Counts of {names} are partial: a messaging store is away or slow, and what it keeps is not "
            "counted. 'bendybus store list' shows which."
        )


def _sendable(
    described: EntityKind,
    collection: str,
    names: Callable[[click.Context, click.Parameter, str], list[str]],
    *,
    listed: str,
    deleted: str,
    columns: Mapping[str, str],
) -> Kind:
    """A queue or a topic: an entity that has a path of its own and can be sent to."""
    label = described.label
    return Kind(
        described,
        help=f"{label.capitalize()}s: create, show, list, update, delete.",
        helps={
            "create": f"Create a {label}, partitioned unless you say otherwise.",
            "show": f"Show a {label}: its properties, counts and sizes over all partitions.",
            "list": listed,
            "delete": deleted,
        },
        name_argument=click.argument("name", help=f"Path of the {label}.", shell_complete=names),
        columns={
            "Name": "name",
            "Status": "status",
            **columns,
            "Scheduled": "scheduledMessageCount",
            "Partitioned": "enablePartitioning",
            "Max size MB": "maxSizeInMegabytes",
        },
        collection=collection,
    )


queue: Final = _group(
    _sendable(
        QUEUE,
        QUEUES,
        queue_names,
        listed="List all queues with their counts.",
        deleted="Delete a queue with all its messages.",
        columns={"Active": "activeMessageCount", "Dead letters": "deadLetterMessageCount"},
    )
)

topic: Final = _group(
    _sendable(
        TOPIC,
        TOPICS,
        topic_names,
        listed="List all topics.",
        deleted="Delete a topic with its subscriptions and all their messages.",
        columns={"Subscriptions": "subscriptionCount"},
    )
)

subscription: Final = _group(
    Kind(
        SUBSCRIPTION,
        help="Subscriptions of topics: create, show, list, update, delete.",
        helps={
            "create": "Create a subscription; its rule $Default accepts every message.",
            "show": "Show a subscription: its properties and counts.",
            "list": "List the subscriptions of a topic with their counts.",
            "delete": "Delete a subscription with all its messages.",
        },
        name_argument=click.argument("name", help="Name of the subscription."),
        columns={
            "Name": "name",
            "Status": "status",
            "Active": "activeMessageCount",
            "Dead letters": "deadLetterMessageCount",
            "Sessions": "requiresSession",
            "Forwards to": "forwardTo",
        },
    )
)
