"""Every row of the contract that the documentation claims has a test that names it, on each kind it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "contract.md"

ROW = re.compile(r"^\| (P-\d\d) \| ([^|]+) \| ([^|]+) \|([^|]*)\|$", re.MULTILINE)
NAMED = re.compile(r"\bP-\d\d\b")

# What a test is decorated with, or asks for, and how many partitions its entities have then.
EACH, PARTITIONED, STANDARD = {16, 2, 1}, {16, 2}, {16, 1}

Test: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

DECORATORS = {
    "on_each_kind": EACH,
    "on_partitioned_kinds": PARTITIONED,
    "KINDS": EACH,
    "MIXES": EACH,
    "PARTITIONED": PARTITIONED,
    "UNPARTITIONED": {1},
    "CROSSWISE": STANDARD,
}
FIXTURES = {
    **dict.fromkeys(("outage", "outages", "small_buses"), EACH),
    **dict.fromkeys(
        (
            *("kind", "sdk_queue", "make_sdk_queue", "make_sdk_queues", "once", "entities", "session_queue"),
            *("rest", "queue"),
        ),
        STANDARD,
    ),
}


def claimed() -> dict[str, set[int] | None]:
    """Row -> the kinds it is shown on; none for rows of the namespace. Those not claimed are left out."""
    rows: dict[str, set[int] | None] = {}
    for row, _, shown, _ in ROW.findall(PAGE.read_text()):
        if shown != "not claimed":
            rows[row] = None if shown == "namespace" else {int(each) for each in shown.split(",")}
    return rows


def all_tests() -> Iterator[tuple[Test, str]]:
    """Every test function, with its source from the first decorator to its end."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Test) and node.name.startswith("test_"):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                yield node, "\n".join(lines[first - 1 : node.end_lineno])


def kinds_of(test: Test) -> set[int]:
    names = [each.id for each in test.decorator_list if isinstance(each, ast.Name)]
    arguments = [each.arg for each in (*test.args.args, *test.args.kwonlyargs)]
    kinds = [DECORATORS.get(name, set()) for name in names]
    kinds += [FIXTURES.get(name, set()) for name in arguments]
    return set().union(*kinds)


@cache
def shown() -> dict[str, set[int]]:
    """Row -> the kinds that the tests which name it run on, all of them together."""
    rows: dict[str, set[int]] = {}
    for test, text in all_tests():
        for row in NAMED.findall(text):
            rows.setdefault(row, set()).update(kinds_of(test))
    return rows


def test_every_row_has_its_place_in_the_contract() -> None:
    assert [row for row, *_ in ROW.findall(PAGE.read_text())] == [f"P-{number:02}" for number in range(1, 38)]


@pytest.mark.parametrize("row", claimed())
def test_a_claimed_row_is_named_by_a_test_on_each_kind(row: str) -> None:
    assert row in shown(), f"no test names {row}"
    missing = (claimed()[row] or set()) - shown()[row]
    assert not missing, f"{row} has no test on {sorted(missing)} partitions"


def test_a_row_that_is_not_claimed_says_what_is_missing() -> None:
    for row, _, kinds, missing in ROW.findall(PAGE.read_text()):
        assert kinds != "not claimed" or missing.strip(), row
