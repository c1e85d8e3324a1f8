"""The pytest plugin: a Service Bus namespace of its own for every test that asks for one.

Every pytest run that has Bendybus installed loads this module, so it imports nothing
of ours until a test asks. What the fixtures give: `bendybus.testing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bendybus.testing import Namespace, Server

__all__ = ["pytest_addoption", "pytest_configure", "servicebus", "servicebus_own_server", "servicebus_server"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("servicebus_config", "Config.json with the entities that each `servicebus` begins with.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "servicebus(queues=..., topics=..., config=..., durable=..., stores=..., tier=..., "
        "premium_partitions=...): "
        "what the fixture `servicebus` is made with.",
    )


@pytest.fixture(scope="session")
def servicebus_server() -> Iterator[Server]:
    """A Bendybus server for the whole session, in this process; `.namespace()` makes namespaces."""
    from bendybus.testing import Server  # noqa: PLC0415 - see the module's docstring

    with Server() as server:
        yield server


@pytest.fixture
def servicebus_own_server() -> Iterator[Server]:
    """A Bendybus server for this test alone."""
    from bendybus.testing import Server  # noqa: PLC0415

    with Server() as server:
        yield server


@pytest.fixture
def servicebus(servicebus_server: Server, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A Service Bus namespace for this test alone: `.connection_string`, `.clock`, `.reset`."""
    options: dict[str, Any] = {}
    if configured := request.config.getini("servicebus_config"):
        options["config"] = request.config.rootpath / configured
    marker = request.node.get_closest_marker("servicebus")
    if marker is not None:
        options |= marker.kwargs
    with servicebus_server.namespace(**options) as namespace:
        yield namespace
