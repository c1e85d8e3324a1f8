"""The effects of time: locks expire, messages expire, scheduled messages become due."""

from __future__ import annotations

from bendybus.domain.changes import Changes
from bendybus.domain.commands import Done, Enqueued, MoveLockEnds, Tick
from bendybus.domain.parts import Parts
from bendybus.names import Instant

__all__ = ["move_lock_ends", "tick"]


def tick(parts: Parts, command: Tick, at: Instant, changes: Changes) -> Enqueued | Done:
    stock, intake = parts.stock, parts.intake
    stock.end_locks(at, changes)
    stock.sweep(at, intake.awaiting_confirmation(), changes)
    intake.forget_identities(at, changes)
    parts.completed.forget_old(at, changes)
    return intake.activate(at, changes)


def move_lock_ends(parts: Parts, command: MoveLockEnds, at: Instant, changes: Changes) -> Done:
    parts.stock.move_lock_ends(command.by_ms)
    return Done()
