"""Connections to PostgreSQL: opened when needed, reopened after a loss, with errors translated into ours.

A `Line` is one connection for one thread. An error inside `use`
is raised as one of ours: `StoreUnavailable` if trying again later may help (the
server is away, full, or restarting), `StoreError` if it cannot. If a line breaks while a
statement runs, its outcome is unknown; that too is
`StoreUnavailable`, and the broker then asks the store what is true.
"""

from __future__ import annotations

import contextlib
import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql

from bendybus.errors import BrokerError, PartitionMoved, StoreCorrupted, StoreError, StoreUnavailable
from bendybus.store.postgres.address import StoreAddress
from bendybus.store.queries import load_queries

__all__ = ["QUERIES", "Connection", "Line", "connect", "quoted"]

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

QUERIES: Final = load_queries(__package__, "queries.sql")

# No commit takes this long unless something is wrong. Then its partitions had better be loaded again.
STATEMENT_TIMEOUT_MS: Final = 30_000
# Between the statements of one of our transactions we wait for nothing. A broker that was
# stopped exactly there loses its locks after this time, before another broker takes its partitions over.
IDLE_IN_TRANSACTION_MS: Final = 2_000

# How long to wait after a failed attempt to connect. Doubled each time.
RETRY_AFTER_S: Final = 0.1
RETRY_AFTER_MAX_S: Final = 2.0

# Classes of SQLSTATE: connection, rollback, resources, object state, operator, system error.
_AWAY_CLASSES: Final = frozenset({"08", "40", "53", "55", "57", "58"})
# A standby that has not been promoted.
_READ_ONLY: Final = "25006"
_DAMAGED: Final = frozenset({"XX001", "XX002"})
# The codes that schema.sql raises.
NO_PARTITION: Final = "BB001"
CLAIMED_SINCE: Final = "BB002"

# libpq gives no code for errors while connecting. Waiting does not help with these.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|pg_hba\.conf|certificate|does not support"
    r"|permission denied|invalid (port number|\w+ value|integer value)|is not permitted"
)


class Line:
    """One connection, for one thread."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._connection: Connection | None = None
        self._retry_at = 0.0
        self._retry_after_s = RETRY_AFTER_S

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection, in autocommit mode. Opened if there is none."""
        connection = self._alive() or self._connect()
        try:
            yield connection
        except psycopg.Error as error:
            raise translated(error, self._address.name) from error
        finally:
            if connection.closed or connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _alive(self) -> Connection | None:
        """The connection, unless the server closed it while it was idle. That need not fail a commit."""
        connection = self._connection
        if connection is None:
            return None
        # No reply is expected now, so anything that can be read is a shutdown message, a notice, or the end.
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if poll.poll(0):
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                self.close()
                return None
        return connection

    def _connect(self) -> Connection:
        if time.monotonic() < self._retry_at:
            raise StoreUnavailable(f"{self._address.name}: the PostgreSQL server does not answer")
        try:
            connection = connect(self._address)
        except BrokerError:
            self._retry_at = time.monotonic() + self._retry_after_s
            self._retry_after_s = min(2 * self._retry_after_s, RETRY_AFTER_MAX_S)
            raise
        self._retry_at, self._retry_after_s = 0.0, RETRY_AFTER_S
        self._connection = connection
        return connection


def connect(address: StoreAddress) -> Connection:
    """Open a connection that is set up for the store. Its schema need not exist yet."""
    try:
        # The parameters contain none of psycopg's own: `parse_address` got them from libpq's parser.
        connection = psycopg.connect(**address.connection_parameters(), autocommit=True)  # type: ignore[arg-type]  # see above
        try:
            connection.execute(
                QUERIES["prepare_session"],
                {
                    "search_path": quoted(address.schema).as_string(connection),
                    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
                    "idle_timeout": str(IDLE_IN_TRANSACTION_MS),
                },
            )
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        raise translated(error, address.name) from error
    return connection


def quoted(schema: str) -> sql.Identifier:
    return sql.Identifier(schema)


def translated(error: psycopg.Error, name: str) -> BrokerError:
    """Translate an error of PostgreSQL into one of ours that names the store."""
    code, text = error.sqlstate, error.diag.message_primary or _first_line(error)
    if code is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        away = lost and not _REFUSED.search(str(error))
    else:
        away = code[:2] in _AWAY_CLASSES or code == _READ_ONLY
    if away:
        return StoreUnavailable(f"{name} cannot be used now: {text}")
    if code == CLAIMED_SINCE:
        return PartitionMoved(f"{name}: {text}")
    if code in _DAMAGED:
        return StoreCorrupted(f"{name} is damaged: {text}")
    return StoreError(f"{name} {text}" if code == NO_PARTITION else f"{name}: {text}")


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0]
