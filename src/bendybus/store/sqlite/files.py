"""Our SQLite files: created whole, checked before use, with errors translated into ours.

A file is created under another name and renamed, so under its own name it is
whole or absent; an empty or truncated one has been damaged. The header says which kind of file it is
and its version (application_id, user_version). It is read before
SQLite may write a byte. The contents of each kind of file: store.py, catalog.py.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bendybus.errors import SchemaTooNew, StoreCorrupted, StoreError, StoreUnavailable
from bendybus.store.sqlite.ahead import Ahead
from bendybus.store.sqlite.journal import JOURNAL_SUFFIXES, read_records
from bendybus.store.sqlite.witness import log_of, refuse_lost_commits

__all__ = [
    "FileKind",
    "connect_reader",
    "give_back",
    "look_into",
    "open_file",
    "reported",
    "transaction",
    "version_of",
]

# Payloads near 1 KB fill 8 KB pages to 88 % and 4 KB pages to 75 %: a fifth more messages a second. Larger
# pages gain little more, and a commit of one message writes whole pages.
PAGE_BYTES: Final = 8192
# A checkpoint moves at most this much, so no commit waits long for one.
WAL_BYTES: Final = 16 << 20
# After a burst (a dropped entity, a long read) the log file is truncated to this.
WAL_BYTES_KEPT: Final = 64 << 20
# Free pages are kept for the next backlog until they are both many and most of the file.
FREE_BYTES_KEPT: Final = 64 << 20
GIVEN_BACK_PAGES: Final = 512
CACHE_BYTES: Final = 4 << 20
# Only a checkpoint that ends at the wrong moment makes anyone wait, because one process holds the folder.
BUSY_TIMEOUT_S: Final = 5.0

# Files that SQLite or Bendybus opens next to the store's own.
COMPANIONS: Final = ("-wal", "-shm", "-journal", "-witness", ".new", *JOURNAL_SUFFIXES)

HEADER_BYTES: Final = 100
MAGIC: Final = b"SQLite format 3\x00"
# "The user version" and "the Application ID" [SQLite file format, 1.3].
USER_VERSION: Final = slice(60, 64)
APPLICATION_ID: Final = slice(68, 72)

_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_AWAY: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


@dataclass(frozen=True, slots=True)
class FileKind:
    """What we expect of a file. `migrations[n]` upgrades version n to version n + 1."""

    what: str
    application_id: int
    migrations: tuple[str, ...]
    tables: frozenset[str]
    last_commit: str = ""
    """The query for the number of the last commit; empty if commits are not counted (witness.py)."""
    ahead: str = ""
    """The query for commits that it has ahead of its journal (ahead.py); empty if there is no journal."""

    @property
    def version(self) -> int:
        return len(self.migrations)

    def last_commit_of(self, connection: sqlite3.Connection) -> int:
        (number,) = connection.execute(self.last_commit).fetchone()
        assert isinstance(number, int), "a table has the number"
        return number

    def last_durable_commit(self, path: Path, connection: sqlite3.Connection) -> int:
        """The number of the last commit in the file or in its journal."""
        number, ahead = self.last_commit_of(connection), self.ahead_of(connection)
        while self.ahead:
            try:
                records = read_records(path, number, ahead)
            except StoreCorrupted:
                # If the file is in use, commits may have moved from the journal to the file meanwhile.
                before = number, ahead.ranges
                number, ahead = self.last_commit_of(connection), self.ahead_of(connection)
                if (number, ahead.ranges) == before:
                    raise
            else:
                return ahead.reached(records[-1].number if records else number)
        return number

    def ahead_of(self, connection: sqlite3.Connection) -> Ahead:
        """The commits that the file has ahead of its journal."""
        return Ahead(connection.execute(self.ahead) if self.ahead else ())


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into ours, which name the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(error, path) from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be used now: {error.strerror}") from error


def _translated(error: sqlite3.Error, path: Path) -> Exception:
    # The low byte is the primary code; the rest gives details, such as the kind of I/O error.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGED:
        return StoreCorrupted(f"{path} is damaged: {error}")
    if code in _AWAY:
        return StoreUnavailable(f"{path} cannot be used now: {error}")
    return StoreError(f"{path}: {error}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Several statements as one. If anything is raised inside, none of them has happened."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors (a full disk) SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def open_file(path: Path, kind: FileKind, *, alone: bool = False) -> sqlite3.Connection:
    """Open the writer's connection. Creates the file if there is none, and migrates an older one.

    `alone`: no other connection can be opened at the same time. Then the log needs no index file, for which a
    full disk has no room.
    """
    with reported(path):
        refuse_irregular(path)
        if alone:
            _check_header(path, kind)
        elif path.exists():
            # First with a connection that cannot write: a refused file stays as it is, including its log.
            look_into(path, kind).close()
        else:
            _create(path, kind)
        connection = _connect(f"{path.absolute().as_uri()}?mode=rw", alone=alone)
        try:
            # Check again, because the log may contain a later header than the file.
            _check_identity(path, kind, *_identity(connection))
            connection.execute("PRAGMA journal_mode = WAL")
            _migrate(connection, kind)
            _check_whole(path, kind, connection)
            if alone and kind.last_commit:
                refuse_lost_commits(path, partial(kind.last_durable_commit, path, connection))
        except BaseException:
            connection.close()
            raise
        return connection


def look_into(path: Path, kind: FileKind) -> sqlite3.Connection:
    """Open an existing file, checked as in `open_file`, without changing it."""
    refuse_irregular(path)
    _check_header(path, kind)
    connection = connect_reader(path)
    try:
        _check_identity(path, kind, *_identity(connection))
        if version_of(connection) == kind.version:
            _check_whole(path, kind, connection)
            if kind.last_commit:
                refuse_lost_commits(path, partial(kind.last_durable_commit, path, connection))
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_irregular(path: Path) -> None:
    """Refuse a pipe, a device or a folder in place of a file: opening a pipe waits for its other end."""
    for each in (path, *(path.with_name(path.name + ending) for ending in COMPANIONS)):
        try:
            mode = each.stat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise StoreError(f"{each} is not a regular file")


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the file's tables."""
    return _pragma(connection, "user_version")


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a second connection for another thread. It cannot write."""
    with reported(path):
        return _connect(f"{path.absolute().as_uri()}?mode=ro")


def give_back(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the file system, if there are far too many. True if it did."""
    free = _pragma(connection, "freelist_count")
    if free * PAGE_BYTES <= FREE_BYTES_KEPT or free * 2 <= _pragma(connection, "page_count"):
        return False
    # Frees one page per step. Of sqlite3's calls, only this one runs a statement without columns to its end.
    connection.executescript(f"PRAGMA incremental_vacuum({GIVEN_BACK_PAGES})")
    return True


def _connect(uri: str, *, alone: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in (
            # Before the log is first used: then its index is kept only in memory [SQLite, WAL, 8].
            *(("locking_mode = EXCLUSIVE",) if alone else ()),
            "synchronous = FULL",  # a commit that returned survives a power failure
            "fullfsync = ON",  # on macOS a plain fsync stops at the drive's cache
            "cell_size_check = ON",  # detect a corrupt page when it is read
            "secure_delete = OFF",  # some builds overwrite what they free: a seventh slower, never promised
            "temp_store = MEMORY",
            f"cache_size = -{CACHE_BYTES >> 10}",
            f"journal_size_limit = {WAL_BYTES_KEPT}",
            f"wal_autocheckpoint = {WAL_BYTES // PAGE_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path, kind: FileKind) -> None:
    log = log_of(path)
    if log.exists() and log.stat().st_size:
        raise StoreCorrupted(f"{path} is missing, but its log {log.name} is there")
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    try:
        _make_draft(draft, kind)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    draft.rename(path)
    # SQLite has synced the file. The name is durable once the folder is synced.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_draft(draft: Path, kind: FileKind) -> None:
    draft.touch(mode=0o600)
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        # Costs nothing measurable, and allows space to be returned without rewriting the file.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {kind.application_id}")
        _migrate(connection, kind)


def _check_header(path: Path, kind: FileKind) -> None:
    # Without waiting: it was a regular file a moment ago, but may have become a pipe.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"{path} is not a regular file")
        header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise StoreCorrupted(f"{path} is cut short: {len(header)} bytes")
    if not header.startswith(MAGIC):
        raise StoreCorrupted(f"{path} is damaged: it does not begin like an SQLite file")
    _check_identity(
        path,
        kind,
        application_id=int.from_bytes(header[APPLICATION_ID], "big"),
        version=int.from_bytes(header[USER_VERSION], "big"),
    )


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    return _pragma(connection, "application_id"), _pragma(connection, "user_version")


def _check_identity(path: Path, kind: FileKind, application_id: int, version: int) -> None:
    if application_id != kind.application_id:
        raise StoreError(f"{path} is not a Bendybus {kind.what}")
    if version > kind.version:
        raise SchemaTooNew(
            f"{path} is a {kind.what} of version {version}; this Bendybus knows versions up to {kind.version}"
        )


def _migrate(connection: sqlite3.Connection, kind: FileKind) -> None:
    for version in range(_pragma(connection, "user_version"), kind.version):
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{kind.migrations[version]}\nPRAGMA user_version = {version + 1};\nCOMMIT;"
            )
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _check_whole(path: Path, kind: FileKind, connection: sqlite3.Connection) -> None:
    """Check what can be checked without reading everything. Later damage is reported when it is met."""
    # Pages that are missing in the file must be in its log. The log is not emptied here: on a full disk that
    # fails, and the messages must still be readable.
    expected = _pragma(connection, "page_count") * _pragma(connection, "page_size")
    log = log_of(path)
    actual = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    if actual < expected:
        raise StoreCorrupted(f"{path} is cut short: {actual} of {expected} bytes, its log included")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if missing := kind.tables - tables:
        raise StoreCorrupted(f"{path} is damaged: table {', '.join(sorted(missing))} is missing")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value = connection.execute(f"PRAGMA {name}").fetchone()[0]
    assert isinstance(value, int)
    return value
