"""A test that leaves something open fails.

A socket, file or loop that was not closed causes a warning when it is collected, and warnings are errors. The
collector runs after each test, so the warning concerns the test that left it open and not a later one.
Objects that outlive a file's last test (modules, caches, servers of the session) are frozen: the collector
does not look at them again. Without that, collecting took as long as the tests themselves.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

# The Azure SDK and Spark leave sockets of their own to the collector, at times that no test decides.
NOT_BLAMED: Final = (Path(__file__).with_name("interop"), Path(__file__).with_name("spark"))


def _collect(path: Path) -> None:
    with warnings.catch_warnings():
        if any(folder in path.parents for folder in NOT_BLAMED):
            warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    _collect(request.path)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        _collect(item.path)
        gc.freeze()
