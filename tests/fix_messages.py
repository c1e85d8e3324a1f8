"""Helpers for tests that look at messages as objects."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import cast

__all__ = ["UNREADABLE", "message_fields", "with_unreadable"]

SOURCE = Path(__file__).parents[1] / "src" / "bendybus" / "domain" / "messages.py"


# A text that is no UTF-8.
_NO_TEXT = b"\xa1\x01\xff"
# Sections that cannot be read. The broker takes them: it reads only what it needs.
UNREADABLE = {
    "annotations": b"\x00\x53\x72\xc1\x07\x02\xa3\x01k" + _NO_TEXT,
    "properties": b"\x00\x53\x73\xc0\x09\x04\xa1\x01m\x40\x40" + _NO_TEXT,
    "application properties": b"\x00\x53\x74\xc1\x07\x02\xa1\x01k" + _NO_TEXT,
}


def with_unreadable(section: str) -> bytes:
    """A message as a client sends it, with the body `x`."""
    return UNREADABLE[section] + b"\x00\x53\x75\xa0\x01x"


@cache
def message_fields() -> frozenset[str]:
    """The names of all fields of a message, from the source: a compiled class has no `__slots__`."""
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Message":
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
                    return frozenset(cast("tuple[str, ...]", ast.literal_eval(each.value)))
    raise AssertionError("Message has no __slots__")
