"""Connections to PostgreSQL: opened when needed, reopened after a loss, with errors translated into ours.

A `Line` is one connection for one thread. An error inside `use`
is raised as one of ours: `StoreUnavailable` if trying again later may help (the
server is away, full, or restarting), `StoreError` if it cannot. If a line breaks while a
statement runs, its outcome is unknown; that too is
`StoreUnavailable`, and the broker then asks the store what is true. So is a commit
that PostgreSQL has reported without waiting for the standby.

Of several hosts, the primary with the newest timeline is used: timelines.py.
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
from bendybus.store.postgres.timelines import refuse_superseded
from bendybus.store.queries import load_queries

__all__ = ["QUERIES", "Connection", "Line", "connect", "quoted"]

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

QUERIES: Final = load_queries(__package__, "queries.sql")

# No commit takes this long unless something is wrong. Then it is better to load its partitions again.
STATEMENT_TIMEOUT_MS: Final = 30_000
# Between the statements of one of our transactions we wait for nothing. A broker that was
# stopped exactly there loses its locks after this time, before another broker takes its partitions over.
IDLE_IN_TRANSACTION_MS: Final = 2_000

# How long to wait after a failed attempt to connect. Doubled each time.
RETRY_AFTER_S: Final = 0.1
RETRY_AFTER_MAX_S: Final = 2.0

# How long a host may take that is probably not needed: another one is a primary. libpq rounds less up.
OTHERS_TIMEOUT_S: Final = "2"
# The function of PostgreSQL that waits for a standby, and that names itself in what it has to say.
AWAITS_STANDBY: Final = "SyncRepWaitForLSN"

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
        self._unreplicated = False

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection, in autocommit mode. Opened if there is none."""
        connection = self._alive() or self._connect()
        self._unreplicated = False
        try:
            yield connection
        except psycopg.Error as error:
            raise translated(error, self._address.name) from error
        finally:
            if connection.closed or connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.close()
        if self._unreplicated:
            self.close()
            raise StoreUnavailable(
                f"{self._address.name} cannot be used now: the synchronous standby has not confirmed a commit"
            )

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        # When a statement is cancelled while it waits for the standby, by its timeout for example, PostgreSQL
        # warns and reports success. A standby that is promoted then may not have the commit.
        if notice.source_function == AWAITS_STANDBY:
            self._unreplicated = True

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
        connection.add_notice_handler(self._noticed)
        self._connection = connection
        return connection


def connect(address: StoreAddress) -> Connection:
    """Open a connection that is set up for the store. Its schema need not exist yet."""
    try:
        connection, system, timeline = _connect_to_newest(address)
        try:
            if address.timelines is not None and timeline:
                refuse_superseded(address.timelines, address.name, system, timeline)
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


def _connect_to_newest(address: StoreAddress) -> tuple[Connection, str, int]:
    """Connect to the primary; of several, to the one with the newest timeline. All others are old ones."""
    found: list[tuple[Connection, str, int]] = []
    problem: psycopg.Error | None = None
    for parameters in address.hosts():
        given = {**parameters, "connect_timeout": OTHERS_TIMEOUT_S} if found else parameters
        try:
            # The parameters contain none of psycopg's own: `parse_address` got them from libpq's parser.
            connection = psycopg.connect(**given, autocommit=True)  # type: ignore[arg-type]  # see above
        except psycopg.Error as error:
            problem = problem or error
            continue
        try:
            found.append((connection, *_timeline_of(connection)))
        except psycopg.Error as error:
            connection.close()
            problem = problem or error
    if not found:
        assert problem is not None, "an address has a host"
        raise problem
    newest = max(found, key=lambda each: each[2])
    for connection, _, _ in found:
        if connection is not newest[0]:
            connection.close()
    return newest


def _timeline_of(connection: Connection) -> tuple[str, int]:
    """The server's system identifier and its timeline. 0 for a standby, and if this user may not ask."""
    try:
        row = connection.execute(QUERIES["timeline"]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return "", 0
    assert row is not None
    system, timeline = row
    return system, timeline


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
