"""Reads the answers of other brokers to the requests of remote.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from bendybus.cluster.frames import Frame, FrameError, error_of
from bendybus.cluster.items import Answer, Figures, Item, Payloads, Returned, StoredApart
from bendybus.domain.commands import EnqueuedApart, Reply
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.shelf import Counts
from bendybus.errors import BrokerError

__all__ = ["RemoteFigures", "answered", "read_figures", "read_locked", "read_payloads", "read_reply"]

T = TypeVar("T")


class RemoteFigures:
    """The counts and sizes of a partition when its owner was last asked."""

    def __init__(self, size_bytes: int, scheduled_count: int, counts: Sequence[Counts]) -> None:
        self.size_bytes = size_bytes
        self.scheduled_count = scheduled_count
        self._counts = counts

    def counts(self, subqueue: SubQueue) -> Counts:
        return self._counts[subqueue]


async def answered(ask: Callable[[Callable[[T | BrokerError], None]], None]) -> T:
    """For callers that can wait. Raises the error."""
    answer: asyncio.Future[T | BrokerError] = asyncio.get_running_loop().create_future()
    ask(lambda result: None if answer.done() else answer.set_result(result))
    result = await answer
    if isinstance(result, BrokerError):
        raise result
    return result


def read_reply(frame: Frame, item: Item) -> Reply:
    if isinstance(item, StoredApart):
        return EnqueuedApart({each.id: error_of(each) for each in item.refused})
    if not isinstance(item, Answer):
        raise FrameError(f"a {type(item).__name__} as the answer to a command")
    return frame.reply(item.kind, item.body)


def read_payloads(count: int, frame: Frame, item: Item) -> list[bytes | None]:
    if not isinstance(item, Payloads) or len(item.spans) != count:
        raise FrameError("an answer without the payloads that were asked for")
    return frame.payloads(item.spans)


def read_locked(frame: Frame, item: Item) -> Message | None:
    if not isinstance(item, Returned):
        raise FrameError(f"a {type(item).__name__} as the answer to a token")
    found = frame.messages(item.body)
    return found[0] if found else None


def read_figures(frame: Frame, item: Item) -> RemoteFigures | None:
    if not isinstance(item, Figures) or len(item.found) != 1:
        raise FrameError(f"a {type(item).__name__} as the answer to a question for figures")
    (found,) = item.found
    if found is None:
        return None
    size, scheduled, counts = found
    return RemoteFigures(size, scheduled, [Counts(*each) for each in counts])
