"""What the machines remember of each message that a partition was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from hypothesis import strategies as st

from bendybus.domain.commands import (
    Abandon,
    Command,
    Complete,
    DeadLetter,
    Defer,
    Release,
)
from bendybus.domain.messages import Amendment, Message, MessageState, Origin, SubQueue
from bendybus.domain.session_commands import (
    AcceptSession,
    SessionLock,
)
from bendybus.names import Instant, LockToken, PartitionNumber, SequenceNumber, SessionId
from bendybus.session_ids import session_key

Settlement: TypeAlias = Complete | Abandon | Release | Defer | DeadLetter

PARTITION: Final = PartitionNumber(3)
SUBQUEUES: Final = st.sampled_from(
    [SubQueue.MAIN, SubQueue.MAIN, SubQueue.MAIN, SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER]
)
UNLOCKED: Final = Instant(0)
UNKNOWN: Final = LockToken(b"never granted :-)")
# The empty string names a session like any other.
SESSIONS: Final = [SessionId("a"), SessionId("b"), SessionId("")]
NEVER_HELD: Final = SessionLock(SessionId("a"), UNKNOWN, session_key("a"))
MAIN, DEAD = SubQueue.MAIN, SubQueue.DEAD_LETTER


def is_handover(command: Command, lock: SessionLock) -> bool:
    """Whether the command takes the session from whoever holds this lock."""
    return (
        isinstance(command, AcceptSession)
        and command.handover is not None
        and command.handover == lock.handover
    )


@dataclass
class Record:
    """A message in the model; also, with no lock, a row in the store."""

    number: SequenceNumber
    size: int
    expires_at: Instant | None
    session: SessionId | None = None
    subqueue: SubQueue = MAIN
    state: MessageState = MessageState.ACTIVE
    delivery_count: int = 0
    amendment: Amendment | None = None
    due: Instant | None = None
    """Of a scheduled message alone."""
    enqueued: Instant | None = None
    """Of all others."""
    hops: int = 0
    ticket: SequenceNumber | None = None
    """The number that is confirmed when this message is, where that is not its own."""
    confirmed: bool = False
    token: LockToken | None = None
    until: Instant = UNLOCKED

    def available(self, subqueue: SubQueue) -> bool:
        active = self.state is MessageState.ACTIVE
        return self.confirmed and active and self.token is None and self.subqueue is subqueue

    def may_expire(self, now: Instant) -> bool:
        return self.available(MAIN) and self.expires_at is not None and self.expires_at <= now


def row(message: Message) -> Record:
    scheduled = message.state is MessageState.SCHEDULED
    return Record(
        message.sequence_number,
        message.size,
        message.expires_at,
        message.session_id,
        message.subqueue,
        message.state,
        message.delivery_count,
        message.amendment,
        message.enqueued_at if scheduled else None,
        None if scheduled else message.enqueued_at,
        0 if message.origin is None else message.origin.hops,
    )


def from_row(stored: Record) -> Message:
    message = Message(None, size=stored.size, expires_at=stored.expires_at, session_id=stored.session)
    message.sequence_number, message.subqueue, message.state = stored.number, stored.subqueue, stored.state
    message.delivery_count, message.amendment = stored.delivery_count, stored.amendment
    message.enqueued_at = stored.due or stored.enqueued or UNLOCKED
    if stored.hops:
        message.origin = Origin(SequenceNumber(0), hops=stored.hops)
    return message


def numbers(messages: Iterable[Message]) -> list[SequenceNumber]:
    return [message.sequence_number for message in messages]
