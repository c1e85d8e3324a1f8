"""Commands of another broker: their replies, and messages of one frame that are enqueued together.

A frame contains the sends of many clients in one turn: for each partition, a few messages of each client. A
command with one message costs a partition almost as much as one with a hundred, so the messages of a frame
are combined into one command. If it is refused, the original commands are tried one by one, before anything
else reaches the partition, so that a client is not affected by the messages of another.

In the same way, a command with several deliveries of one client is taken apart if it is refused. Only the
owner can do that in time: when the other broker learns of the refusal, it has sent later messages.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bendybus.broker.host import Host
from bendybus.broker.mailbox import OnReply
from bendybus.broker.partition_host import PartitionHost
from bendybus.cluster.new_messages import enqueues_only
from bendybus.domain.commands import Command, Enqueue, Enqueued, EnqueuedApart, Reply
from bendybus.domain.messages import Message, MessageState
from bendybus.errors import BrokerError, InvalidOperation, QuotaExceeded
from bendybus.names import SequenceNumber

__all__ = ["AnswerTo", "Gathering", "taken_apart"]


class AnswerTo:
    """The reply to a command of another broker.

    If the partition passes on while the command waits, the other broker is told, and sends it to the next
    owner itself: so its commands stay in order, and the next owner knows who holds a session.
    """

    __slots__ = ("_answer",)

    def __init__(self, answer: OnReply) -> None:
        self._answer = answer

    def __call__(self, reply: Reply | BrokerError) -> None:
        self._answer(reply)


class Gathering:
    """The messages of the frame that is being read."""

    def __init__(self) -> None:
        self._by_host: dict[PartitionHost, list[tuple[Enqueue, AnswerTo]]] = {}

    def submit(self, host: Host[Any], command: Command, done: AnswerTo) -> None:
        """`host.submit`, at the end of the frame if the command may wait for it."""
        if isinstance(host, PartitionHost):
            if enqueues_only(command):
                self._by_host.setdefault(host, []).append((command, done))
                return
            if host in self._by_host:
                # Earlier messages must be enqueued first.
                _submit(host, self._by_host.pop(host))
        host.submit(command, done)

    def submit_all(self) -> None:
        """The frame has ended."""
        by_host, self._by_host = self._by_host, {}
        for host, gathered in by_host.items():
            _submit(host, gathered)


def _submit(host: PartitionHost, gathered: list[tuple[Enqueue, AnswerTo]]) -> None:
    if len(gathered) == 1:
        host.submit(*gathered[0])
        return
    messages = [message for command, _ in gathered for message in command.messages]
    host.submit(Enqueue(messages), AnswerTo(partial(_replied, host, gathered)))


def _replied(
    host: PartitionHost, gathered: list[tuple[Enqueue, AnswerTo]], reply: Reply | BrokerError
) -> None:
    if isinstance(reply, QuotaExceeded | InvalidOperation):
        # Together they are too much, or one of them lacks a session. Nothing was enqueued.
        for command, done in gathered:
            host.submit(command, done)
        return
    if not isinstance(reply, Enqueued):
        for _, done in gathered:
            done(reply)
        return
    first = reply.first
    for command, done in gathered:
        messages = command.messages
        scheduled = reply.scheduled and any(map(_is_scheduled, messages))
        done(Enqueued(first, len(messages), scheduled))
        first = SequenceNumber(first + len(messages))


def taken_apart(host: Host[Any], command: Enqueue, done: AnswerTo) -> AnswerTo:
    """The answer to a command with several deliveries. If it is refused, each of them is tried alone."""
    return AnswerTo(partial(_tried, host, command, done))


def _tried(host: Host[Any], command: Enqueue, done: AnswerTo, reply: Reply | BrokerError) -> None:
    if not isinstance(reply, QuotaExceeded | InvalidOperation):
        done(reply)
        return
    parts = _deliveries_of(command)
    refused: dict[int, BrokerError] = {}
    unanswered = set(range(len(parts)))

    def answered(index: int, reply: Reply | BrokerError) -> None:
        unanswered.discard(index)
        if isinstance(reply, BrokerError):
            refused[index] = reply
        if not unanswered:
            done(EnqueuedApart(refused))

    for index, part in enumerate(parts):
        host.submit(part, AnswerTo(partial(answered, index)))


def _deliveries_of(command: Enqueue) -> list[Enqueue]:
    parts: list[Enqueue] = []
    start = 0
    for count in command.deliveries:
        own = slice(start, start + count)
        start += count
        identities = None if command.identities is None else command.identities[own]
        parts.append(Enqueue(command.messages[own], identities, destination=command.destination))
    assert start == len(command.messages), "each message is part of one delivery"
    return parts


def _is_scheduled(message: Message) -> bool:
    return message.state is MessageState.SCHEDULED
