"""What all commands against a server share: three options, and errors told in one line.

`server_command` gives a function the options `--connection-string`, `--data` and
`--output`, and hands it a `Command` made of them. Whatever of ours is raised becomes one
line on stderr and exit code 1, or 2 where the call itself was wrong; never a traceback.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, get_type_hints

import typer

from bendybus.cli.output import OutputFormat, tell_error
from bendybus.errors import BrokerError, ConnectionLost, EntityNotFound, SetupError, Unauthorized

if TYPE_CHECKING:
    from bendybus.cli.management import ManagementClient
    from bendybus.cli.target import Target
    from bendybus.client import BusClient

__all__ = [
    "EXIT_FAILED",
    "EXIT_USAGE",
    "Command",
    "option",
    "own_parameters",
    "seen_as",
    "server_command",
    "telling_errors",
]

EXIT_FAILED: Final = 1
# What shells and init systems take for "called wrongly".
EXIT_USAGE: Final = 2

# With pauses of 0.2 and 0.4 seconds.
RETRIES: Final = 2
# How long one answer may take.
TIMEOUT_S: Final = 60.0

ConnectionString = Annotated[
    str | None,
    typer.Option(
        help="The namespace, as every SDK is told it.",
        show_default="$BENDYBUS_CONNECTION_STRING, or the server that runs on --data",
    ),
]
Data = Annotated[Path, typer.Option(help="Data folder of a server on this machine.")]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to show results.")]


class Command:
    """One command at work: the server that it was pointed at, and how it is to show results."""

    def __init__(self, connection_string: str | None, data: Path, output: OutputFormat) -> None:
        self._connection_string = connection_string
        self._data = data
        self.output = output

    @property
    def as_json(self) -> bool:
        return self.output is OutputFormat.JSON

    def target(self) -> Target:
        from bendybus.cli.target import find_target  # noqa: PLC0415 - see main.py

        return find_target(self._connection_string, self._data)

    def management(self) -> ManagementClient:
        from bendybus.cli.management import ManagementClient  # noqa: PLC0415 - see main.py

        return ManagementClient(self.target())

    def client(self, *, retries: int = RETRIES, timeout_s: float = TIMEOUT_S) -> BusClient:
        from dataclasses import replace  # noqa: PLC0415 - see main.py

        from bendybus.client import BusClient, ClientSettings  # noqa: PLC0415

        target = self.target()
        settings = ClientSettings.from_connection_string(target.connection_string)
        settings = replace(settings, certificate=target.certificate)
        # Somebody is waiting at the terminal.
        return BusClient(replace(settings, retries=retries, timeout_s=timeout_s))


def server_command(function: Callable[Concatenate[Command, ...], None]) -> Callable[..., None]:
    """The function as typer is to see it: with the shared options instead of its `Command`."""

    def run(connection_string: str | None, data: Path, output: OutputFormat, **arguments: Any) -> None:
        telling_errors(lambda: function(Command(connection_string, data, output), **arguments))

    _, *own = own_parameters(function)
    shared = (
        option("connection_string", ConnectionString, None),
        option("data", Data, Path(".data")),
        option("output", Output, OutputFormat.TABLE),
    )
    return seen_as(run, function, (*own, *shared))


def own_parameters(function: Callable[..., None], **names: object) -> list[inspect.Parameter]:
    """A function's parameters with their annotations resolved, `names` among them."""
    hints = get_type_hints(function, include_extras=True, localns=names)
    parameters = inspect.signature(function).parameters.values()
    return [each.replace(annotation=hints.get(each.name, each.annotation)) for each in parameters]


def option(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def seen_as(
    run: Callable[..., None], function: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """`run`, which whoever looks at it takes for `function` with these parameters."""
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what `inspect` looks for
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def telling_errors(work: Callable[[], None]) -> None:
    """Do the work; what goes wrong is told to the person who called, with what to do about it."""
    try:
        work()
    except BrokerError as error:
        tell_error(" ".join((str(error), *_advice(error))))
        raise typer.Exit(EXIT_USAGE if isinstance(error, SetupError) else EXIT_FAILED) from None


def _advice(error: BrokerError) -> Iterator[str]:
    match error:
        case EntityNotFound():
            yield "'bendybus queue list' and 'bendybus topic list' show what there is."
        case Unauthorized() if "certificate" in str(error):
            yield "Name it in SSL_CERT_FILE; 'bendybus cert' shows where it is."
        case Unauthorized():
            yield "Check the key, and the rights of its rule."
        case ConnectionLost():
            yield "Is the server running, and is this its address?"
