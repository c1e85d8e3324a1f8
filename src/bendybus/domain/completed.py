"""Completed messages that are kept, so that they can be put back into the queue (B-07).

An entity with `keep_completed_s` keeps what receivers have completed, or received and deleted, in a sub-queue
that no receiver can access. Messages wait there in the order of their numbers, like any others. They are
forgotten in the order of completion, when their time is over or when there is no more room. Dead letters are
not kept.

A message that is put back is moved, never copied: it is kept here or it is in the queue. It gets the next
sequence number, because numbers below it may have been read as final (handlers/ranges.py), and waits to be
confirmed under it like a scheduled message that is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias

from bendybus.domain.changes import Changes
from bendybus.domain.commands import Enqueued
from bendybus.domain.expiry import NEVER
from bendybus.domain.intake import Intake
from bendybus.domain.locks import lock_ended
from bendybus.domain.messages import Amendment, Message, MessageState, SubQueue
from bendybus.domain.range_commands import Replay, Replayable
from bendybus.domain.run import Run
from bendybus.domain.stock import Stock
from bendybus.names import Instant
from bendybus.session_ids import OneSession

__all__ = ["KEPT_BYTES_MAX", "KEPT_MAX", "CompletedMessages", "in_times"]

# For each partition, in addition to the size of the partition itself. A kept message takes about 300 bytes of
# memory.
KEPT_MAX: Final = 500_000
KEPT_BYTES_MAX: Final = 1 << 30

# Entries of messages that are not kept any more, beyond as many as there are kept messages. Purges and
# replays leave them behind, and they keep the messages in memory.
STALE_MAX: Final = 1000

# About 10 ms of work for one tick; the next tick continues.
FORGOTTEN_AT_ONCE_MAX: Final = 5000

# What is due is forgotten once a second and not with every tick: fewer commits.
FORGETTING_INTERVAL_MS: Final = 1000

_MAIN: Final = SubQueue.MAIN
_COMPLETED: Final = SubQueue.COMPLETED

_Passes: TypeAlias = Callable[[Message], bool]


class CompletedMessages:
    __slots__ = ("_in_order", "_intake", "_rests_until", "_stock", "kept_max")

    def __init__(self, stock: Stock, intake: Intake) -> None:
        self._stock = stock
        self._intake = intake
        self._in_order: deque[tuple[Instant, Message]] = deque()
        """When each was completed. Entries of messages that are not kept any more stay for a while."""
        self._rests_until = Instant(0)
        self.kept_max = KEPT_MAX

    def restore(self) -> None:
        """Start with the messages that are on the shelf."""
        kept = [(_completed_at(message), message) for message in self._run]
        kept.sort(key=lambda each: each[0])
        self._in_order = deque(kept)

    @property
    def _run(self) -> Run:
        run = self._stock.shelves[_COMPLETED].available
        assert isinstance(run, Run), "sub-queues have no sessions"
        return run

    # -- completing ---------------------------------------------------------------

    def finish(self, messages: list[Message], at: Instant, changes: Changes) -> None:
        """These messages, which are on no shelf, have been processed: remove them, or keep them."""
        if not self._stock.description.keep_completed_s:
            self._stock.remove(messages, changes)
            return
        kept = [message for message in messages if message.subqueue is _MAIN]
        if len(kept) < len(messages):
            self._stock.remove([each for each in messages if each.subqueue is not _MAIN], changes)
        amendment = Amendment(completed_at=at)
        for message in kept:
            lock_ended(message)
            message.state = MessageState.ACTIVE
            earlier = message.amendment
            message.amendment = amendment if earlier is None else replace(earlier, completed_at=at)
            self._stock.move(message, _COMPLETED)
            self._in_order.append((at, message))
        self._run.insert(kept)
        changes.update(kept)
        self._make_room(changes)
        if len(self._in_order) > 2 * len(self._run) + STALE_MAX:
            self._in_order = deque(filter(self._is_current, self._in_order))

    def given(self, messages: list[Message]) -> list[Message]:
        """What a receiver gets of messages that `finish` will take: those that are kept change."""
        return list(map(copy, messages)) if self._stock.description.keep_completed_s else messages

    def _make_room(self, changes: Changes) -> None:
        """Forget the messages that were completed first, until the others fit."""
        shelf, run = self._stock.shelves[_COMPLETED], self._run
        quota = min(self._intake.quota_bytes, KEPT_BYTES_MAX)
        if shelf.size_bytes <= quota and len(run) <= self.kept_max:
            return
        excess_bytes, excess = shelf.size_bytes - quota, len(run) - self.kept_max
        gone: list[Message] = []
        for message in self._oldest(NEVER):
            gone.append(message)
            excess_bytes -= message.size
            excess -= 1
            if excess_bytes <= 0 and excess <= 0:
                break
        self._stock.tally.kept_too_short += len(gone)
        self._forget(gone, changes)

    # -- forgetting ---------------------------------------------------------------

    @property
    def next_forgetting(self) -> Instant:
        """Nothing has to be forgotten before this."""
        if not self._in_order:
            return NEVER
        return max(Instant(self._in_order[0][0] + self._keep_ms), self._rests_until)

    def forget_old(self, at: Instant, changes: Changes) -> None:
        """Forget the messages whose time is over, or the first thousands of them."""
        if at < self.next_forgetting:
            return
        gone = list(islice(self._oldest(Instant(at - self._keep_ms)), FORGOTTEN_AT_ONCE_MAX))
        if len(gone) < FORGOTTEN_AT_ONCE_MAX:
            self._rests_until = Instant(at + FORGETTING_INTERVAL_MS)
        self._forget(gone, changes)

    @property
    def _keep_ms(self) -> int:
        return int(self._stock.description.keep_completed_s * 1000)

    def _oldest(self, until: Instant) -> Iterator[Message]:
        """The kept messages in the order of their completion, up to this time. Takes them from that order."""
        entries = self._in_order
        while entries and entries[0][0] <= until:
            entry = entries.popleft()
            if self._is_current(entry):
                yield entry[1]

    def _is_current(self, entry: tuple[Instant, Message]) -> bool:
        """Whether the message is still kept, and was not completed again since."""
        completed_at, message = entry
        return self._is_kept(message) and _completed_at(message) == completed_at

    def _is_kept(self, message: Message) -> bool:
        return message.subqueue is _COMPLETED and self._run.find(message.sequence_number) is message

    def _forget(self, messages: list[Message], changes: Changes) -> None:
        self._run.take_these(message.sequence_number for message in messages)
        self._stock.remove(messages, changes)

    # -- putting back -------------------------------------------------------------

    def put_back(self, command: Replay, at: Instant, changes: Changes) -> Enqueued | Replayable:
        passes = self._filter(command)
        candidates: Iterable[Message] = self._run
        if command.numbers is not None:
            found = (self._run.find(number) for number in sorted(set(command.numbers)))
            candidates = (message for message in found if message is not None)
        if command.dry_run:
            return Replayable(sum(map(passes, candidates)))
        chosen = list(islice(filter(passes, candidates), max(0, command.count)))
        arriving_bytes = sum(message.size for message in chosen)
        self._intake.refuse_beyond_quota(self._stock.size_bytes, arriving_bytes)
        self._run.take_these(message.sequence_number for message in chosen)
        for message in chosen:
            self._stock.move(message, _MAIN)
            message.delivery_count = 0
            message.amendment = _without_completion(message.amendment)
        return self._intake.enqueue_again(chosen, at, changes)

    def _filter(self, command: Replay) -> _Passes:
        exact = self._stock.description.exact_keys
        session = None if command.session_id is None else OneSession(command.session_id, exact=exact)

        def passes(message: Message) -> bool:
            return in_times(command, message) and (session is None or session.includes(message.session_id))

        return passes


def in_times(command: Replay, message: Message) -> bool:
    """Whether a message is kept and was completed and enqueued in the times that the command names."""
    completed_at = None if message.amendment is None else message.amendment.completed_at
    return completed_at is not None and (
        (command.completed_from is None or completed_at >= command.completed_from)
        and (command.completed_before is None or completed_at < command.completed_before)
        and (command.enqueued_from is None or message.enqueued_at >= command.enqueued_from)
        and (command.enqueued_before is None or message.enqueued_at < command.enqueued_before)
    )


def _without_completion(amendment: Amendment | None) -> Amendment | None:
    """What settlements before the last one have added."""
    if amendment is None or amendment == Amendment(completed_at=amendment.completed_at):
        return None
    return replace(amendment, completed_at=None)


def _completed_at(message: Message) -> Instant:
    completed_at = None if message.amendment is None else message.amendment.completed_at
    assert completed_at is not None, f"{message} is kept and was never completed"
    return completed_at
