"""The handlers of a partition's commands: a table from the type of a command to its handler.

A handler gets the parts of the partition, the command, the time, and the record of changes that becomes the
effects. A handler that raises has changed nothing, so every check comes before the first change.
Each module here contains the handlers of one subject. A command without an entry cannot be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from bendybus.domain import commands, range_commands, session_commands
from bendybus.domain.commands import Reply
from bendybus.domain.handlers import purging, ranges, receiving, sending, sessions, settling, ticks, transfers

__all__ = ["HANDLERS", "Handler"]

# The parameters are `Parts`, the command of the key's type, `Instant` and `Changes`.
Handler: TypeAlias = Callable[..., Reply]

HANDLERS: Final[dict[type[object], Handler]] = {
    commands.Enqueue: sending.enqueue,
    commands.Reserve: sending.reserve,
    commands.Confirm: sending.confirm,
    commands.CancelScheduled: sending.cancel_scheduled,
    commands.Publish: sending.publish,
    commands.Lock: receiving.lock,
    commands.LockThese: receiving.lock_these,
    commands.Receive: receiving.receive,
    commands.LockDeferred: receiving.lock_deferred,
    commands.ReceiveDeferred: receiving.receive_deferred,
    commands.Peek: receiving.peek,
    commands.DeleteOldest: receiving.delete_oldest,
    commands.Complete: settling.complete,
    commands.Abandon: settling.abandon,
    commands.Release: settling.release,
    commands.LoseLocks: settling.lose_locks,
    commands.Defer: settling.defer,
    commands.DeadLetter: settling.dead_letter,
    commands.Renew: settling.renew,
    commands.Post: transfers.post,
    commands.Reassign: transfers.reassign,
    commands.Transferred: transfers.transferred,
    commands.Undeliverable: transfers.undeliverable,
    commands.Tick: ticks.tick,
    commands.MoveLockEnds: ticks.move_lock_ends,
    session_commands.AcceptSession: sessions.accept,
    session_commands.LockInSession: sessions.lock_messages,
    session_commands.LockInSessions: sessions.lock_in_sessions,
    session_commands.RenewSession: sessions.renew,
    session_commands.ReleaseSession: sessions.release,
    session_commands.SetSessionState: sessions.set_state,
    session_commands.FindSessionState: sessions.find_state,
    session_commands.ListSessions: sessions.list_sessions,
    range_commands.Survey: ranges.survey,
    range_commands.Browse: ranges.browse,
    range_commands.DiscardThrough: ranges.discard_through,
    range_commands.Discard: ranges.discard,
    range_commands.Purge: purging.purge,
    range_commands.Replay: settling.replay,
}
