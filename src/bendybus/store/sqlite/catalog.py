"""The catalog in a separate SQLite file, `catalog.db`.

It is small and rarely written: one connection, and each change is one transaction that is
counted (witness.py), because entities lost with a damaged log would be swept from the stores. What the
records mean: store/catalog.py.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bendybus.errors import EntityExists, EntityNotFound, StoreUnavailable
from bendybus.names import EntityPath
from bendybus.store.catalog import Description, EntityRecord, columns_of
from bendybus.store.queries import load_queries, load_script
from bendybus.store.sqlite.files import FileKind, open_file, reported, transaction
from bendybus.store.sqlite.witness import Witness

__all__ = ["CATALOG", "SqliteCatalog"]

logger = logging.getLogger(__name__)

QUERIES: Final = load_queries(__package__, "catalog_queries.sql")
CATALOG: Final = FileKind(
    what="catalog",
    application_id=0x42424341,  # "BBCA"
    migrations=tuple(load_script(__package__, f"catalog{n}.sql") for n in ("", "_2")),
    tables=frozenset({"namespace", "entity", "progress"}),
    last_commit=QUERIES["last_commit"],
)


class SqliteCatalog:
    """The methods are described in `Catalog`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._witness: Witness | None = None

    def open(self) -> None:
        assert self._opened is None, f"{self._path} is open already"
        try:
            self._opened = open_file(self._path, CATALOG)
        except StoreUnavailable:
            # A full disk must not keep the server from serving other files.
            if not self._path.exists():
                raise
            self._opened = open_file(self._path, CATALOG, alone=True)
            logger.warning("%s: opened without an index of its log: is the disk full?", self._path)
        with reported(self._path):
            self._witness = Witness(self._path, CATALOG.last_commit_of(self._opened))

    def close(self) -> None:
        if self._opened is not None:
            with reported(self._path):
                self._opened.close()
            self._opened = None
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    def namespace(self) -> Description:
        with reported(self._path):
            row = self._connection.execute(QUERIES["namespace"]).fetchone()
        return {} if row is None else json.loads(row[0])

    def describe_namespace(self, description: Description) -> None:
        with self._changing():
            self._connection.execute(QUERIES["describe_namespace"], (json.dumps(description),))

    def entities(self) -> list[EntityRecord]:
        with reported(self._path):
            rows = self._connection.execute(QUERIES["entities"]).fetchall()
        return [
            EntityRecord(path, kind, json.loads(description), count, tuple(json.loads(placement)), *rest)
            for path, kind, description, count, placement, *rest in rows
        ]

    def add(self, record: EntityRecord) -> None:
        with self._changing():
            row = (*columns_of(record), record.path)
            added = self._connection.execute(QUERIES["add"], row).rowcount == 1
        if not added:
            raise EntityExists(f"The entity '{record.path}' exists already.")

    def replace(self, *records: EntityRecord) -> None:
        with self._changing():
            for record in records:
                row = (*columns_of(record), record.path)
                if self._connection.execute(QUERIES["replace"], row).rowcount != 1:
                    raise EntityNotFound(record.path)

    def remove(self, *paths: EntityPath) -> None:
        with self._changing():
            for path in paths:
                if self._connection.execute(QUERIES["remove"], (path,)).rowcount != 1:
                    raise EntityNotFound(path)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        assert self._witness is not None, f"{self._path} is not open"
        with reported(self._path):
            with transaction(self._connection):
                yield
                self._connection.execute(QUERIES["count_commit"], (self._witness.next_commit,))
            self._witness.committed()
            # There is no hurry here.
            self._witness.check()
            self._witness.note()

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._opened is not None, f"{self._path} is not open"
        return self._opened
