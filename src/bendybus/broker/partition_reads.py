"""What a partition of a queue or subscription reads from its store: payloads and session states.

Nothing here changes the partition. Locking and settling: partition_host.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability, PartitionState
from bendybus.broker.payload_cache import PayloadCache
from bendybus.broker.read_ahead import ReadAhead
from bendybus.broker.stores import AttachedStore
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.partition import Partition
from bendybus.domain.session_commands import FindSessionState, SessionLock, SessionStateFound
from bendybus.errors import BrokerError, StoreUnavailable
from bendybus.names import Epoch, PartitionNumber
from bendybus.store.protocol import PartitionKey

if TYPE_CHECKING:
    from bendybus.broker.entity import Entity

__all__ = ["PartitionReads"]

logger = logging.getLogger(__name__)


class PartitionReads(Host[Partition]):
    def __init__(
        self,
        entity: Entity[Any, Any, Any],
        number: PartitionNumber,
        key: PartitionKey | None,
        store: AttachedStore,
        cache: PayloadCache,
        epoch: Epoch | None = None,
    ) -> None:
        super().__init__(entity, number, key, store, cache, epoch)
        self._ahead = ReadAhead(cache)

    def _discard_memory(self) -> None:
        super()._discard_memory()
        self._ahead.clear()

    # -- what is known ------------------------------------------------------------

    def is_unknown(self, subqueue: SubQueue) -> bool:
        """Whether the partition is being loaded."""
        return self.availability is Availability.LOADING

    async def known(self, subqueue: SubQueue) -> None:
        """Nothing to wait for: only another broker has to be asked."""

    # -- payloads -----------------------------------------------------------------

    def at_hand(self, messages: Sequence[Message]) -> list[bytes] | None:
        """The payloads of these messages, which are locked, if none of them has to be read."""
        found = self.store.store.at_hand([each.body_row_id for each in messages if each.payload is None])
        if found is None:
            return None
        fresh = iter(found)
        return [next(fresh) if each.payload is None else each.payload for each in messages]

    def read(
        self, messages: Sequence[Message], done: Callable[[list[bytes | None] | BrokerError], None]
    ) -> None:
        """The payloads of these messages, from memory or from the store; None for a message that is gone.

        Payloads that are read back are not kept: browsing a long backlog must not fill the memory. Only for
        messages that were just locked, those of the next ones are read too, within a limit.
        """
        partition = self._held
        known = [message.payload for message in messages]
        cold = [message.body_row_id for message in messages if message.payload is None]
        if not cold:
            done(known)
            return
        if self.state is PartitionState.OWNED_ELSEWHERE:
            self.current.read(messages, done)
            return

        ahead: list[Message] = []
        if partition is not None and messages[-1].lock_token is not None:
            ahead = self._ahead.choose(partition, messages)

        def answer(payloads: list[bytes | None] | Exception) -> None:
            if isinstance(payloads, Exception):
                self._ahead.forget(ahead)
                if ahead and not isinstance(payloads, StoreUnavailable):
                    # What was not needed yet may be all that is damaged.
                    ahead.clear()
                    self.store.read(cold, answer)
                    return
                # If the store is away, it has already told us. If it is only slow, our memory is still valid.
                if partition is self._held and not isinstance(payloads, StoreUnavailable):
                    logger.error("%s: payloads cannot be read: %s", self, payloads)
                    self.fail(payloads)
                done(self._unavailable(payloads))
                return
            if ahead:
                self._ahead.keep(ahead, payloads[len(cold) :])
            fresh = iter(payloads)
            done([next(fresh) if payload is None else payload for payload in known])

        self.store.read([*cold, *(message.body_row_id for message in ahead)], answer)

    @property
    def removes_promptly(self) -> bool:
        """Whether the store has answered a commit just now."""
        return self.store.writer.prompt

    def read_to_remove(
        self, messages: Sequence[Message], done: Callable[[list[bytes | None] | BrokerError], None]
    ) -> None:
        """`read` that answers only once the store is known to commit, so that a removal will not take long.

        For receivers that remove before they deliver. A removal cannot be undone while it is under way, so
        they choose only among messages of stores that answer (P-27).
        """

        def answer(payloads: list[bytes | None] | BrokerError) -> None:
            partition = self._partition
            if isinstance(payloads, BrokerError) or self.store.writer.prompt or partition is None:
                done(payloads)
                return
            # A commit that changes nothing.
            self.store.writer.submit(
                (self._share(partition, []),),
                lambda failure: done(payloads if failure is None else self._unavailable(failure)),
            )

        self.read(messages, answer)

    async def payloads(self, messages: Sequence[Message]) -> list[bytes | None]:
        """`read` for callers that can wait."""
        answer: asyncio.Future[list[bytes | None] | BrokerError] = asyncio.get_running_loop().create_future()
        self.read(messages, lambda payloads: None if answer.done() else answer.set_result(payloads))
        payloads = await answer
        if isinstance(payloads, BrokerError):
            raise payloads
        return payloads

    # -- sessions -----------------------------------------------------------------

    async def session_state(self, lock: SessionLock) -> bytes | None:
        """The state of a session, for its holder."""
        found = await self.ask(FindSessionState(lock))
        if self.state is PartitionState.OWNED_ELSEWHERE:
            elsewhere: bytes | None = await self.current.session_state(lock)
            return elsewhere
        assert isinstance(found, SessionStateFound)
        if found.size is None:
            return None
        assert self._key is not None, "a loaded partition is known to its store"
        answer: asyncio.Future[bytes | Exception | None] = asyncio.get_running_loop().create_future()
        self.store.read_session_state(
            self._key,
            found.session_id,
            lambda state: None if answer.done() else answer.set_result(state),
        )
        state = await answer
        if isinstance(state, Exception):
            raise self._unavailable(state)
        return state
