"""The table of handlers: every command has one, and each takes the command it is entered for."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from bendybus.domain.commands import Command
from bendybus.domain.handlers import HANDLERS


def test_every_command_has_a_handler() -> None:
    assert HANDLERS.keys() == set(get_args(Command))


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
def test_a_handler_takes_the_command_of_its_entry(kind: type) -> None:
    annotations = inspect.get_annotations(HANDLERS[kind])
    assert list(annotations.values())[:-1] == ["Parts", kind.__name__, "Instant", "Changes"]
