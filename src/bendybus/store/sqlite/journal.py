"""The journal of an SQLite store: commits that are durable, and that are not in the database yet.

A commit is one record, appended with one synchronous write. The database gets it later, together with many
others, and most messages are removed by then, so that it never sees them (pending.py). There are two files,
`NAME-commits-0` and `NAME-commits-1`. When one is full, the records of the other one go to the database, and
its space is used again. So a file may contain older records after the newest one: numbers grow, and a record
with a lower number ends the file. The newest record may also end in the middle of an older one, where a
sender may have put anything, even records. So four zeros are written behind each record, and the next one
replaces them.

    "BBcr" | checksum, 4 bytes | number, 8 | length of the head, 4 | length of the body, 4 | head | body

The checksum is over everything that follows it. A record that was not written whole was not acknowledged.
What head and body contain: records.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from bendybus.errors import StoreCorrupted
from bendybus.store.sqlite.ahead import Ahead

try:
    from isal.isal_zlib import crc32  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    # The same function, slower. There are no wheels of isal for this machine.
    from zlib import crc32

__all__ = ["JOURNAL_SUFFIXES", "SEGMENT_BYTES", "Journal", "JournalRecord", "journals_of", "read_records"]

JOURNAL_SUFFIXES: Final = ("-commits-0", "-commits-1")

# The size of each file. A message that is removed before half as much more is written never reaches the
# database. Several busy brokers, or clients with many messages in flight, have up to 10 MB on their way.
SEGMENT_BYTES: Final = 24 << 20
# A file grows by this much, ahead of its records. A small record that makes the file longer needs a second
# write of the disk, for the length: 110 to 140 us instead of 80 to 95.
GROWTH_BYTES: Final = 1 << 20
# Linux writes at most 1024 pieces at once.
PIECES_MAX: Final = 1000

_MARK: Final = b"BBcr"
# Behind the newest record, in place of the mark of a next one.
_END: Final = bytes(len(_MARK))
_PREFIX: Final = Struct(">4sI")
_HEADER: Final = Struct(">QII")
HEADER_BYTES: Final = _PREFIX.size + _HEADER.size


class JournalRecord(NamedTuple):
    number: int
    head: bytes
    body: bytes


def journals_of(path: Path) -> list[Path]:
    """The journal's files for a database."""
    return [path.with_name(path.name + suffix) for suffix in JOURNAL_SUFFIXES]


def read_records(path: Path, after: int, ahead: Ahead) -> list[JournalRecord]:
    """The records of all commits after this one that the database lacks, in order.

    `StoreCorrupted` if some are missing. If both files are, the witness tells whether commits are lost: an
    operator may have removed all three, to continue without them. `ahead`: commits that the database has.
    """
    if not any(file.exists() for file in journals_of(path)):
        return []
    records = [record for file in journals_of(path) for record in _records_in(file) if record.number > after]
    found = sorted([record for record in records if record.number not in ahead])
    before = ahead.reached(after)
    for record in found:
        if record.number != before + 1:
            raise _incomplete(path, before, f"its journal continues with {record.number}")
        before = ahead.reached(record.number)
    if before < ahead.last:
        raise _incomplete(path, before, f"it has commit {ahead.last}")
    return found


def _incomplete(path: Path, before: int, found: str) -> StoreCorrupted:
    return StoreCorrupted(
        f"{path} ends with commit {before}, but {found}. "
        "A file was damaged, or an older copy was put in its place"
    )


def _records_in(file: Path) -> Iterator[JournalRecord]:
    try:
        content = memoryview(file.read_bytes())
    except FileNotFoundError:
        return
    at, last = 0, 0
    while at + HEADER_BYTES <= len(content):
        mark, checksum = _PREFIX.unpack_from(content, at)
        number, head_bytes, body_bytes = _HEADER.unpack_from(content, at + _PREFIX.size)
        head_at = at + HEADER_BYTES
        body_at = head_at + head_bytes
        end = body_at + body_bytes
        if mark != _MARK or number <= last or end > len(content):
            return
        if crc32(content[at + _PREFIX.size : end]) != checksum:
            return
        yield JournalRecord(number, bytes(content[head_at:body_at]), bytes(content[body_at:end]))
        at, last = end, number


class Journal:
    """The journal of an open database. Used by the writer's thread."""

    def __init__(self, path: Path) -> None:
        """Everything that the files contain must be in the database."""
        self.files = journals_of(path)
        self._descriptors: list[int] = []
        try:
            for file in self.files:
                self._descriptors.append(_opened(file))
            # The names of new files are durable once the folder is synced.
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            self.close()
            raise
        self._sizes = [os.fstat(descriptor).st_size for descriptor in self._descriptors]
        self._current = 0
        self._end = 0
        self.is_suspect = False
        """Whether a write has failed, here or in the database. What failed may be there all the same, so
        nothing is appended until its number is used by the database."""

    def close(self, *, empty: bool = False) -> None:
        """`empty`: everything is in the database."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            if empty:
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def has_room(self, size: int) -> bool:
        """Whether the current file has room for a record with a head and a body of this size."""
        return self._end + HEADER_BYTES + size + len(_END) <= SEGMENT_BYTES

    @property
    def used(self) -> float:
        """The share of the current file that has records."""
        return self._end / SEGMENT_BYTES

    def append(self, number: int, head: bytes, pieces: Sequence[bytes], body_bytes: int) -> None:
        """Write a record, durably."""
        header = _HEADER.pack(number, len(head), body_bytes)
        checksum = crc32(head, crc32(header))
        # Piece by piece: for more than 5 KB the interpreter's lock would be released, and to get it back can
        # take longer than the checksum.
        for piece in pieces:
            checksum = crc32(piece, checksum)
        if len(pieces) > PIECES_MAX:
            pieces = (b"".join(pieces),)
        size = HEADER_BYTES + len(head) + body_bytes + len(_END)
        if self._end + size > self._sizes[self._current]:
            self._grow(size)
        self.is_suspect = True
        written = os.pwritev(
            self._descriptors[self._current],
            (_PREFIX.pack(_MARK, checksum), header, head, *pieces, _END),
            self._end,
        )
        if written != size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end += size - len(_END)
        self.is_suspect = False

    def _grow(self, size: int) -> None:
        """Make the current file longer, for a record of this size and for those that follow."""
        before = self._sizes[self._current]
        wanted = max(self._end + size, min(self._end + GROWTH_BYTES, SEGMENT_BYTES))
        # Without it the record is still written: if the disk is nearly full, or not on Linux.
        with suppress(OSError, AttributeError):
            # Where the file system cannot do this (ext3, NFS 3), the C library writes into each block. Those
            # 256 writes must not be synchronous: they took 0.4 to 2.6 s, and they take 4 ms.
            descriptor = os.open(self.files[self._current], os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(descriptor, before, wanted - before)
            finally:
                os.close(descriptor)
        self._sizes[self._current] = wanted

    def use_other_file(self) -> None:
        """Everything in the other file is in the database. It is written from its beginning."""
        self._current = 1 - self._current
        self._end = 0

    def start_again(self) -> None:
        """Everything is in the database."""
        self._end = 0


def _opened(file: Path) -> int:
    # A write returns when it is durable. One system call instead of two: after each one, the thread waits for
    # the interpreter's lock.
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_DSYNC | os.O_CLOEXEC, 0o600)
