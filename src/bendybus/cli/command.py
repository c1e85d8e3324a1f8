"""What all commands against a server share: four options, and errors in one line.

`server_command` gives a function the options `--connection-string`, `--data`, `--namespace` and
`--output`, and passes it a `Command` made of them. Each of our errors becomes one line on stderr
and exit code 1, or 2 if the call itself was wrong; never a traceback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final

import click

from bendybus.auth.connection_strings import ConnectionString
from bendybus.cli.operated import connection_string_of
from bendybus.cli.options import Choices, running_data_option
from bendybus.cli.output import OutputFormat, tell_error
from bendybus.cli.target import TOKEN_VARIABLE, find_certificate, find_namespace
from bendybus.errors import BrokerError, ConfigError, ConnectionLost, EntityNotFound, SetupError, Unauthorized
from bendybus.management.client import ManagementClient
from bendybus.management.json_api import ask_json

__all__ = [
    "EXIT_FAILED",
    "EXIT_USAGE",
    "Command",
    "connection_string_option",
    "output_option",
    "server_command",
    "told_errors",
]

EXIT_FAILED: Final = 1
# What shells and init systems take for "called wrongly".
EXIT_USAGE: Final = 2

connection_string_option = click.option(
    "--connection-string",
    metavar="TEXT",
    help="The connection string of the namespace, as the SDKs use it.",
    show_default="$BENDYBUS_CONNECTION_STRING, or the server that runs on --data",
)
output_option = click.option(
    "--output",
    "-o",
    type=Choices(OutputFormat),
    default=OutputFormat.TABLE.value,
    show_default=True,
    help="Output format.",
)


class Command:
    """One call of a command: the server that it uses, and how it shows results.

    Commands that manage entities use `management`; those that move messages use bus.py.
    """

    def __init__(
        self,
        connection_string: str | None,
        data: Path | None,
        output: OutputFormat,
        namespace: str | None = None,
    ) -> None:
        if connection_string and namespace:
            raise ConfigError(
                "--namespace names one of a server on this machine; a connection string has its own"
            )
        self._connection_string = connection_string
        self._data = data
        self._namespace = namespace
        self.output = output

    @property
    def as_json(self) -> bool:
        return self.output is OutputFormat.JSON

    def namespace(self) -> ConnectionString:
        return find_namespace(self._named(), self._data)

    def _named(self) -> str | None:
        if self._namespace is None:
            return self._connection_string
        return connection_string_of(self._namespace, self._data)

    def certificate(self) -> str | None:
        """A file to trust besides the system's certificates: that of the server on this machine."""
        environment = os.environ if self._namespace is None else {}
        return find_certificate(self._connection_string, self._data, environment)

    def ask_json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request to the server's own API: stores and faults."""
        return ask_json(self.namespace(), method, path, body, self.certificate())

    def management(self) -> ManagementClient:
        return ManagementClient(self.namespace(), self.certificate())


def server_command(function: Callable[Concatenate[Command, ...], None]) -> Callable[..., None]:
    """The innermost decorator of a command: options that stand above it come first in its help."""

    @connection_string_option
    @running_data_option
    @click.option("--namespace", metavar="NAME", help="One of several namespaces of the server on --data.")
    @output_option
    @functools.wraps(function)
    def run(
        connection_string: str | None,
        data: Path | None,
        namespace: str | None,
        output: OutputFormat,
        **arguments: Any,
    ) -> None:
        with told_errors():
            function(Command(connection_string, data, output, namespace), **arguments)

    return run


@contextmanager
def told_errors() -> Iterator[None]:
    """Show one of our errors to the user, with what to do about it."""
    try:
        yield
    except BrokerError as error:
        tell_error(" ".join((str(error), *_advice(error))))
        raise click.exceptions.Exit(EXIT_USAGE if isinstance(error, SetupError) else EXIT_FAILED) from None


def _advice(error: BrokerError) -> Iterator[str]:
    match error:
        case EntityNotFound():
            yield "'bendybus queue list' and 'bendybus topic list' show what there is."
        case Unauthorized() if "certificate" in str(error):
            yield "Name it in SSL_CERT_FILE; 'bendybus cert' shows where it is."
        case Unauthorized() if "LocalAuthDisabled" in str(error):
            yield f"Put a token of the identity provider into {TOKEN_VARIABLE}."
        case Unauthorized():
            yield "Check the key, and the rights of its rule."
        case ConnectionLost():
            yield "Is the server running, and is this its address?"
