"""The command `bendybus`: the table of its commands.

Each command is in a module with top-level imports, which is imported when the command is called
(lazy.py). The line of help is here, so that `bendybus --help` imports none of them; a test
compares it with the help of the command.
"""

from __future__ import annotations

from typing import Final

import click

from bendybus.build import is_compiled
from bendybus.cli.lazy import Deferred, LazyGroup
from bendybus.cli.shells import SHELLS, install_completion, show_completion

__all__ = ["app"]

# Command -> module, name in the module, help. In the order in which help shows them.
_COMMANDS: Final = {
    "serve": ("serve", "serve", "Run the broker until SIGTERM or Ctrl+C."),
    "portal": ("portal", "portal", "Run the portal for a server, until SIGTERM or Ctrl+C."),
    "cert": ("cert", "cert", "Create the TLS certificate and show how to trust it."),
    "trust": ("trust", "trust", "Make clients on this machine trust the server's own certificate."),
    "backup": ("backup", "backup", "Back up a running server."),
    "restore": ("backup", "restore", "Create a data folder from a backup."),
    "namespace": ("namespace", "app", "Namespaces: show, list, create, delete."),
    "queue": ("entities", "queue", "Queues: create, show, list, update, delete."),
    "topic": ("entities", "topic", "Topics: create, show, list, update, delete."),
    "subscription": (
        "entities",
        "subscription",
        "Subscriptions of topics: create, show, list, update, delete.",
    ),
    "rule": ("rule", "app", "Rules of subscriptions: create, show, list, update, delete."),
    "export": ("transfer", "export", "Write the entities of a namespace as a Config.json."),
    "import": (
        "transfer",
        "import_entities",
        "Create the entities of a Config.json, or of another namespace.",
    ),
    "policy": ("policy", "app", "Shared access policies, their keys and SAS tokens."),
    "send": ("send", "send", "Send messages to a queue or topic."),
    "receive": ("receive", "receive", "Receive messages, show them and complete them."),
    "peek": ("receive", "peek", "Show messages without receiving them."),
    "cancel": ("cancel", "cancel", "Cancel scheduled messages by their sequence numbers."),
    "move": ("move", "move", "Move messages to another entity."),
    "dead-letter": ("deadletter", "app", "Dead letters: list, resubmit, purge."),
    "purge": ("purge", "purge", "Delete messages and keep the entity."),
    "replay": ("replay", "replay", "Put completed messages back, as if they had just been sent."),
    "session": ("session", "app", "Sessions: list, state, dead-letter."),
    "connection": ("connection", "app", "Connections of clients: list, close."),
    "top": ("top", "top", "Show the rates of messages by entity or partition, until Ctrl+C."),
    "store": ("stores", "app", "Messaging stores: list, attach, drain, retire, forget."),
    "broker": ("brokers", "app", "The brokers of a server that has several: list, show, drain."),
    "fault": ("fault", "app", "Faults, for tests of applications."),
    "pipeline": ("pipeline", "app", "Data pipelines on Spark, local or on a cluster."),
}


@click.group(
    "bendybus",
    cls=LazyGroup,
    commands=[
        Deferred(name, f"bendybus.cli.{module}", attribute, short_help)
        for name, (module, attribute, short_help) in _COMMANDS.items()
    ],
    no_args_is_help=True,
)
@click.version_option(
    package_name="bendybus",
    message=f"bendybus %(version)s ({'compiled' if is_compiled() else 'pure Python'})",
    help="Show the version, and whether it is compiled.",
)
@click.option(
    "--install-completion",
    is_flag=False,
    flag_value="",
    type=click.Choice(["", *SHELLS]),
    metavar="[SHELL]",
    callback=install_completion,
    expose_value=False,
    is_eager=True,
    help="Install completion for your shell: bash, zsh or fish.",
)
@click.option(
    "--show-completion",
    is_flag=False,
    flag_value="",
    type=click.Choice(["", *SHELLS]),
    metavar="[SHELL]",
    callback=show_completion,
    expose_value=False,
    is_eager=True,
    help="Show the completion script of your shell, to copy or change it.",
)
def app() -> None:
    """A message broker that speaks Azure Service Bus's own protocols."""
