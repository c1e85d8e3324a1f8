"""Tests that are coroutines: each `async def test_...` runs on its own event loop.

A fixture that needs this loop asks for `loop_runner` and calls `loop_runner.run(...)` before and after its
`yield`: tasks that it starts continue while the test runs. A folder may override `loop_runner` to choose the
kind of loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Final

import pytest

# Shorter than the timeout of pytest, so that a test that waits in vain fails at the line where it waits.
TIMEOUT_S: Final = 100


async def until(holds: Callable[[], bool]) -> None:
    """Polls for changes that threads and sockets make without an event. Await instead whatever can be
    awaited."""
    while not holds():
        await asyncio.sleep(0.001)


@pytest.fixture
def loop_runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    if name.startswith("test_") and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("loop_runner")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters})

    pyfuncitem.funcargs["loop_runner"].run(bounded())
    return True
