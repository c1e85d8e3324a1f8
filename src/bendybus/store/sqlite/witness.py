"""The witness of an SQLite file: which commit was acknowledged last, and which files were opened.

After a crash SQLite reads its log up to the first frame whose checksum is wrong, and silently drops what
follows. So each commit writes its number into the file, and a small file next to it, `NAME-witness`,
says up to which number commits were acknowledged. A file whose last commit has a lower number has lost some.

The witness is written after a commit is durable and is not synced: after a power failure it may be behind the
truth, never ahead of it. If the process is killed, it is as it was written. It is used by store.py and
catalog.py.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

from bendybus.errors import StoreCorrupted, StoreUnavailable

__all__ = ["CHECK_EVERY_S", "Witness", "log_of", "refuse_lost_commits"]

logger = logging.getLogger(__name__)

# Checking the files takes 10 us, but next to a busy loop each system call waits for the interpreter's
# lock, 5 ms or more. So the next check is due after this many times the duration of the last one, at the cost
# of a fiftieth of the writer's time. It is due after the first of these times at the earliest, since a check
# with each commit delays single messages, and after the second at the latest.
CHECK_COST_SHARE: Final = 50
CHECK_AFTER_S: Final = 0.005
CHECK_EVERY_S: Final = 0.25


def log_of(path: Path) -> Path:
    """SQLite's write-ahead log of a file."""
    return path.with_name(path.name + "-wal")


def refuse_lost_commits(path: Path, last_commit: Callable[[], int]) -> None:
    """Raise `StoreCorrupted` if commits after the last one in the file were acknowledged."""
    # The witness first: the file may be in use, and then commits continue between the two.
    acknowledged = _read(_witness_of(path))
    last = last_commit()
    if acknowledged is not None and last < acknowledged:
        raise StoreCorrupted(
            f"{path} ends before commit {acknowledged}, which was acknowledged; it has {last}. "
            "Its log is damaged, or an older copy was put in its place. Restore the file and its log, or "
            f"remove {_witness_of(path).name} to go on without the commits that are lost"
        )
    if acknowledged is None and last:
        logger.warning("%s has no readable witness file: lost commits cannot be detected", path)


class Witness:
    """The witness of an open file. Used by the writer's thread."""

    def __init__(self, path: Path, commits: int, others: Sequence[Path] = ()) -> None:
        """`commits`: how many commits the file has had. `others`: files other than its log that it needs."""
        self._path = path
        self.commits = commits
        self._noted = 0
        self._check_due_at = 0.0
        self._opened = {file: _identity(file) for file in (path, log_of(path), *others)}
        self._file: int | None = None
        try:
            self._file = os.open(_witness_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self.note()
            # Synced once, so that a power failure does not leave an empty file.
            os.fsync(self._file)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """To be called when the file itself is closed. Everything recorded is in the file then."""
        self.note()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        """A store must not fail because of its witness, which then lags behind and does no harm."""
        logger.warning(
            "%s: commits after %d are not recorded in the witness file: %s",
            self._path,
            self._noted,
            error.strerror,
        )
        self._close()

    @property
    def next_commit(self) -> int:
        """The number that the next commit writes into the file."""
        return self.commits + 1

    def committed(self) -> None:
        """A commit is durable and about to be acknowledged. Checks the files when it is time."""
        self.commits += 1
        began_at = monotonic()
        if began_at >= self._check_due_at:
            self.check()
            self.note()
            ended_at = monotonic()
            wait_s = min(max((ended_at - began_at) * CHECK_COST_SHARE, CHECK_AFTER_S), CHECK_EVERY_S)
            self._check_due_at = ended_at + wait_s

    def note(self) -> None:
        """Record the commits."""
        if self._file is None or (self._noted == self.commits and self.commits):
            return
        try:
            os.pwrite(self._file, _encoded(self.commits), 0)
        except OSError as error:
            self._give_up(error)
        else:
            self._noted = self.commits

    def check(self) -> None:
        """`StoreUnavailable` unless the files are the ones that were opened."""
        for file, opened in self._opened.items():
            found = _identity(file)
            if found is None:
                raise StoreUnavailable(
                    f"{file} is gone: it was deleted or moved while it was in use. "
                    "Nothing is created in its place"
                )
            if found != opened:
                raise StoreUnavailable(
                    f"{file} is not the file that was opened: another one was put in its place. "
                    "Restart the server to use it"
                )


def _witness_of(path: Path) -> Path:
    return path.with_name(path.name + "-witness")


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _encoded(commits: int) -> bytes:
    number = b"%020d" % commits
    return b"%s %08x\n" % (number, zlib.crc32(number))


def _read(file: Path) -> int | None:
    """The number of the last acknowledged commit; None if it is unknown."""
    try:
        content = file.read_bytes()
        commits = int(content[:20])
    except (FileNotFoundError, ValueError):
        return None
    return commits if content == _encoded(commits) else None
