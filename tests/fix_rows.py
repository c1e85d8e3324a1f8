"""Rows of the contract: which test shows which row, and on how many partitions.

    @pytest.mark.row("P-12", "P-31")
    @on_each_kind
    def test_a_key_stays_in_its_partition(bus: SdkBus) -> None: ...

`row` names rows of docs/reference/contract.md. `kinds` names numbers of partitions: decorators and fixtures
that provide entities of a kind put this mark on a test, with `on_kind`. Both are read from the items that
pytest collects; tests/unit/test_mission_rows.py compares them with the contract.

A mark is a claim, not a proof. So fixtures tell `use_entity` which entities the test has, and when the test
has passed, their servers are asked how many partitions they have. A test that claims a row on a kind and had
no entity of that kind fails.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from bendybus.auth.sas import make_token

__all__ = ["ROWS", "on_kind", "partition_counts", "use_entity"]

LAST: Final = {"P": 37, "S": 6, "N": 9, "B": 10}
ROWS: Final = tuple(f"{letter}-{number:02}" for letter, last in LAST.items() for number in range(1, last + 1))

# Marks of tests that may not run, or may fail: such a test shows nothing.
UNCERTAIN: Final = ("skip", "skipif", "xfail")

SAMPLE: Final = re.compile(r'^bendybus_partitions\{entity="([^"]+)",[^}]*\} (\d+)$', re.MULTILINE)


class Server(Protocol):
    """The part of a `ServerProcess` that is needed here."""

    port: int

    @property
    def key(self) -> str: ...


_used: list[tuple[Server, str]] = []
"""The entities of the test that runs now."""


def use_entity(server: Server, name: str) -> None:
    """The test that runs now has this queue or topic of this server."""
    _used.append((server, name))


def on_kind(partitions: int, *values: object, id: str | None = None) -> Any:  # noqa: A002 - as pytest has it
    """Parameters of a test or fixture for entities of these numbers of partitions."""
    return pytest.param(*values, id=id, marks=pytest.mark.kinds(partitions))


def partition_counts(server: Server) -> dict[str, int]:
    """Queues and subscriptions of a server by their path in lower case: how many partitions they have."""
    token = make_token("https://h", "RootManageSharedAccessKey", server.key, int(time.time()) + 60)
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": token})
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == 200, text
    return {entity.lower(): int(count) for entity, count in SAMPLE.findall(text)}


def _kinds_in_use() -> set[int]:
    kinds: set[int] = set()
    for server in {id(server): server for server, _ in _used}.values():
        names = {name.lower() for used, name in _used if used is server}
        counts = partition_counts(server)
        kinds |= {count for path, count in counts.items() if path.split("/subscriptions/")[0] in names}
    return kinds


def _arguments(item: pytest.Item, name: str) -> set[Any]:
    return {argument for mark in item.iter_markers(name) for argument in mark.args}


# -- pytest -------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=Path, help="write to this file which test claims which rows and kinds")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(id, ...): rows of docs/reference/contract.md that the test shows")
    config.addinivalue_line("markers", "kinds(partitions, ...): what entities the test has; see fix_rows.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        unknown = _arguments(item, "row") - set(ROWS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} claims {sorted(unknown)}: there are no such rows")


def pytest_collection_finish(session: pytest.Session) -> None:
    file: Path | None = session.config.getoption("--claims")
    if file is not None:
        file.write_text(json.dumps(list(_claims(session.items))))


def _claims(items: Iterable[pytest.Item]) -> Iterable[dict[str, object]]:
    for item in items:
        rows = _arguments(item, "row")
        if rows and not any(item.get_closest_marker(name) for name in UNCERTAIN):
            kinds = sorted(_arguments(item, "kinds"))
            yield {"test": item.nodeid, "rows": sorted(rows), "kinds": kinds}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _used.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    kinds = _arguments(item, "kinds")
    if kinds and _arguments(item, "row"):
        missing = kinds - _kinds_in_use()
        if missing:
            pytest.fail(
                f"claims its rows on {sorted(missing)} partitions and had no such entity", pytrace=False
            )
    return result
