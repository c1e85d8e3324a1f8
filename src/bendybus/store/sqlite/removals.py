"""Removals that touch many pages: noted with the commit, and carried out later, many at a time.

Messages of one session, or of one key, are stored far apart if others were sent in between. Deleting a few
hundred of them writes as many pages, into the log and again into the file. So such a commit only notes their
ids, in one row (`removal`). When many have gathered, or when there is nothing else to do, their rows are
deleted in the order of their ids, some in each transaction. Then a page is written once for all of its
messages.

A message whose id is noted does not exist: `load` and `read` leave it out. New ids are higher than all that
are noted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from bendybus.store.encoding import to_json

__all__ = ["Removals", "are_far_apart"]

# Limits for rows whose messages are removed: how many, and about how much disk. With more rows, each page has
# more of them.
NOTED_MAX: Final = 50_000
NOTED_BYTES_MAX: Final = 64 * 1024 * 1024
# Deleted in one transaction: about 10 ms of the writer's time.
DELETED_AT_ONCE: Final = 2000

# The average distance between two messages is about twice the number of small messages in a page, and the
# whole span is more than is usually on its way. The pages of a smaller span are in the log anyway.
DISTANCE_MIN: Final = 16
SPAN_MIN: Final = 8192
COUNT_MIN: Final = 8


def are_far_apart(ids: Sequence[int]) -> bool:
    """Whether deleting these rows would touch nearly one page per row."""
    if len(ids) < COUNT_MIN:
        return False
    span = max(ids) - min(ids)
    return span >= SPAN_MIN and span >= DISTANCE_MIN * len(ids)


class Removals:
    """What is noted in one file. Used by the writer's thread, except for `among`."""

    __slots__ = ("_noted", "_noted_bytes", "_queries", "_through", "_under_way")

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._queries = queries
        self._noted: set[int] = set()
        self._noted_bytes = 0
        self._under_way: list[int] = []
        """The ids whose rows are being deleted, the next ones last."""
        self._through = 0
        """The last note that they come from."""

    def among(self, row_ids: Sequence[int]) -> set[int]:
        """Those of these messages that are removed and may still have their rows."""
        return self._noted.intersection(row_ids)

    def __bool__(self) -> bool:
        return bool(self._noted or self._under_way)

    def open(self, connection: sqlite3.Connection) -> None:
        """Called with a file that was just opened."""
        self._under_way = []
        self._noted = self.noted_in(connection)

    def noted_in(self, connection: sqlite3.Connection) -> set[int]:
        """What the file says. A commit whose outcome was unknown may have added a note."""
        return {row_id for _, ids in self._notes(connection) for row_id in ids}

    def _notes(self, connection: sqlite3.Connection) -> list[tuple[int, list[int]]]:
        return [(number, json.loads(ids)) for number, ids in connection.execute(self._queries["removals"])]

    def note(self, ids: Sequence[int], size_bytes: int) -> None:
        """A commit that notes these ids is durable."""
        self._noted.update(ids)
        self._noted_bytes += size_bytes

    @property
    def due(self) -> bool:
        """Whether enough ids are noted that some rows have to be deleted now."""
        if len(self._noted) >= NOTED_MAX or self._noted_bytes >= NOTED_BYTES_MAX:
            return True
        return bool(self._under_way)

    def delete_some(self, writer: sqlite3.Connection) -> None:
        """Delete the next rows. Called in a transaction; `deleted` or `open` follows it."""
        if not self._under_way:
            self._noted_bytes = 0
            notes = self._notes(writer)
            self._through = max((number for number, _ in notes), default=0)
            self._under_way = sorted((row_id for _, ids in notes for row_id in ids), reverse=True)
        share = to_json(self._under_way[-DELETED_AT_ONCE:])
        writer.execute(self._queries["delete_removed"], (share,))
        writer.execute(self._queries["delete_removed_bodies"], (share,))
        if len(self._under_way) <= DELETED_AT_ONCE:
            writer.execute(self._queries["forget_removals"], (self._through,))

    def deleted(self) -> None:
        """What `delete_some` did is durable."""
        self._noted.difference_update(self._under_way[-DELETED_AT_ONCE:])
        del self._under_way[-DELETED_AT_ONCE:]
