"""What a test leaves open is that test's failure.

A socket, file or loop that nobody closed warns when it is collected, and warnings are errors. The collector
runs after each test, so the warning falls on the test that left it and not on a later one. What was there
before the first test is frozen: the collector does not look at it again, which makes it cheap (1 ms).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

# The Azure SDK leaves sockets of its own to the collector, at times that no test decides.
NOT_BLAMED: Final = Path(__file__).with_name("interop")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        if NOT_BLAMED in request.path.parents:
            warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
