"""What a test leaves open is that test's failure.

A socket, file or loop that nobody closed warns when it is collected, and warnings are errors. The collector
runs after each test, so the warning falls on the test that left it and not on a later one. What was there
before the first test is frozen: the collector does not look at it again, which makes it cheap (1 ms).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()
