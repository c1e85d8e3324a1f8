"""A log of commands: what was asked of a partition, to be asked of another one."""

from __future__ import annotations

import copyreg
from copy import deepcopy
from dataclasses import fields
from typing import Any

from bendybus.domain.commands import Command
from bendybus.domain.messages import Amendment, Message, Origin, Posting
from bendybus.domain.topic import TopicPartition
from bendybus.errors import RequestError
from bendybus.names import Instant, SequenceNumber

# `deepcopy` makes objects without calling `__init__`, which a compiled class does not allow.
MESSAGE_FIELDS = (
    *("amendment", "delivery_count", "enqueued_at", "expires_at", "lock_token", "locked_until", "origin"),
    *("payload", "row_id", "sequence_number", "session_id", "size", "state", "subqueue"),
)


def _new_message(values: dict[str, Any]) -> Message:
    message = Message(None, 0)
    for name, value in values.items():
        setattr(message, name, value)
    return message


def _new_origin(sequence_number: SequenceNumber, hops: int, body: int) -> Origin:
    return Origin(sequence_number, hops=hops, body=body)


copyreg.pickle(Message, lambda it: (_new_message, ({name: getattr(it, name) for name in MESSAGE_FIELDS},)))
copyreg.pickle(Origin, lambda it: (_new_origin, (it.sequence_number, it.hops, it.body)))
for _frozen in (Amendment, Posting):
    copyreg.pickle(_frozen, lambda it: (type(it), tuple(getattr(it, each.name) for each in fields(it))))


class CommandLog:
    """Commands as they were before they were applied: applying a command changes its messages."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, Instant | None]] = []

    def command(self, command: Command, at: Instant) -> None:
        self._entries.append((deepcopy(command), at))

    def description(self, description: Any) -> None:
        """The entity was updated."""
        self._entries.append((description, None))

    def replay(self, partition: Any) -> None:
        for entry, at in self._entries:
            if at is None:
                partition.description = entry
                continue
            try:
                partition.apply(entry, at)
            except RequestError:
                # It was refused the first time, too.
                continue


def state_of(partition: Any) -> tuple[Any, ...]:
    """Everything that decides what a partition does next, comparable between two partitions."""
    intake = partition._intake if isinstance(partition, TopicPartition) else partition._parts.intake
    waiting = [*intake.awaiting_confirmation(), *intake._schedule.arriving]
    history = intake._history
    return (
        sorted(map(_facts, partition.confirmed())),
        sorted(map(_facts, waiting)),
        partition.next_sequence_number,
        partition.next_deadline(),
        partition.size_bytes,
        intake._transferred,
        None if history is None else dict(history._accepted),
    )


def _facts(message: Message) -> tuple[Any, ...]:
    return (
        message.sequence_number,
        message.size,
        message.state,
        message.subqueue,
        message.delivery_count,
        message.enqueued_at,
        message.expires_at or 0,
        message.session_id or "",
        message.lock_token or b"",
        message.locked_until,
        repr(message.amendment),
    )
