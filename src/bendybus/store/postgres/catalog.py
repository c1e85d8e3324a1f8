"""The catalog of a cluster of brokers, in a schema of a PostgreSQL database.

All brokers read it. One of them, which leads, makes the changes: each change checks in its own transaction
that the broker still leads, so one that was replaced cannot write, however late it wakes up. The brokers of
the cluster: roster.py. What the records mean: store/catalog.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql

from bendybus.domain.entities import normalise_path
from bendybus.errors import (
    EntityExists,
    EntityNotFound,
    SchemaTooNew,
    StoreError,
    StoreUnavailable,
)
from bendybus.names import EntityPath
from bendybus.store.catalog import Description, EntityRecord, columns_of
from bendybus.store.postgres import schema
from bendybus.store.postgres.address import StoreAddress
from bendybus.store.postgres.connections import QUERIES as STORE_QUERIES
from bendybus.store.postgres.connections import Connection, Line, quoted
from bendybus.store.queries import load_queries, load_script
from bendybus.store.roster import ClusterCertificate, ClusterSecrets

__all__ = ["CATALOG_SCHEMA", "PostgresCatalog"]

QUERIES: Final = load_queries(__package__, "catalog_queries.sql")
VERSION: Final = 1
CATALOG_SCHEMA: Final = "bendybus_cluster"
"""The schema, if the URL names none. A messaging store may be in the same database."""
# The newest, the one that it follows, and one more, in case the clock of a broker is far off.
CERTIFICATES_MAX: Final = 3


class PostgresCatalog:
    """The methods are described in `Catalog`."""

    def __init__(self, address: StoreAddress, make_secrets: Callable[[], ClusterSecrets]) -> None:
        """`make_secrets`: what the first broker of a new cluster makes for all."""
        self._address = address
        self._make_secrets = make_secrets
        self._line = Line(address)
        # Changes and comparisons are made from different threads.
        self._turn = threading.Lock()
        self._namespace: Description = {}
        self.term: int | None = None
        """The term in which this broker leads; None while another one does."""
        self.secrets: ClusterSecrets
        self.certificates: list[ClusterCertificate] = []
        """For TLS between brokers, the newest last, as it was last read."""

    def open(self) -> None:
        with self._turn, self._line.use() as connection:
            # Made before the transaction, which must not be idle for long.
            is_new = not schema.look(connection, self._address).tables
            made = self._make_secrets() if is_new else None
            with connection.transaction():
                connection.execute(STORE_QUERIES["take_turn"], {"schema": self._address.schema})
                self._prepare(connection, made)
            row = connection.execute(QUERIES["secrets"]).fetchone()
            assert row is not None, "the transaction before has made it"
            cluster, secret, certificate, key, root_keys = row
            first = ClusterCertificate(certificate, key)
            self.secrets = ClusterSecrets(cluster, bytes(secret), first, tuple(root_keys))
        self.read()

    def _prepare(self, connection: Connection, made: ClusterSecrets | None) -> None:
        where = f"{self._address.name} (schema {self._address.schema})"
        found = schema.look(connection, self._address)
        if found.standby:
            raise StoreUnavailable(f"{self._address.name}: the PostgreSQL server is a standby")
        if found.server_version < schema.SERVER_VERSION_MIN:
            raise StoreError(f"{self._address.name}: PostgreSQL 13 or later is needed")
        if found.encoding != "UTF8":
            raise StoreError(f"{self._address.name}: the encoding is {found.encoding}; UTF8 is needed")
        if found.tables or made is None:
            self._refuse_others(connection, where)
            connection.execute(QUERIES["add_unreached"])
            connection.execute(QUERIES["add_certificate_table"])
            return
        if not found.schemas:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(quoted(self._address.schema)))
        connection.execute(load_script(__package__, "catalog.sql"))
        connection.execute(
            QUERIES["found"],
            (
                *(VERSION, made.cluster, made.secret, made.certificate.certificate, made.certificate.key),
                list(made.root_keys),
            ),
        )

    @staticmethod
    def _refuse_others(connection: Connection, where: str) -> None:
        try:
            with connection.transaction():
                connection.execute(QUERIES["secrets"])
                row = connection.execute(QUERIES["version"]).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise StoreError(f"{where} is not the catalog of a cluster of brokers") from None
        version = 0 if row is None else row[0]
        if version > VERSION:
            raise SchemaTooNew(
                f"{where} is a catalog of version {version}; this Bendybus knows versions up to {VERSION}"
            )

    def close(self) -> None:
        self._line.close()

    # -- reading ------------------------------------------------------------------

    def read(self) -> tuple[int, list[EntityRecord]]:
        """The whole catalog as of one moment: its revision, and all entities. The namespace is kept."""
        with self._turn, self._line.use() as connection:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                revision = connection.execute(QUERIES["revision"]).fetchone()
                described = connection.execute(QUERIES["namespace"]).fetchone()
                certificates = connection.execute(QUERIES["certificates"]).fetchall()
                rows = connection.execute(QUERIES["entities"]).fetchall()
            assert revision is not None
            self._namespace = {} if described is None else json.loads(described[0])
            self.certificates = [
                self.secrets.certificate,
                *(ClusterCertificate(*each) for each in certificates),
            ]
        return revision[0], [
            EntityRecord(path, kind, json.loads(description), count, tuple(json.loads(placement)), *rest)
            for path, kind, description, count, placement, *rest in rows
        ]

    def confirm_lead(self) -> None:
        with self._turn, self._line.use() as connection:
            if connection.execute(QUERIES["confirm_lead"], (self.term,)).fetchone() is None:
                raise StoreUnavailable("Another broker of the cluster leads now.")

    def namespace(self) -> Description:
        """As it was last read: the loop asks for it, and must not wait for a database."""
        return dict(self._namespace)

    def entities(self) -> list[EntityRecord]:
        return self.read()[1]

    # -- changes ------------------------------------------------------------------

    def describe_namespace(self, description: Description) -> None:
        if self.term is None and description == self._namespace:
            return
        with self._changing() as connection:
            connection.execute(QUERIES["describe_namespace"], (json.dumps(description),))
        self._namespace = dict(description)

    def add(self, record: EntityRecord) -> None:
        with self._changing() as connection:
            row = (*columns_of(record), record.path, normalise_path(record.path))
            if connection.execute(QUERIES["add"], row).rowcount != 1:
                raise EntityExists(f"The entity '{record.path}' exists already.")

    def replace(self, *records: EntityRecord) -> None:
        with self._changing() as connection:
            for record in records:
                row = (*columns_of(record), normalise_path(record.path))
                if connection.execute(QUERIES["replace"], row).rowcount != 1:
                    raise EntityNotFound(record.path)

    def remove(self, *paths: EntityPath) -> None:
        with self._changing() as connection:
            for path in paths:
                if connection.execute(QUERIES["remove"], (normalise_path(path),)).rowcount != 1:
                    raise EntityNotFound(path)

    def add_certificate(self, made: ClusterCertificate) -> None:
        """The next one for TLS between brokers. All brokers read it, because it counts as a change."""
        with self._changing() as connection:
            connection.execute(QUERIES["add_certificate"], (made.certificate, made.key, made.shown_from_s))
            connection.execute(QUERIES["forget_certificates"], (CERTIFICATES_MAX,))
        self.read()

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        if self.term is None:
            raise StoreUnavailable(
                "Another broker of the cluster leads, and only that one changes the catalog. If this broker "
                "is being started, give it the options for the namespace that the others have."
            )
        with self._turn, self._line.use() as connection, connection.transaction():
            if connection.execute(QUERIES["begin_change"], (self.term,)).fetchone() is None:
                raise StoreUnavailable("Another broker of the cluster leads now. Please retry the operation.")
            yield connection
