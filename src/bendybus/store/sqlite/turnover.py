"""Whether messages are removed soon after they were stored. The journal saves work only in this case.

The journal keeps a message out of the database if it is removed before a few megabytes more are stored.
Behind a backlog, or while nothing is received, messages stay longer, and the journal would only be an
additional write. How the result is used: commit_path.py.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bendybus.store.sqlite.records import CommitRecord

__all__ = ["Turnover"]

# As much as is written after a message before it can go to the database (pending.py).
WINDOW_BYTES: Final = 12 << 20
# A decision is made each time a sixth of it is stored. While messages are sent and received at once, about a
# megabyte is on its way, so most of these are removed, even if the queue was empty before. When a backlog
# begins, about this much is written twice.
DECISIONS: Final = 6
# After this many messages, a decision is made earlier if it is clear. If none was removed while this much was
# stored, and none before, a backlog begins: a queue that is emptied as fast as it is filled has removals by
# then, unless its messages are large. If there were removals before, the receivers may only be a little late.
# If at least as many were removed soon as were stored, the backlog is gone.
CLEAR_MESSAGES: Final = 100
BACKLOG_BYTES: Final = 512 << 10
# With small commits, a mark for each of them would be too many.
MARKS: Final = 64


class Turnover:
    """The turnover of one store."""

    __slots__ = ("_bytes", "_decided_at", "_flows", "_marks", "_soon", "_stored", "is_low")

    def __init__(self) -> None:
        self._bytes = 0
        """Stored so far."""
        self._marks: deque[tuple[int, int]] = deque()
        """How much was stored then, and the first id that followed, for the last `WINDOW_BYTES`."""
        self._stored = 0
        """Messages stored since the last decision."""
        self._soon = 0
        """Messages removed since then that were stored within the last `WINDOW_BYTES`."""
        self._decided_at = 0
        """How much was stored then."""
        self._flows = False
        """Whether messages were removed soon before the last decision."""
        self.is_low = False
        """Whether most messages stay."""

    def note(self, record: CommitRecord) -> None:
        """This commit is durable."""
        request = record.request
        if request.removed and self._marks:
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
        if self._bytes - self._decided_at >= WINDOW_BYTES // DECISIONS or self._is_clear:
            self.is_low = self._soon * 2 < self._stored
            self._flows = self._soon > 0
            self._stored = self._soon = 0
            self._decided_at = self._bytes

    @property
    def _is_clear(self) -> bool:
        """Whether what was counted since the last decision already contradicts it."""
        if self._stored < CLEAR_MESSAGES:
            return False
        if self.is_low:
            return self._soon >= self._stored
        return not self._soon and not self._flows and self._bytes - self._decided_at >= BACKLOG_BYTES
