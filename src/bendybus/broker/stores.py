"""A messaging store at work: its writer, its reader, and the payloads kept in memory.

`AttachedStore` is what a broker holds for each store it was given. Reads and
loads have a thread of their own, so a long one never holds up a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from bendybus.broker.writer import StoreWriter
from bendybus.domain.messages import Message
from bendybus.names import Epoch, SessionId
from bendybus.store.protocol import MessagingStore, PartitionKey, Snapshot

__all__ = ["PAYLOAD_CACHE_BYTES", "AttachedStore", "PayloadCache"]

# Enough for a few thousand messages in flight. A longer backlog stays on disk and is
# read back in pages, which costs little; memory spent here is spent whether used or not.
PAYLOAD_CACHE_BYTES: Final = 16 * 1024 * 1024

T = TypeVar("T")


class PayloadCache:
    """Which stored payloads stay in memory: the oldest, as long as there is room.

    A queue is read from its front, so what is already here is worth more than
    what has just arrived: a newcomer that does not fit is dropped at once.
    """

    def __init__(self, limit_bytes: int = PAYLOAD_CACHE_BYTES) -> None:
        self._limit = limit_bytes
        self._used = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    def admit(self, messages: Iterable[Message]) -> None:
        """The store has these now: keep their payloads if there is room, else let go of them."""
        used, limit = self._used, self._limit
        for message in messages:
            if used + message.size <= limit:
                used += message.size
            else:
                message.payload = None
        self._used = used

    def forget(self, messages: Iterable[Message]) -> None:
        """These messages are no more."""
        self._used -= sum(message.size for message in messages if message.payload is not None)


class AttachedStore:
    def __init__(self, store: MessagingStore, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self.name = store.name
        self._loop = loop
        self.writer = StoreWriter(store, loop)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"reader-{store.name}")

    def start(self) -> None:
        self.writer.start()

    def load(
        self,
        key: PartitionKey,
        epoch: Epoch | None,
        build: Callable[[Snapshot, Epoch], T],
        loaded: Callable[[T | Exception], None],
    ) -> None:
        """Read a partition, once everything submitted for it has been written, and build what it is for.

        Whoever does not hold an epoch of it claims it first. Both in the reader's thread: a million
        messages take half a second to put in their places, and the loop serves others meanwhile.
        """

        def read(claimed: Epoch) -> T:
            return build(self.store.load(key), claimed)

        def claim() -> None:
            try:
                claimed = self.store.claim([key])[0] if epoch is None else epoch
            except Exception as failure:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                    self._loop.call_soon_threadsafe(loaded, failure)
            else:
                self._in_reader(partial(read, claimed), loaded)

        self.writer.when_written(claim)

    def read_session_state(
        self, key: PartitionKey, session_id: SessionId, done: Callable[[bytes | Exception | None], None]
    ) -> None:
        """The state of a session, once everything submitted for it has been written."""
        read = partial(self.store.read_session_state, key, session_id)
        self.writer.when_written(partial(self._in_reader, read, done))

    def read(self, places: Sequence[int], done: Callable[[list[bytes | None] | Exception], None]) -> None:
        self._in_reader(partial(self.store.read, places), done)

    def stop(self) -> None:
        self.writer.stop()
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _in_reader(self, call: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def answer(future: Future[T]) -> None:
            if future.cancelled():
                return
            failure = future.exception()
            result = future.result() if failure is None else failure
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
            self._loop.call_soon_threadsafe(done, result)

        self._reader.submit(call).add_done_callback(answer)
