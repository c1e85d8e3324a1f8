"""What brokers say to each other: the items of a frame, and which commands and replies may cross.

An item is a small typed record. Commands and replies are those of the domain, encoded by frames.py. Their
numbers are part of the protocol: a number is never used again for something else.

    Ask, Commit, Read, LookUp, Call   are answered once, by Answer, Payloads, Figures, Returned or Refusal
    NewMessages, Stored               many requests and many answers of the most frequent kind
    Demand, SessionDemand, SelectiveDemand
                                      say how much the owner may give in all; Supply, SessionSupply and
                                      SelectiveSupply give it
    Watch                             is answered by News, once, whenever that is
    Serving, Owns, Status, SessionLost  tell what has changed at the owner
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias, get_args

import msgspec
from msgspec import Meta, Raw

from bendybus.domain import commands, range_commands, session_commands
from bendybus.domain.commands import Command, Reply
from bendybus.names import Instant, SequenceNumber, SessionId

__all__ = [
    "COMMANDS",
    "LOCAL_COMMANDS",
    "REPLIES",
    "Answer",
    "Ask",
    "Call",
    "Commit",
    "Demand",
    "Figures",
    "Hello",
    "Item",
    "LookUp",
    "NewMessages",
    "News",
    "Owns",
    "Payloads",
    "Ping",
    "Proof",
    "Read",
    "Refusal",
    "Returned",
    "SelectiveDemand",
    "SelectiveSupply",
    "SessionDemand",
    "SessionLost",
    "SessionSupply",
    "Serving",
    "Status",
    "Stored",
    "StoredApart",
    "Supply",
    "Watch",
    "kind_of",
    "requests_in",
]

# -- commands and replies ---------------------------------------------------------

COMMANDS: Final[dict[int, type]] = {
    1: commands.Enqueue,
    2: commands.Complete,
    3: commands.Abandon,
    4: commands.Release,
    5: commands.Defer,
    6: commands.DeadLetter,
    7: commands.Renew,
    8: commands.Peek,
    9: commands.Reserve,
    10: commands.CancelScheduled,
    11: commands.LockDeferred,
    12: commands.ReceiveDeferred,
    13: commands.DeleteOldest,
    14: session_commands.AcceptSession,
    15: session_commands.RenewSession,
    16: session_commands.ReleaseSession,
    17: session_commands.SetSessionState,
    18: session_commands.FindSessionState,
    19: session_commands.ListSessions,
    20: range_commands.Survey,
    21: range_commands.Browse,
    22: range_commands.DiscardThrough,
    23: range_commands.Discard,
    24: range_commands.Purge,
    25: range_commands.Replay,
}

LOCAL_COMMANDS: Final[frozenset[type]] = frozenset(
    {
        # The owner locks for others when they have asked for messages (`Demand`).
        *(commands.Lock, commands.LockThese, commands.Receive),
        *(session_commands.LockInSession, session_commands.LockInSessions),
        # The owner's own work: time, durability, forwarding.
        *(commands.Confirm, commands.Tick, commands.MoveLockEnds, commands.Publish),
        *(commands.Post, commands.Reassign, commands.Transferred, commands.Undeliverable),
        # A test asks each broker for its own partitions.
        commands.LoseLocks,
    }
)
"""Commands that only the owner of a partition gives."""

REPLIES: Final[dict[int, type]] = {
    1: commands.Done,
    2: commands.Enqueued,
    3: commands.Given,
    4: commands.Settled,
    5: commands.Renewed,
    6: commands.Deleted,
    7: session_commands.SessionAccepted,
    8: session_commands.SessionStateFound,
    9: session_commands.SessionsListed,
    10: range_commands.Surveyed,
    11: range_commands.Browsed,
    12: range_commands.Discarded,
    13: range_commands.Purged,
    14: range_commands.Replayable,
}

LOCAL_REPLIES: Final[frozenset[type]] = frozenset({session_commands.GivenInSessions, commands.EnqueuedApart})
"""A reply to a command that only the owner gives, and one that is an item of its own (`StoredApart`)."""

_KINDS: Final = {each: kind for table in (COMMANDS, REPLIES) for kind, each in table.items()}


def kind_of(value: Command | Reply) -> int:
    """The number of a command or reply in its table."""
    return _KINDS[type(value)]


def all_of(union: object) -> set[type]:
    """The members of `Command` or `Reply`."""
    return {member for each in get_args(union) for member in (get_args(each) or (each,))}


# -- the beginning of a connection ------------------------------------------------


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=1):
    versions: tuple[int, int]
    """The oldest and the newest version of the protocol that this broker speaks."""
    cluster: str
    broker: str
    instance: str
    """A new one for each process."""
    challenge: bytes


class Proof(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """That the sender knows the cluster's secret."""

    mac: bytes


class Ping(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A heartbeat, sent when there was nothing else to send for a while."""


# -- requests to a partition ------------------------------------------------------

Length: TypeAlias = Annotated[int, Meta(ge=0)]


class Ask(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """A command for a partition."""

    id: int
    path: str
    generation: str
    """Of the entity: a command for a deleted entity must not reach its successor."""
    number: int
    kind: int
    body: Raw


class Commit(msgspec.Struct, array_like=True, frozen=True, tag=11):
    """The commands of a transaction. Each is an `Ask` whose id means nothing."""

    id: int
    work: list[Ask]
    only_checks: bool = False
    """Whether the commands are only checked: they are committed later."""


class Read(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """Payloads that were not in the owner's memory."""

    id: int
    path: str
    generation: str
    number: int
    rows: list[int]


class LookUp(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """Counts and sizes of partitions; with a token, the message that is locked under it."""

    id: int
    path: str
    generation: str
    numbers: list[int]
    token: bytes | None = None


class Call(msgspec.Struct, array_like=True, frozen=True, tag=14):
    """A request to the broker itself, such as a change of the catalog."""

    id: int
    name: str
    body: Raw
    actor: tuple[str, str, str] | None = None
    """Who asked for it: the fields of `audit.Actor`. None from a broker of an earlier version."""


class NewMessages(msgspec.Struct, array_like=True, frozen=True, tag=15):
    """Commands for partitions of one entity: each is an `Enqueue` of messages that are new (new_messages.py).

    Each is a request, and their numbers follow each other. Since version 2.
    """

    id: int
    """Of the first command."""
    path: str
    generation: str
    commands: list[tuple[int, int, int]]
    """The partition of each, where its payloads begin in the tail, and how many messages it has."""
    heads: list[tuple[Length, int, Instant | None, SessionId | None]]
    """`NewHead` of all messages, in the order of the commands. The payloads of a command lie one after the
    other."""
    deliveries: dict[int, list[Length]] = {}
    """`Enqueue.deliveries` of commands that have several, by index; an empty list if each is one message.
    Older brokers ignore this, and refuse all deliveries of a command together."""


class Answer(msgspec.Struct, array_like=True, frozen=True, tag=20):
    id: int
    kind: int
    body: Raw


class Refusal(msgspec.Struct, array_like=True, frozen=True, tag=21):
    id: int
    error: str
    """The name of its class in errors.py."""
    text: str
    details: dict[str, str | int]


class Payloads(msgspec.Struct, array_like=True, frozen=True, tag=22):
    id: int
    spans: list[tuple[int, int] | None]
    """Where each payload begins in the frame's tail, and its length; None for one that is gone."""


class Figures(msgspec.Struct, array_like=True, frozen=True, tag=23):
    """For each partition its size, the number of its scheduled messages, and the counts of its sub-queues."""

    id: int
    found: list[tuple[int, int, list[tuple[int, int, int, int, int]]] | None]


class Returned(msgspec.Struct, array_like=True, frozen=True, tag=24):
    id: int
    body: Raw


class Stored(msgspec.Struct, array_like=True, frozen=True, tag=25):
    """Answers of the kind `Enqueued`, without duplicates. Since version 2."""

    answers: list[tuple[int, SequenceNumber, int, bool]]
    """The number of each request, and the fields of its answer."""


class StoredApart(msgspec.Struct, array_like=True, frozen=True, tag=26):
    """`EnqueuedApart`. Only an answer to a command that has deliveries."""

    id: int
    refused: list[Refusal]
    """The id of each is the index of a delivery."""


# -- giving messages to receivers elsewhere ---------------------------------------


class Demand(msgspec.Struct, array_like=True, frozen=True, tag=30):
    """The owner may give this many messages in total since the connection was opened.

    `session`: the token of a session lock, for the messages of that session.
    """

    path: str
    generation: str
    subqueue: int
    session: bytes | None
    limit: int


class Supply(msgspec.Struct, array_like=True, frozen=True, tag=31):
    """Locked messages of one partition. Without messages, it says that there are none now.

    `limit`: of the last demand that the owner knows.
    """

    path: str
    generation: str
    subqueue: int
    session: bytes | None
    limit: int
    number: int
    messages: Raw


class SessionDemand(msgspec.Struct, array_like=True, frozen=True, tag=32):
    """`Demand` for sessions: the owner may lock this many in total."""

    path: str
    generation: str
    exclusive: bool
    limit: int


class SessionSupply(msgspec.Struct, array_like=True, frozen=True, tag=33):
    path: str
    generation: str
    exclusive: bool
    limit: int
    number: int
    accepted: Raw
    """A `SessionAccepted`. Without a lock, it says that no session is free now."""


class SessionLost(msgspec.Struct, array_like=True, frozen=True, tag=34):
    """A session that a receiver of the other broker held."""

    path: str
    generation: str
    number: int
    token: bytes


class SelectiveDemand(msgspec.Struct, array_like=True, frozen=True, tag=35):
    """`Demand` for one receiver with a selector. Without a limit, the receiver is gone."""

    path: str
    generation: str
    subqueue: int
    receiver: int
    """A number that the asking broker has given the receiver."""
    selector: str
    limit: int | None


class SelectiveSupply(msgspec.Struct, array_like=True, frozen=True, tag=36):
    """`Supply` for one receiver with a selector."""

    path: str
    generation: str
    receiver: int
    limit: int
    number: int
    messages: Raw


class Watch(msgspec.Struct, array_like=True, frozen=True, tag=37):
    """The owner reports once when there are new messages, for readers that look at messages and take none."""

    path: str
    generation: str
    subqueue: int


class News(msgspec.Struct, array_like=True, frozen=True, tag=38):
    """There are new messages for those who watch."""

    path: str
    generation: str
    subqueue: int


# -- what has changed -------------------------------------------------------------


class Serving(msgspec.Struct, array_like=True, frozen=True, tag=41):
    """The sender has opened its partitions. Before that it can be asked for the catalog only."""


class Owns(msgspec.Struct, array_like=True, frozen=True, tag=42):
    """All messaging stores that the sender owns, and the term of each (store/protocol.py). Only said where
    stores pass from one broker to another."""

    stores: dict[str, int]
    resumed: dict[str, int] = {}
    """Stores that were just taken over with everything that their last owners knew, and the terms of those.
    Receivers keep their sessions. Said once."""


class Status(msgspec.Struct, array_like=True, frozen=True, tag=40):
    """What happens to a command that is sent to these partitions now (`Availability`)."""

    path: str
    generation: str
    numbers: list[int]
    availability: str


def requests_in(item: Item) -> Sequence[int]:
    """The numbers of the requests that an item has; none if it is not to be answered."""
    if isinstance(item, NewMessages):
        return range(item.id, item.id + len(item.commands))
    return (item.id,) if isinstance(item, _REQUESTS) else ()


_REQUESTS: Final = (Ask, Commit, Read, LookUp, Call)

Item: TypeAlias = (
    Hello
    | Proof
    | Ping
    | Ask
    | Commit
    | Read
    | LookUp
    | Call
    | NewMessages
    | Answer
    | Refusal
    | Payloads
    | Figures
    | Returned
    | Stored
    | StoredApart
    | Demand
    | Supply
    | SessionDemand
    | SessionSupply
    | SessionLost
    | SelectiveDemand
    | SelectiveSupply
    | Watch
    | News
    | Serving
    | Owns
    | Status
)
