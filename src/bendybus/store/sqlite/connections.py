"""The two connections to one SQLite file: one writes, from the writer's thread, and one reads.

A connection is never closed while a thread uses it: SQLite would crash. The witness counts every
transaction (witness.py). SQLite's errors are translated into ours (files.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from bendybus.errors import StoreUnavailable
from bendybus.store.sqlite.files import connect_reader, reported, transaction
from bendybus.store.sqlite.witness import Witness

__all__ = ["Connections"]


class Connections:
    def __init__(
        self, path: Path, count_commit: str, write_pending: Callable[[sqlite3.Connection], None]
    ) -> None:
        """`count_commit`: the statement that counts a transaction in the file. `write_pending`: writes the
        commits that come before it."""
        self._path = path
        self._count_commit = count_commit
        self._write_pending = write_pending
        self._open: tuple[sqlite3.Connection, sqlite3.Connection, Witness] | None = None
        self._writes = Lock()
        self._reads = Lock()

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def open(self, writer: sqlite3.Connection, commits: int, journals: Sequence[Path]) -> None:
        """Add a reader and a witness to the writer's connection. `commits`: how many the file has had."""
        self._open = writer, connect_reader(self._path), Witness(self._path, commits, journals)

    def close(self) -> None:
        if self._open is None:
            return
        writer, reader, witness = self._open
        # Nobody waits for reads that are under way.
        reader.interrupt()
        with self._writes, self._reads, reported(self._path):
            self._open = None
            # The last connection to close empties the log into the file, and only the writer can do that.
            reader.close()
            writer.close()
            witness.close()

    def note(self) -> None:
        """Let the witness record the number of commits."""
        with self._writes:
            if self._open is not None:
                self.witness.note()

    def check(self) -> None:
        """`StoreUnavailable` unless the files are the ones that were opened."""
        with self._writes, reported(self._path):
            self.witness.check()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._reads, reported(self._path):
            yield self._opened()[1]

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """For a commit of messages. The caller informs the witness."""
        with self._writes, reported(self._path):
            yield self._opened()[0]

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """For a transaction that is not a commit of messages. It is counted, and the files are checked."""
        with self.writing() as writer:
            self.witness.check()
            self._write_pending(writer)
            with transaction(writer):
                yield writer
                writer.execute(self._count_commit, (self.witness.next_commit,))
            self.witness.committed()

    @property
    def witness(self) -> Witness:
        return self._opened()[2]

    def _opened(self) -> tuple[sqlite3.Connection, sqlite3.Connection, Witness]:
        if self._open is None:
            raise StoreUnavailable(f"{self._path} is closed")
        return self._open
