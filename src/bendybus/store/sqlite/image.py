"""A copy of a whole SQLite file at one moment, made while others write to it.

A read transaction fixes the moment. In WAL mode it costs nothing and blocks nobody. Until it ends, the
file's log cannot be emptied, so the log grows by what is written meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from threading import Lock
from typing import Final

from bendybus.store.sqlite.files import PAGE_BYTES, connect_reader, reported

__all__ = ["SqliteImage"]

# 2 MB. The copy can be stopped between two steps.
STEP_PAGES: Final = 256


class SqliteImage:
    """The methods are described in `StoreImage`."""

    suffix = ".db"

    def __init__(self, path: Path, whole: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """`whole`: while this lasts, the file has everything that was acknowledged."""
        self._path = path
        self._whole = whole
        self._connection = connect_reader(path)
        self._use = Lock()
        """A connection that is in use on a stuck disk is never closed: SQLite would crash."""

    def fix(self) -> None:
        with self._use, self._whole(), reported(self._path):
            self._connection.execute("BEGIN")
            # The transaction begins with its first read.
            self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()

    def write(self, file: Path, copied: Callable[[int], None]) -> None:
        assert self._connection.in_transaction, "the moment is fixed before anything is written"

        def told(_status: int, remaining: int, total: int) -> None:
            copied((total - remaining) * PAGE_BYTES)

        with self._use, reported(file), closing(sqlite3.connect(file, isolation_level=None)) as target:
            # The caller syncs the copy as a whole.
            target.execute("PRAGMA synchronous = OFF")
            self._connection.backup(target, pages=STEP_PAGES, progress=told)

    def close(self) -> None:
        with self._use:
            self._connection.close()
