"""The table of commands: what it says is true of each, and nothing is imported to say it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bendybus.cli.lazy import Deferred
from bendybus.cli.main import app
from fix_imports import imported_by

runner = CliRunner()


def deferred(group: click.Group) -> Iterator[Deferred]:
    for command in group.commands.values():
        if isinstance(command, Deferred):
            yield command
            loaded = command.load()
            if isinstance(loaded, click.Group):
                yield from deferred(loaded)


@pytest.mark.parametrize("command", list(deferred(app)), ids=lambda command: command.name)
def test_a_deferred_command_shows_the_help_of_the_one_it_stands_for(command: Deferred) -> None:
    loaded = command.load()
    assert loaded.name == command.name
    assert loaded.get_short_help_str(200) == command.get_short_help_str(200)


def test_help_imports_no_command() -> None:
    heavy = ["asyncio", "ssl", "starlette", "uvicorn", "cryptography", "prometheus_client", "rich", "pyspark"]
    heavy += ["http.client", "xml.etree", "pydantic", "bendybus.amqp", "bendybus.client", "bendybus.domain"]
    heavy += ["bendybus.server", "bendybus.management", "bendybus.cli.command"]
    statement = "from bendybus.cli.main import app; app(['--help'], standalone_mode=False)"
    assert imported_by(statement, heavy) == []


def test_managing_entities_does_without_amqp_and_spark() -> None:
    others = ["bendybus.amqp", "bendybus.client", "bendybus.broker.broker", "starlette", "pyspark", "rich"]
    assert imported_by("import bendybus.cli.entities, bendybus.cli.rule, bendybus.cli.pipeline", others) == []


def test_help_names_every_command_in_its_order() -> None:
    shown = runner.invoke(app, ["--help"]).stdout
    listed = shown.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == [*app.commands]


def test_a_mistyped_command_is_answered_with_a_suggestion() -> None:
    result = runner.invoke(app, ["queu"])
    assert result.exit_code == 2
    assert "'queue'" in result.stderr


def test_the_version_is_shown() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"bendybus 0\.\S+ \((compiled|pure Python)\)\n", result.stdout)
