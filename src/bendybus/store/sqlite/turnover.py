"""Whether messages are removed soon after they were stored. The journal saves work only in this case.

The journal keeps a message out of the database if it is removed before some megabytes more are stored.
Behind a backlog, or while nothing is received, messages stay longer, and the journal would only be an
additional write. How the result is used: commit_path.py.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bendybus.store.sqlite.records import CommitRecord

__all__ = ["Turnover"]

# A message that is removed before this much more is stored counts as removed soon: by then, it can be in the
# database (pending.py).
WINDOW_BYTES: Final = 12 << 20
# While the journal is used, a decision is made each time this much is stored. Until then, messages may simply
# be received a little later, as after a burst of sends. When a backlog begins, so much is written twice.
BACKLOG_BYTES: Final = 12 << 20
# While it is not used, a decision is made each time a sixth of the window is stored, or after this many
# messages, if at least as many were removed soon: then the backlog is gone.
DECISIONS: Final = 6
CLEAR_MESSAGES: Final = 100
# With small commits, a mark for each of them would be too many.
MARKS: Final = 64


class Turnover:
    """The turnover of one store."""

    __slots__ = ("_bytes", "_decided_at", "_marks", "_soon", "_stored", "is_low")

    def __init__(self) -> None:
        self._bytes = 0
        """Stored so far."""
        self._marks: deque[tuple[int, int]] = deque()
        """How much was stored then, and the first id that followed, for the last `WINDOW_BYTES`."""
        self._stored = 0
        """Messages stored since the last decision."""
        self._soon = 0
        """Messages removed since then that the database did not have. If the journal is not used: those that
        it would not have had, because they were stored within the last `WINDOW_BYTES`."""
        self._decided_at = 0
        """How much was stored then."""
        self.is_low = False
        """Whether most messages stay."""

    def note(self, record: CommitRecord) -> None:
        """This commit is durable."""
        request = record.request
        if not self.is_low:
            self._soon += sum([len(removal.ids) for removal in record.removals])
        elif request.removed and self._marks:
            recent = self._marks[0][1]
            self._soon += sum([row_id >= recent for row_id in request.removed])
        if not record.count:
            return
        marks = self._marks
        if not marks or self._bytes - marks[-1][0] >= WINDOW_BYTES // MARKS:
            marks.append((self._bytes, request.first))
        self._stored += record.count
        self._bytes += request.offset
        while len(marks) > 1 and marks[0][0] < self._bytes - WINDOW_BYTES:
            marks.popleft()
        if self._is_due:
            self._decide(is_low=self._soon * 2 < self._stored)

    def rest(self) -> None:
        """Nothing is stored or removed just now. What comes next has nothing to do with what was before."""
        self._decide(is_low=False)

    def _decide(self, *, is_low: bool) -> None:
        self.is_low = is_low
        self._stored = self._soon = 0
        self._decided_at = self._bytes

    @property
    def _is_due(self) -> bool:
        stored_bytes = self._bytes - self._decided_at
        if not self.is_low:
            return stored_bytes >= BACKLOG_BYTES
        if self._stored >= CLEAR_MESSAGES and self._soon >= self._stored:
            return True
        return stored_bytes >= WINDOW_BYTES // DECISIONS
