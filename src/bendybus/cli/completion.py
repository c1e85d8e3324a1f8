"""Completion of entity names: the server is asked when Tab is pressed.

The command line may name the server. If no server answers, nothing is offered and no error is
shown, because the shell would print it in the middle of the line.
"""

from __future__ import annotations

import click

from bendybus.cli.target import find_namespace
from bendybus.errors import BrokerError
from bendybus.management.client import QUEUES, TOPICS, ManagementClient

__all__ = ["entity_names", "queue_names", "topic_names"]


def queue_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `shell_complete=`, as the others here."""
    return _names(context, incomplete, QUEUES)


def topic_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _names(context, incomplete, TOPICS)


def entity_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _names(context, incomplete, QUEUES, TOPICS)


def _names(context: click.Context, incomplete: str, *lists: str) -> list[str]:
    given = context.params
    try:
        namespace = find_namespace(given.get("connection_string"), given.get("data"))
        with ManagementClient(namespace) as management:
            names = [entry.name for path in lists for entry in management.list(path)]
    except BrokerError:
        return []
    return [name for name in names if name.lower().startswith(incomplete.lower())]
