"""The brokers of a cluster, in the database of its catalog (catalog.sql). What it means: store/roster.py."""

from __future__ import annotations

from collections.abc import Sequence

from bendybus.store.postgres.address import StoreAddress
from bendybus.store.postgres.catalog import QUERIES
from bendybus.store.postgres.connections import Line
from bendybus.store.roster import BrokerRow, Lead, RosterView

__all__ = ["PostgresRoster"]


class PostgresRoster:
    """The methods are described in `Roster`. The catalog has been opened, so its schema exists."""

    def __init__(self, address: StoreAddress) -> None:
        self._line = Line(address)

    def join(self, broker: BrokerRow, dead_after_s: float) -> bool:
        given = {
            "name": broker.name,
            "instance": broker.instance,
            "address": broker.address,
            "version": broker.version,
            "state": broker.state,
            "stores": list(broker.stores),
            "dead_after_s": dead_after_s,
        }
        with self._line.use() as connection:
            connection.execute(QUERIES["forget_brokers"])
            return connection.execute(QUERIES["join"], given).rowcount == 1

    def beat(self, name: str, instance: str, state: str) -> RosterView:
        with self._line.use() as connection, connection.transaction():
            connection.execute(QUERIES["be_brief"])
            silence = connection.execute(QUERIES["silence"], (name, instance)).fetchone()
            connection.execute(QUERIES["beat"], (state, name, instance))
            rows = connection.execute(QUERIES["brokers"]).fetchall()
            lead = connection.execute(QUERIES["leader"]).fetchone()
        assert lead is not None, "the schema has one row"
        brokers = [
            BrokerRow(
                *(known, process, address, version, its_state),
                *(tuple(stores), silent_s, joined_at_s, tuple(unreached)),
            )
            for known, process, address, version, its_state, stores, silent_s, joined_at_s, unreached in rows
        ]
        return RosterView(brokers, Lead(*lead), None if silence is None else silence[0])

    def reach(self, name: str, instance: str, unreached: Sequence[str]) -> None:
        with self._line.use() as connection:
            connection.execute(QUERIES["reach"], (list(unreached), name, instance))

    def lead(self, name: str, instance: str, after: int) -> int | None:
        with self._line.use() as connection:
            row = connection.execute(QUERIES["lead"], (name, instance, after)).fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        self._line.close()
