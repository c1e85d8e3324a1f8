"""Helpers for tests that look at messages as objects."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import cast

__all__ = ["message_fields"]

SOURCE = Path(__file__).parents[1] / "src" / "bendybus" / "domain" / "messages.py"


@cache
def message_fields() -> frozenset[str]:
    """The names of all fields of a message, from the source: a compiled class has no `__slots__`."""
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Message":
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
                    return frozenset(cast("tuple[str, ...]", ast.literal_eval(each.value)))
    raise AssertionError("Message has no __slots__")
