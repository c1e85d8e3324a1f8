"""Passes on commands, sessions and messages that wait for a partition when the partition changes its owner.

Each of them waits for the next owner as it waited for the former one. The owner of each store: ownership.py.
"""

from __future__ import annotations

from bendybus.broker.detached_sessions import DetachedSession
from bendybus.broker.host import Host, ignore
from bendybus.broker.mailbox import OnReply
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.partition_port import PartitionPort
from bendybus.cluster.asked import AnswerTo
from bendybus.cluster.items import LOCAL_COMMANDS
from bendybus.cluster.lending import LentSession
from bendybus.cluster.remote import RemotePartition, RemoteQueuePartition
from bendybus.domain.commands import Command, Peek, Release
from bendybus.domain.messages import SubQueue
from bendybus.errors import PartitionMoved

__all__ = ["pass_on"]


def pass_on(former: PartitionPort, port: PartitionPort, *, kept: bool) -> None:
    """Commands that waited for the former owner wait for the next one. `kept`: sessions continue."""
    assert isinstance(former, Host | RemotePartition), "there are no others"
    left = former.give_up(lambda command, done: _submit(former.current, command, done))
    if isinstance(former, RemotePartition) and isinstance(port, RemotePartition):
        port.wait_behind(former)
    if left.unsent:
        # Before anything else is received, so that they are received first.
        _submit(port, Release(left.unsent), ignore)
    for command, done in left.mailbox:
        _submit(port, command, done)
    for lock, holder in left.sessions:
        if not kept or (isinstance(holder, DetachedSession) and isinstance(port, RemotePartition)):
            # The next owner keeps a detached session. Requests that wait in it go there.
            holder.lost()
        elif isinstance(holder, LentSession):
            # The broker of the receiver keeps the session, and the next owner lends it.
            holder.pass_away()
        elif isinstance(port, PartitionHost) or (
            isinstance(port, RemoteQueuePartition) and port.keeps_sessions
        ):
            port.hold_session(lock, holder)
            holder.wake()
        else:
            holder.lost()


def _submit(port: PartitionPort, command: Command, done: OnReply) -> None:
    if isinstance(done, AnswerTo) or _is_for_one_owner(command):
        done(PartitionMoved(f"Partition {port.number} of '{port.path}' has another owner now."))
    else:
        port.submit(command, done)


def _is_for_one_owner(command: Command) -> bool:
    """Whether the command continues work of the former owner, which the next one begins again.

    This is so even if both are this broker. Above all, two forwarders must not work with one outbox: it has
    messages whose posting is not durable yet, and whose numbers may still be given to others.
    """
    return type(command) in LOCAL_COMMANDS or (
        isinstance(command, Peek) and command.subqueue is SubQueue.OUTBOX
    )
