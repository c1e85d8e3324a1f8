"""Message locks: which messages are locked, under which token, and until when.

A lock is granted by `Lock`, extended by `Renew`, and ended by settlement or by time. Only this module
changes `lock_token` and `locked_until` of a message; a new record takes them over (a copy in messages.py, a
message of another broker in cluster/frames.py). A lock inside a session ends with the session, so
session_locks.py keeps those messages and calls the functions here. What happens to a message whose lock has
ended: stock.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, cast

from bendybus.domain.commands import ENTROPY_PER_LOCK
from bendybus.domain.expiry import NEVER
from bendybus.domain.messages import Message
from bendybus.names import Instant, LockToken, PartitionNumber

__all__ = [
    "LockTable",
    "lock_end_changed",
    "lock_ended",
    "lock_granted",
    "lock_resumed",
    "token_prefix",
]

_UNLOCKED: Final = Instant(0)


def token_prefix(number: PartitionNumber) -> bytes:
    """The prefix of a partition's tokens. A settlement finds its partition by it."""
    return number.to_bytes(2, "big")


def lock_granted(
    messages: Sequence[Message], prefix: bytes, entropy: bytes, until: Instant
) -> list[LockToken]:
    """Lock each message under a new token. Returns the tokens, in order."""
    assert len(entropy) >= ENTROPY_PER_LOCK * len(messages), "too little entropy for these locks"
    starts = range(0, ENTROPY_PER_LOCK * len(messages), ENTROPY_PER_LOCK)
    tokens = cast(list[LockToken], [prefix + entropy[start : start + ENTROPY_PER_LOCK] for start in starts])
    for message, token in zip(messages, tokens, strict=True):
        message.lock_token = token
        message.locked_until = until
    return tokens


def lock_end_changed(message: Message, until: Instant) -> None:
    """Change the end of a lock. The token stays the same."""
    message.locked_until = until


def lock_resumed(message: Message, token: LockToken, until: Instant) -> None:
    """The message is locked under this token, which another broker may have made."""
    message.lock_token = token
    message.locked_until = until


def lock_ended(message: Message) -> None:
    """Clear the lock fields of a message."""
    message.lock_token = None
    message.locked_until = _UNLOCKED


class LockTable:
    """Locks in the order in which they end.

    Locks of equal duration end in the order in which they were granted, so a plain dict is already sorted
    and only its front is checked. If a new lock would end before the last one (the lock duration was
    shortened, or the clock was set back), a new dict is begun. Only the last dict grows.
    """

    __slots__ = ("_earliest_end", "_generations", "_latest_end", "_prefix")

    def __init__(self, number: PartitionNumber) -> None:
        self._prefix = token_prefix(number)
        self._generations: list[dict[LockToken, Message]] = [{}]
        self._earliest_end = NEVER
        self._latest_end = _UNLOCKED

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(generation.values() for generation in self._generations)

    @property
    def earliest_end(self) -> Instant:
        """No lock ends before this. It may be too early: settling a lock does not move it, `expire` does."""
        return self._earliest_end

    def grant(self, messages: Sequence[Message], entropy: bytes, until: Instant) -> None:
        """Lock each message under a new token."""
        tokens = lock_granted(messages, self._prefix, entropy, until)
        self._generation_ending(until).update(zip(tokens, messages, strict=True))

    def resume(self, locks: Iterable[tuple[Message, LockToken, Instant]]) -> None:
        """Continue locks that another broker has granted, in the order in which they end."""
        for message, token, until in locks:
            lock_resumed(message, token, until)
            self._generation_ending(until)[token] = message

    def _generation_ending(self, until: Instant) -> dict[LockToken, Message]:
        """The dict for locks that end at this time."""
        if until < self._latest_end and self._generations[-1]:
            self._generations.append({})
        self._latest_end = until
        self._earliest_end = min(self._earliest_end, until)
        return self._generations[-1]

    def find(self, token: LockToken) -> Message | None:
        """The message that is locked under this token. The lock may have expired."""
        for generation in reversed(self._generations):
            if token in generation:
                return generation[token]
        return None

    def held_among(self, tokens: Sequence[LockToken], at: Instant) -> set[LockToken]:
        """Those of these tokens under which a message is locked, and whose locks have not expired."""
        held: set[LockToken] = set()
        for generation in self._generations:
            found = map(generation.get, tokens)
            held |= {
                token
                for token, message in zip(tokens, found, strict=True)
                if message is not None and message.locked_until > at
            }
        return held

    def release(self, tokens: Sequence[LockToken]) -> tuple[list[Message], list[LockToken]]:
        """End these locks. Returns their messages, and the tokens without a lock."""
        released: list[Message] = []
        lost: list[LockToken] = []
        take = self._generations[-1].pop
        for token in tokens:
            message = take(token, None) or self._take_from_older(token)
            if message is None:
                lost.append(token)
            else:
                released.append(message)
        return released, lost

    def _take_from_older(self, token: LockToken) -> Message | None:
        for generation in self._generations[:-1]:
            if token in generation:
                return generation.pop(token)
        return None

    def renew(self, tokens: Sequence[LockToken], until: Instant) -> list[Instant | None]:
        """Set the end of these locks. Returns None for a token without a lock."""
        ends: list[Instant | None] = []
        for token in tokens:
            released, _ = self.release((token,))
            for message in released:
                lock_end_changed(message, until)
                self._generation_ending(until)[token] = message
            ends.append(until if released else None)
        return ends

    def expire(self, at: Instant) -> list[Message]:
        """End the locks that have expired. Returns their messages, earliest end first."""
        if at < self._earliest_end:
            return []
        ended: list[Message] = []
        self._earliest_end = NEVER
        for generation in self._generations:
            over: list[LockToken] = []
            for token, message in generation.items():
                if message.locked_until > at:
                    self._earliest_end = min(self._earliest_end, message.locked_until)
                    break
                over.append(token)
            ended += [generation.pop(token) for token in over]
        self._generations = [*filter(None, self._generations[:-1]), self._generations[-1]]
        return ended

    def move_ends(self, by_ms: int) -> None:
        """The clock was set back by this much: every lock keeps the time that it has left."""
        for message in self:
            lock_end_changed(message, Instant(message.locked_until - by_ms))
        self._latest_end = Instant(self._latest_end - by_ms)
        if self._earliest_end < NEVER:
            self._earliest_end = Instant(self._earliest_end - by_ms)
