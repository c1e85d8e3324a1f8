"""Commits that the journal has and the database does not have yet.

The records of the journal's older file are written to the database when the newer file is full. By then, most
messages have been received and removed, and the database need not see them: a record is *superseded* if all
its messages are removed. Until then, payloads and session states are read from here. What a superseded record
had stored is forgotten at once, so memory holds only what is on its way.

Changed by the writer's thread, and with the lock of the writer's connection by others. The methods that
return payloads, ids or states can be called at any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from bendybus.store.encoding import CommitRequest
from bendybus.store.protocol import PartitionChanges
from bendybus.store.sqlite.records import CommitRecord, Removal

__all__ = ["Pending"]

# If nothing is removed, the database takes up to 180 ms for a file, and commits wait. So it gets the file in
# parts, while the second half of the next file is written. With parts of 2 MB, senders waited for each one
# and were slower by a tenth.
PARTS: Final = 50


class Pending:
    __slots__ = (
        "_deletable",
        "_firsts",
        "_gone",
        "_in_file",
        "_older",
        "_parts",
        "_payloads",
        "_records",
        "_released",
        "_states",
        "deletable",
        "removed_before",
    )

    def __init__(self) -> None:
        self._records: list[CommitRecord] = []
        self._firsts: list[int] = []
        """The first id of each."""
        self._older = 0
        """How many of them are in the older file."""
        self._in_file = 0
        """How many were there when that file was full."""
        self._parts = 0
        """How many parts of it were due so far."""
        self._payloads: dict[int, bytes] = {}
        self._gone: set[int] = set()
        """Messages that these records remove."""
        self._released: set[int] = set()
        """Bodies of such messages that others may share."""
        self._states: dict[tuple[int, str], tuple[int, bytes | None]] = {}
        """Partition and session -> the record that sets its state, and the state."""
        self.removed_before = 0
        """How many messages they remove that are in the database."""
        self._deletable: list[CommitRecord] = []
        """Records of which these messages can be deleted before earlier records are written."""
        self.deletable = 0
        """How many messages that are."""

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def all(self) -> Sequence[CommitRecord]:
        return self._records

    @property
    def older(self) -> Sequence[CommitRecord]:
        """The records of the older file."""
        return self._records[: self._older]

    def add(self, record: CommitRecord, changes: Sequence[PartitionChanges]) -> None:
        """A commit is in the journal. Its messages have their ids."""
        self._register(record)
        self._remove(record)
        first, payloads = record.request.first, self._payloads
        for change in changes if record.count else ():
            for message in change.stored:
                body = message.body_row_id
                # A body that is shared may be stored already.
                if message.payload is not None and body >= first:
                    payloads.setdefault(body, message.payload)
        for key, session_id, _, state in record.session_states:
            self._states[key, session_id] = record.number, state

    def _register(self, record: CommitRecord) -> None:
        request = record.request
        self._records.append(record)
        self._firsts.append(request.first)
        for row in request.rows:
            body, origin = row[6], row[7]
            if origin is not None and body < request.first:
                stored_by = self._find(body)
                if stored_by is not None:
                    stored_by.is_shared = True

    def _remove(self, record: CommitRecord) -> None:
        """Note which records have the messages that this one removes."""
        removed = record.request.removed
        stored_by: CommitRecord | None = None
        ids = record.removed_before
        for row_id in removed:
            # Nearly always the same record as for the message before.
            if stored_by is None or not stored_by.request.first <= row_id < stored_by.end:
                stored_by = self._find(row_id)
                if stored_by is None:
                    ids = record.removed_before
                else:
                    ids = []
                    record.removals.append(Removal(stored_by, ids))
            ids.append(row_id)
            if stored_by is not None:
                stored_by.gone.add(row_id)
        self.removed_before += len(record.removed_before)
        # Whether a body can go depends on what earlier records store.
        if record.removed_before and not record.request.released:
            self._deletable.append(record)
            self.deletable += len(record.removed_before)
        self._gone.update(removed)
        self._released.update(record.request.released)
        for removal in record.removals:
            stored_by = removal.stored_by
            # Once, although it is here several times if its messages were removed in turns with others.
            if stored_by.count and stored_by.is_superseded:
                self._forget_messages(stored_by)

    def _forget_messages(self, record: CommitRecord) -> None:
        """Free the memory of messages that the database will never get."""
        payloads = self._payloads
        for row_id in range(record.request.first, record.end):
            payloads.pop(row_id, None)
        self._gone.difference_update(record.gone)
        record.forget_messages()

    def _find(self, row_id: int) -> CommitRecord | None:
        """The record that has assigned this id."""
        index = bisect_right(self._firsts, row_id) - 1
        if index < 0 or row_id >= self._records[index].end:
            return None
        return self._records[index]

    def is_independent(self, record: CommitRecord, requests: Sequence[CommitRequest]) -> bool:
        """Whether a commit can be written to the database before those that are pending.

        Nothing that it changes is pending, so the result is the same. `requests`: those of the record and of
        what does not fit into it.
        """
        if record.forgotten or record.session_states or record.transferred:
            return False
        first = record.request.first
        for request in requests:
            if request.released or any(row[0] < first for row in request.updated):
                return False
            # A body that is stored already may be pending.
            if any(row[7] is not None and row[6] < first for row in request.rows):
                return False
            if request.removed and self._has_any(request.removed):
                return False
        return True

    def _has_any(self, row_ids: Sequence[int]) -> bool:
        """Whether one of these messages is stored by a pending record."""
        if not self._records or max(row_ids) < self._firsts[0] or min(row_ids) >= self._records[-1].end:
            return False
        return any(self._find(row_id) is not None for row_id in row_ids)

    def deletable_messages(self) -> list[int]:
        """Messages in the database that can be deleted now. `deleted` follows."""
        return [row_id for record in self._deletable for row_id in record.removed_before]

    def deleted(self) -> None:
        """The database does not have those messages any more."""
        for record in self._deletable:
            record.removed_before = []
        self.removed_before -= self.deletable
        self._deletable, self.deletable = [], 0

    def begin_file(self) -> None:
        """The records so far are in the older file from now on."""
        self._older = self._in_file = len(self._records)
        self._parts = 0

    def due(self, used: float) -> int:
        """How many of the oldest records to write now. `used`: the share of the newer file that is used.

        Zero if the database has nothing to store for them: they can wait until the newer file is full.
        """
        parts = int((2 * used - 1) * PARTS)
        if parts <= self._parts:
            return 0
        self._parts = parts
        count = max(0, self._older - self._in_file * (PARTS - parts) // PARTS)
        for record in self._records[:count]:
            if record.remembered or not record.is_superseded:
                return count
        return 0

    def count_within(self, size: int) -> int:
        """How many of the oldest records store messages of about this size together. At least one, if any."""
        for position, record in enumerate(self._records, 1):
            if record.count:
                size -= record.request.offset
            if size <= 0:
                return position
        return len(self._records)

    def written(self, count: int) -> None:
        """The database has the oldest records now."""
        written = self._records[:count]
        del self._records[:count]
        del self._firsts[:count]
        self._older = max(0, self._older - count)
        if self._deletable:
            last = written[-1].number
            self._deletable = [record for record in self._deletable if record.number > last]
            self.deletable = sum([len(record.removed_before) for record in self._deletable])
        for record in written:
            request = record.request
            self.removed_before -= len(record.removed_before)
            self._gone.difference_update(request.removed)
            self._released.difference_update(request.released)
            if record.count:
                for row_id in range(request.first, record.end):
                    self._payloads.pop(row_id, None)
            for key, session_id, _, _ in record.session_states:
                found = self._states.get((key, session_id))
                if found is not None and found[0] <= record.number:
                    del self._states[key, session_id]
            # A pending record may still refer to this one, and must not keep those before it in memory.
            record.removals = []

    def payload(self, row_id: int) -> bytes | None:
        """A payload that the database may not have; None if there is none here."""
        return self._payloads.get(row_id)

    def payloads(self, row_ids: Sequence[int]) -> dict[int, bytes]:
        """Those of these payloads that the database may not have."""
        payloads = self._payloads
        if not payloads:
            return {}
        found = [(row_id, payloads.get(row_id)) for row_id in row_ids]
        return {row_id: payload for row_id, payload in found if payload is not None}

    def gone_among(self, row_ids: Sequence[int]) -> set[int]:
        """Those of these messages that are removed, although the database may have them."""
        return self._gone.intersection(row_ids)

    def releases_some(self, row_ids: Sequence[int]) -> bool:
        """Whether a message is removed that has one of these bodies."""
        return not self._released.isdisjoint(row_ids)

    def session_state(self, key: int, session_id: str) -> tuple[int, bytes | None] | None:
        """The record that sets the state of a session, and the state; None if there is none here."""
        return self._states.get((key, session_id))
