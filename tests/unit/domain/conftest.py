"""A partition under test, with a clock one can turn and a memory of the last effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import pytest

from bendybus.domain.commands import (
    ENTROPY_PER_LOCK,
    Command,
    Confirm,
    Enqueue,
    Given,
    Lock,
    Peek,
    Receive,
    Reply,
    Settled,
)
from bendybus.domain.effects import Effect
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.partition import Partition
from bendybus.names import EntityPath, Instant, LockToken, PartitionNumber, SequenceNumber

EffectT = TypeVar("EffectT", bound=Effect)

# Far from 0, so that an unset instant cannot pass for a real one.
START = Instant(1_700_000_000_000)


@dataclass
class Driver:
    partition: Partition
    now: Instant = START
    effects: list[Effect] = field(default_factory=list)
    _locks: Iterator[int] = field(default_factory=lambda: count(1))

    def apply(self, command: Command) -> Reply:
        reply, self.effects = self.partition.apply(command, self.now)
        return reply

    def effect(self, kind: type[EffectT]) -> EffectT | None:
        """The one effect of this kind that the last command had."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        assert len(found) <= 1, f"{kind.__name__} was not consolidated: {found}"
        return found[0] if found else None

    def later(self, seconds: float) -> None:
        self.now = Instant(self.now + int(seconds * 1000))

    def entropy(self, locks: int) -> bytes:
        return b"".join(next(self._locks).to_bytes(ENTROPY_PER_LOCK, "big") for _ in range(locks))

    def send(self, amount: int = 1, *, size: int = 100, ttl_s: float | None = None) -> list[Message]:
        """Enqueued and confirmed."""
        expires_at = None if ttl_s is None else Instant(self.now + int(ttl_s * 1000))
        messages = [Message(b"payload", size=size, expires_at=expires_at) for _ in range(amount)]
        self.apply(Enqueue(messages))
        self.apply(Confirm(messages[-1].sequence_number))
        return messages

    def lock(self, amount: int = 1, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
        reply = self.apply(Lock(amount, self.entropy(amount), subqueue))
        assert isinstance(reply, Given)
        return reply.messages

    def receive(self, amount: int = 1, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
        reply = self.apply(Receive(amount, subqueue))
        assert isinstance(reply, Given)
        return reply.messages

    def peek(self, start: int = 0, amount: int = 1000, subqueue: SubQueue = SubQueue.MAIN) -> list[Message]:
        reply = self.apply(Peek(SequenceNumber(start), amount, subqueue))
        assert isinstance(reply, Given)
        return reply.messages

    def settle(self, command: Command) -> list[LockToken]:
        """Gives the tokens that were lost."""
        reply = self.apply(command)
        assert isinstance(reply, Settled)
        return reply.lost


NewDriver = Callable[..., Driver]


@pytest.fixture
def new_driver() -> NewDriver:
    def make(number: int = 0, **properties: object) -> Driver:
        description = QueueDescription(EntityPath("orders"), **properties)
        return Driver(Partition(PartitionNumber(number), description))

    return make


@pytest.fixture
def driver(new_driver: NewDriver) -> Driver:
    return new_driver()
