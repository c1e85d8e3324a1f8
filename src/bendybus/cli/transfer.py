"""`bendybus export` and `bendybus import`: the entities of a namespace as the emulator's Config.json.

Either end may be Azure. Messages and keys stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bendybus.auth.connection_strings import ConnectionString
from bendybus.cli.command import Command, server_command
from bendybus.cli.options import dry_run_option
from bendybus.cli.output import note, show_many
from bendybus.cli.tables import progress
from bendybus.errors import ArgumentError, ConfigError, EntityExists
from bendybus.management.client import NAMESPACE, ManagementClient
from bendybus.management.config_file import as_document, exported_namespace, imported, read_config
from bendybus.server.emulator_config import load_config

__all__ = ["export", "import_entities"]

COLUMNS = ("Outcome", "Kind", "Path")


@click.command
@click.argument(
    "file", type=click.Path(dir_okay=False, path_type=Path), required=False, help="The file to write."
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@server_command
def export(command: Command, file: Path | None, force: bool) -> None:
    """Write the entities of a namespace as a Config.json.

    Without FILE it is printed. It contains queues, topics, subscriptions and rules, but no keys.
    """
    if file is not None and file.exists() and not force:
        raise EntityExists(f"'{file}' exists: pass --force to replace it.")
    with command.management() as management:
        text = as_document(_exported(management, command.namespace()))
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"'{file}' cannot be written: {error.strerror}") from None
    note(f"Wrote '{file}'.")


@click.command("import")
@click.argument(
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=False,
    help="The Config.json to read.",
)
@click.option(
    "--from",
    "source",
    metavar="TEXT",
    help="The connection string of the namespace to copy, Azure's or another, instead of FILE.",
)
@click.option("--only", metavar="NAME", help="The namespace of FILE to read, if it has several.")
@dry_run_option
@server_command
def import_entities(
    command: Command, file: Path | None, source: str | None, only: str | None, dry_run: bool
) -> None:
    """Create the entities of a Config.json, or of another namespace.

    Existing entities stay unchanged. An import that was interrupted can be repeated. Messages and policies
    are not copied.
    """
    if (file is None) == (source is None):
        raise ConfigError("name a FILE, or the connection string of another namespace with --from")
    if file is not None:
        namespace = _read(file, only)
    else:
        assert source is not None
        if only is not None:
            raise ConfigError("--only goes with a FILE")
        namespace = _copied(source)
    steps = []
    with command.management() as management, progress() as bar:
        task = bar.add_task("Importing", total=None)
        for step in imported(management, namespace, dry_run=dry_run):
            steps.append(step)
            bar.update(task, completed=len(steps))
    _show(command, steps, dry_run=dry_run)


def _show(command: Command, steps: list[Any], *, dry_run: bool) -> None:
    shown = [{"outcome": step.outcome.value, "kind": step.kind, "path": step.path} for step in steps]
    if command.as_json:
        show_many((), (), shown)
        return
    if shown:
        show_many(COLUMNS, ([step["outcome"], step["kind"], step["path"]] for step in shown), None)
    counts = Counter(step["outcome"] for step in shown)
    what = "Would create" if dry_run else "Created"
    completed = counts["completed"]
    if completed:
        what = f"{'Would complete' if dry_run else 'Completed'} {completed} of an interrupted import. {what}"
    note(f"{what} {counts['created']}; {counts['exists']} exist already and stay as they are.")


def _read(file: Path, only: str | None) -> Mapping[str, Any]:
    # As a server reads it at its start: whatever it does not know is refused, with its place.
    checked = load_config(file)
    namespaces = read_config(file.read_text(encoding="utf-8-sig"))
    names = [each.name for each in checked]
    if only is not None:
        named = zip(names, namespaces, strict=True)
        namespaces = [namespace for name, namespace in named if name.lower() == only.lower()]
        if not namespaces:
            raise ConfigError(f"'{file}' has no namespace '{only}'; it has {', '.join(names)}")
    elif len(namespaces) > 1:
        raise ConfigError(f"'{file}' has several namespaces, {', '.join(names)}: choose one with --only")
    _refuse_ignored(file, namespaces[0])
    return namespaces[0]


def _refuse_ignored(file: Path, namespace: Mapping[str, Any]) -> None:
    """What a running server cannot be told here."""
    for name in ("Tier", "PremiumMessagingPartitions", "DisableLocalAuth", "RoleAssignments"):
        if namespace.get(name):
            raise ConfigError(f"'{file}': '{name}' is set where a server starts: 'bendybus serve --config'")
    owners = [namespace, *(namespace.get("Queues") or ()), *(namespace.get("Topics") or ())]
    if any(owner.get("AuthorizationRules") for owner in owners):
        raise ConfigError(
            f"'{file}' has AuthorizationRules, which import does not create: take them out, and use "
            "'bendybus policy create'"
        )


def _copied(source: str) -> Mapping[str, Any]:
    try:
        namespace = ConnectionString.parse(source)
    except ArgumentError as error:
        raise ConfigError(f"--from: {error}") from None
    with ManagementClient(namespace) as management:
        return _exported(management, namespace)


def _exported(management: ManagementClient, namespace: ConnectionString) -> dict[str, Any]:
    try:
        name = management.get(NAMESPACE).text("Name") or ""
    except ArgumentError:
        name = ""
    return exported_namespace(management, name or namespace.host.partition(".")[0])
