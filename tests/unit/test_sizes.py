"""Nothing grows beyond what a reader can hold: modules, classes and functions have limits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

MODULE_LINES_MAX = 450
CLASS_METHODS_MAX = 30
FUNCTION_LINES_MAX = 80

# What is still above a limit. An entry is deleted when its module, class or function is divided by subject.
TOO_LARGE: set[str] = set()

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def too_large(name: str, text: str) -> Iterator[tuple[str, str]]:
    """What of a module is above a limit, and by how much."""
    lines = len(text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield name, f"{lines} lines of {MODULE_LINES_MAX}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, FUNCTIONS) for each in node.body)
            if methods > CLASS_METHODS_MAX:
                yield f"{name}::{node.name}", f"{methods} methods of {CLASS_METHODS_MAX}"
        elif isinstance(node, FUNCTIONS):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{name}::{node.name}", f"{lines} lines of {FUNCTION_LINES_MAX}"


def all_too_large() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in SRC.rglob("*.py"):
        found |= too_large(path.relative_to(SRC).as_posix(), path.read_text())
    return found


def test_no_module_class_or_function_is_above_its_limit() -> None:
    assert {name: size for name, size in all_too_large().items() if name not in TOO_LARGE} == {}


def test_every_exception_is_still_needed() -> None:
    assert TOO_LARGE - all_too_large().keys() == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n" * 451, {"m.py"}),
        ("class C:\n" + "".join(f"    def f{n}(self): ...\n" for n in range(31)), {"m.py::C"}),
        ("def f():\n" + "    x = 1\n" * 80, {"m.py::f"}),
        ("class C:\n    async def f(self):\n" + "        x = 1\n" * 80, {"m.py::f"}),
        ("def f():\n" + "    x = 1\n" * 79, set()),
    ],
)
def test_the_limits_are_noticed(text: str, found: set[str]) -> None:
    assert dict(too_large("m.py", text)).keys() == found
