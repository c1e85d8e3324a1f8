"""The table of handlers: every command has one, and each takes the command it is entered for."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from bendybus.domain import handlers
from bendybus.domain.commands import Command
from bendybus.domain.handlers import HANDLERS


def test_every_command_has_a_handler() -> None:
    assert HANDLERS.keys() == set(get_args(Command))


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
def test_a_handler_takes_the_command_of_its_entry(kind: type) -> None:
    handler = HANDLERS[kind]
    source = Path(handlers.__file__).with_name(f"{handler.__module__.rpartition('.')[2]}.py").read_text()
    (found,) = [
        each
        for each in ast.parse(source).body
        if isinstance(each, ast.FunctionDef) and each.name == handler.__name__
    ]
    taken = [argument.annotation and ast.unparse(argument.annotation) for argument in found.args.args]
    assert taken == ["Parts", kind.__name__, "Instant", "Changes"]
