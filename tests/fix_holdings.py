"""The holdings of a connection, for tests without a connection: counted, and never too large."""

from __future__ import annotations

from bendybus.engine.config import ConnectionConfig
from bendybus.engine.connection import Connection
from bendybus.errors import BrokerError
from bendybus.gateway.holdings import Holdings
from bendybus.gateway.memory_budget import MemoryBudget

__all__ = ["holdings_in"]


class _Unconcerned:
    def hold_back(self, held_back: bool) -> None:
        raise AssertionError("nobody is to be held back")

    def evict(self, reason: BrokerError) -> None:
        raise AssertionError("nobody is to be disconnected")


def holdings_in(budget: MemoryBudget | None = None) -> Holdings:
    """The holdings of a new connection; `budget.used_bytes` is their size."""
    engine = Connection.server(ConnectionConfig(container_id="test"))
    return Holdings(engine, (budget or MemoryBudget()).open(_Unconcerned()))
