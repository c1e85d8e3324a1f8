"""Commands that are imported when they are called.

`Deferred` represents a command in its group: it has the name and the line that help shows.
`LazyGroup` imports the real command when it is called or completed. So `bendybus --help` imports
no command, and `bendybus serve` imports only the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import IO, Any, cast

import click

from bendybus.cli.output import tell_error

__all__ = ["Deferred", "LazyGroup"]


class MissingExtra(click.ClickException):
    """The command needs packages that are not installed."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        tell_error(self.message)


class Deferred(click.Command):
    """A command, by its module and its name there. `extra` installs the packages that it needs."""

    def __init__(
        self, name: str, module: str, attribute: str, short_help: str, extra: str | None = None
    ) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module
        self._attribute = attribute
        self._extra = extra

    def load(self) -> click.Command:
        try:
            module = import_module(self._module)
        except ImportError as error:
            if self._extra is None:
                raise
            raise MissingExtra(
                f"this command needs {self._extra.title()}, and '{error.name}' is not installed: "
                f"pip install 'bendybus[{self._extra}]'"
            ) from None
        return cast("click.Command", getattr(module, self._attribute))


class LazyGroup(click.Group):
    """A group of deferred commands, shown in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Deferred) else command, rest
