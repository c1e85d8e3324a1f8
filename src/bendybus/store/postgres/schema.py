"""The store's schema in its database: examined before anything is written, then created or migrated.

All of it happens in one transaction, under a lock that other openers of the
same store wait for. So the schema exists completely or not at all. Its contents:
schema.sql.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from bendybus.errors import SchemaTooNew, StoreCorrupted, StoreError, StoreUnavailable
from bendybus.store.postgres.address import StoreAddress
from bendybus.store.postgres.connections import QUERIES, Connection, quoted
from bendybus.store.queries import load_script

__all__ = ["SERVER_VERSION_MIN", "examine", "has_schema", "look", "prepare"]

logger = logging.getLogger(__name__)

# `MIGRATIONS[n]` upgrades version n to version n + 1.
MIGRATIONS: Final = tuple(load_script(__package__, f"schema{n}.sql") for n in ("", "_2"))
VERSION: Final = len(MIGRATIONS)
TABLES: Final = frozenset({"about", "partition", "message", "body", "identity", "session", "transfer"})
# Version 2 has one more.
OWNER_TABLE: Final = frozenset({"owner"})

SERVER_VERSION_MIN: Final = 13_00_00


def examine(connection: Connection, address: StoreAddress, namespace: str | None) -> str:
    """The identity of this store. Refuses what `prepare` would refuse, and writes nothing."""
    _version(connection, address, namespace)
    try:
        server = connection.execute(QUERIES["identity"]).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        info = connection.info
        server = (f"{info.host}:{info.port}/{info.dbname}",)
    assert server is not None
    return f"postgresql:{server[0]}/{address.schema}"


def has_schema(connection: Connection, address: StoreAddress) -> bool:
    """Whether the store's schema exists."""
    return bool(look(connection, address).schemas)


def prepare(connection: Connection, address: StoreAddress, namespace: str | None) -> None:
    """Create or migrate the schema. A store without an owner is assigned to the namespace."""
    _warn(connection, address)
    if _version(connection, address, namespace) == VERSION and namespace is None:
        return
    with connection.transaction():
        connection.execute(QUERIES["take_turn"], {"schema": address.schema})
        # Another process may have changed it meanwhile.
        version = _version(connection, address, namespace)
        if version == 0 and not look(connection, address).schemas:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(quoted(address.schema)))
        for number in range(version, VERSION):
            connection.execute(MIGRATIONS[number])
            connection.execute(QUERIES["set_version" if number else "begin_about"], (number + 1,))
        if namespace is not None:
            connection.execute(QUERIES["adopt"], (namespace,))


def _version(connection: Connection, address: StoreAddress, namespace: str | None) -> int:
    """The version that is here, 0 if none. `StoreError` if we cannot use it."""
    found, where = look(connection, address), f"{address.name} (schema {address.schema})"
    if found.standby:
        raise StoreUnavailable(f"{address.name}: the PostgreSQL server is a standby")
    if found.server_version < SERVER_VERSION_MIN:
        raise StoreError(f"{address.name}: PostgreSQL 13 or later is needed")
    if found.encoding != "UTF8":
        raise StoreError(f"{address.name}: the database has the encoding {found.encoding}; UTF8 is needed")
    if not found.about:
        if found.tables:
            raise StoreError(f"{where} is not a Bendybus messaging store: it has tables of somebody else's")
        return 0
    return _checked_version(connection, address, where, namespace)


def _checked_version(connection: Connection, address: StoreAddress, where: str, namespace: str | None) -> int:
    try:
        row = connection.execute(QUERIES["about"]).fetchone()
    except psycopg.errors.UndefinedColumn:
        raise StoreError(f"{where} is not a Bendybus messaging store") from None
    if row is None:
        raise StoreCorrupted(f"{where} is damaged: its table about is empty")
    version, owner = row
    if version > VERSION:
        raise SchemaTooNew(
            f"{where} is a messaging store of version {version}; this Bendybus knows versions up to {VERSION}"
        )
    if None not in (namespace, owner) and namespace != owner:
        raise StoreError(f"{where} belongs to another namespace")
    tables = {row[0] for row in connection.execute(QUERIES["tables"], {"schema": address.schema})}
    if missing := (TABLES if version < 2 else TABLES | OWNER_TABLE) - tables:
        raise StoreCorrupted(f"{where} is damaged: table {', '.join(sorted(missing))} is missing")
    assert isinstance(version, int)
    return version


def look(connection: Connection, address: StoreAddress) -> Any:
    """What is at this address: nothing yet, something else, or a store. Writes nothing."""
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(QUERIES["look"], {"schema": address.schema}).fetchone()


def _warn(connection: Connection, address: StoreAddress) -> None:
    if look(connection, address).fsync == "off":
        logger.warning(
            "store %s: the PostgreSQL server runs with fsync off: when its machine fails, "
            "messages that were acknowledged are lost",
            address.name,
        )
