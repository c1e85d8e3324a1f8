"""The copy of a partition in another store, kept up to date while traffic continues.

The contents of the store are read page by page and written to a partition of the same
name in the destination. Changes in the meantime are in the journal that the host
keeps (journal.py) and are applied afterwards. Partitions that share bodies, a
topic's and its subscriptions', are copied together. The switch to the copy: moving.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from bendybus.broker.commit_group import Share
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.broker.placing import make_alone
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic_host import TopicHost
from bendybus.domain.effects import (
    DurableEffect,
    MarkTransferred,
    RememberIdentities,
    RemoveMessages,
    SaveSessionState,
    StoreMessages,
    UpdateMessages,
)
from bendybus.domain.messages import Message, MessageState, Origin
from bendybus.errors import EntityNotFound, StoreError, StoreUnavailable
from bendybus.names import Instant, SessionId
from bendybus.store.protocol import NEVER_CLAIMED, MessagingStore, PartitionKey, Snapshot

__all__ = ["AnyHost", "Copies", "Copy"]

AnyHost: TypeAlias = Host[Any]

# How much is read and committed at once: about 10 ms of work for either store.
PAGE_MESSAGES: Final = 500
PAGE_BYTES: Final = 4 * 1024 * 1024
# Digests have 16 bytes; session states may have 256 KB.
PAGE_IDENTITIES: Final = 5000
PAGE_STATES: Final = 16

# At most this much is left to copy in the moment during which commands wait.
CLOSE_ENOUGH: Final = 500
# If traffic is as fast as the copying, more is left for that moment.
ROUNDS_MAX: Final = 20


@dataclass(eq=False, slots=True)
class Copy:
    """One partition, and which part of it is already in the destination."""

    host: AnyHost
    partition: Any
    """What the host held at the start. If it holds another object now, it has lost its memory meanwhile."""
    source_key: PartitionKey
    key: PartitionKey
    row_ids: dict[int, int] = field(default_factory=dict)
    """Row id in the source -> row id in the destination."""
    gone: dict[int, Message] = field(default_factory=dict)
    """Messages that have been removed meanwhile, by row id in the source."""

    @property
    def interrupted(self) -> bool:
        return self.host.partition is not self.partition


class Copies:
    """The copies of the partitions that move together from one store to another."""

    def __init__(self, source: AttachedStore, target: AttachedStore) -> None:
        self._source = source
        self._target = target
        self.by_host: dict[AnyHost, Copy] = {}
        self._origins: dict[int, Origin] = {}
        """Body in the source -> the origin that its copies share in the destination."""
        self._sharers: Counter[int] = Counter()
        self.copied = 0
        """The number of messages copied so far, for people."""

    def refuse_interrupted(self) -> None:
        for each in self.by_host.values():
            if each.host.availability is Availability.GONE:
                raise EntityNotFound(each.host.path)
            if each.interrupted:
                raise StoreUnavailable(f"{each.host} was lost from memory while it moved.")
        self._source.refuse_away()
        self._target.refuse_away()

    # -- what is there ------------------------------------------------------------

    async def make(self, host: AnyHost) -> None:
        """Copy everything that the source holds of a partition."""
        if host.partition is None or host.key is None or host.availability is not Availability.AVAILABLE:
            raise StoreUnavailable(f"{host} is not there now.")
        made = partial(make_alone, self._target.store, host.path, host.number)
        each = Copy(host, host.partition, host.key, await self._target.run(made))
        self.by_host[host] = each
        self.refuse_interrupted()
        host.journal.begin()
        # Everything submitted before the journal began is written, so the snapshot contains it.
        await self._written()
        snapshot = await self._source.query(partial(self._source.store.load, each.source_key))
        for page in _pages(snapshot.messages):
            self.refuse_interrupted()
            await self._bring(each, (), await self._twins(each, page))
        await self._copy_rest(each, snapshot)

    async def _copy_rest(self, each: Copy, snapshot: Snapshot) -> None:
        """Copy what few entities have: digests, states, marks. They are only added, in any order."""
        for start in range(0, len(snapshot.identities), PAGE_IDENTITIES):
            by_time: dict[Instant, list[bytes]] = {}
            for at, digest in snapshot.identities[start : start + PAGE_IDENTITIES]:
                by_time.setdefault(at, []).append(digest)
            await self._bring(each, [RememberIdentities(at, digests) for at, digests in by_time.items()])
        for start in range(0, len(snapshot.sessions), PAGE_STATES):
            records = snapshot.sessions[start : start + PAGE_STATES]
            read = partial(_read_states, self._source.store, each.source_key, [r.session_id for r in records])
            states = await self._source.query(read)
            await self._bring(
                each,
                [
                    SaveSessionState(record.session_id, state, record.updated_at)
                    for record, state in zip(records, states, strict=True)
                    if state is not None
                ],
            )
        marks = [MarkTransferred(source, number) for source, number in snapshot.transferred.items()]
        await self._bring(each, marks)

    # -- what changes meanwhile ---------------------------------------------------

    async def catch_up(self) -> None:
        """Copy the changes made meanwhile, until few changes happen during that."""
        for _ in range(ROUNDS_MAX):
            brought = 0
            for each in list(self.by_host.values()):
                brought += await self._bring_journal(each)
            if brought <= CLOSE_ENOUGH:
                return

    async def complete(self) -> None:
        """Copy the last changes. The partitions take no commands, so there are no new ones."""
        copies = list(self.by_host.values())
        for each in copies:
            await self._bring_journal(each)
        # Always write the counters, even if nothing else is left to copy.
        await self._target.commit([self._share(each, ()) for each in copies])

    async def _bring_journal(self, each: Copy) -> int:
        """Apply what was submitted since the last call. Returns how many messages changed."""
        journal = each.host.journal.take()
        await self._written()
        self.refuse_interrupted()
        touched: dict[int, Message] = {}
        removed: list[Message] = []
        others: list[DurableEffect] = []
        for effect in journal:
            if isinstance(effect, StoreMessages | UpdateMessages):
                touched |= {message.row_id: message for message in effect.messages}
            elif isinstance(effect, RemoveMessages):
                removed += effect.messages
            else:
                others.append(effect)
        each.gone |= {message.row_id: message for message in removed}
        await self._bring(each, [*self._removal(each, removed), *others])
        for page in _pages(touched.values()):
            await self._bring(each, list(self._update(each, page)), await self._twins(each, page))
        return len(touched) + len(removed)

    async def _written(self) -> None:
        """Wait until everything submitted to the source is durable, so that messages have their row ids."""
        await self._source.run(_nothing)

    async def _twins(self, each: Copy, messages: Sequence[Message]) -> dict[int, Message]:
        """Those of these messages that the destination does not have, by row id in the source."""
        new = [message for message in messages if message.row_id not in each.row_ids]
        payloads = {message.row_id: message.payload for message in new}
        cold = [each for each in new if each.payload is None and not self._has_body(each)]
        if cold:
            row_ids = [message.body_row_id for message in cold]
            read = await self._source.query(partial(self._source.store.read, row_ids))
            payloads |= zip([message.row_id for message in cold], read, strict=True)
        # A message without a payload has been removed meanwhile. The journal contains that, or will.
        return {
            message.row_id: self._twin(message, payloads[message.row_id])
            for message in new
            if message.row_id not in each.gone
            and (payloads[message.row_id] is not None or self._has_body(message))
        }

    def _has_body(self, message: Message) -> bool:
        origin = None if message.origin is None else self._origins.get(message.origin.body)
        return origin is not None and origin.body != 0

    def _twin(self, message: Message, payload: bytes | None) -> Message:
        twin = _at_rest(message, row_id=0)
        twin.payload = payload
        if message.origin is not None:
            body = message.origin.body
            fresh = Origin(message.origin.sequence_number, hops=message.origin.hops)
            twin.origin = self._origins.setdefault(body, fresh)
            self._sharers[body] += 1
        return twin

    def _update(self, each: Copy, messages: Sequence[Message]) -> Iterator[DurableEffect]:
        known = [message for message in messages if message.row_id in each.row_ids]
        if known:
            yield UpdateMessages(
                [self._known_twin(message, each.row_ids[message.row_id]) for message in known]
            )

    def _removal(self, each: Copy, messages: Sequence[Message]) -> Iterator[DurableEffect]:
        known = [message for message in messages if message.row_id in each.row_ids]
        twins = []
        for message in known:
            twins.append(self._known_twin(message, each.row_ids.pop(message.row_id)))
            if message.origin is not None:
                body = message.origin.body
                self._sharers[body] -= 1
                if not self._sharers[body]:
                    # Removing the last copy removes the body. A later copy brings the body again.
                    del self._sharers[body], self._origins[body]
        if twins:
            yield RemoveMessages(twins)

    def _known_twin(self, message: Message, row_id: int) -> Message:
        twin = _at_rest(message, row_id)
        if message.origin is not None:
            twin.origin = self._origins[message.origin.body]
        return twin

    async def _bring(
        self, each: Copy, effects: Sequence[DurableEffect], twins: Mapping[int, Message] | None = None
    ) -> None:
        if twins:
            effects = [StoreMessages(list(twins.values())), *effects]
        if effects:
            await self._target.commit([self._share(each, effects)])
        if twins:
            each.row_ids |= {row_id: twin.row_id for row_id, twin in twins.items()}
            self.copied += len(twins)

    @staticmethod
    def _share(each: Copy, effects: Sequence[DurableEffect]) -> Share:
        return Share(each.key, NEVER_CLAIMED, each.partition.next_sequence_number, effects)

    # -- when it is complete ------------------------------------------------------

    def compared(self, each: Copy) -> list[Message]:
        """The messages in memory. `StoreError` unless the copy has exactly those."""
        # No pairs or sets are built here: a million new objects would start the garbage collector.
        row_ids = each.row_ids
        messages = [message for message in each.partition.confirmed() if message.row_id in row_ids]
        if len(messages) != len(row_ids):
            raise StoreError(f"{each.host} cannot be moved: its copy has more messages than it has itself.")
        if not isinstance(each.host, TopicHost):
            is_whole = all(message.row_id in row_ids for message in each.partition.confirmed())
        else:
            # Published messages stay in memory until the next confirmation.
            is_whole = all(
                message.row_id in row_ids or message.state is not MessageState.SCHEDULED
                for message in each.partition.confirmed()
            )
        if not is_whole:
            raise StoreError(f"{each.host} cannot be moved: something is not in its copy.")
        return messages

    def adopt(self, moved: Mapping[Copy, Sequence[Message]]) -> None:
        """Give these messages in memory their row ids in the destination."""
        adopted: set[int] = set()
        for each, messages in moved.items():
            row_ids = each.row_ids
            for message in messages:
                message.row_id = row_ids[message.row_id]
                origin = message.origin
                if origin is not None and id(origin) not in adopted:
                    adopted.add(id(origin))
                    origin.body = self._origins[origin.body].body
            for message in each.gone.values():
                _clear_row_ids(message)


def _pages(messages: Iterable[Message]) -> Iterator[list[Message]]:
    page: list[Message] = []
    size = 0
    for message in messages:
        if page and (len(page) >= PAGE_MESSAGES or size + message.size > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(message)
        size += message.size
    if page:
        yield page


def _at_rest(message: Message, row_id: int) -> Message:
    """The message as the destination stores it."""
    twin = message.unlocked()
    twin.row_id = row_id
    return twin


def _clear_row_ids(message: Message) -> None:
    """The message was removed in the source. Clear its row ids: in the destination they name other rows."""
    message.row_id = 0
    if message.origin is not None:
        message.origin = Origin(message.origin.sequence_number, hops=message.origin.hops)


def _read_states(
    store: MessagingStore, key: PartitionKey, session_ids: Sequence[SessionId]
) -> list[bytes | None]:
    return [store.read_session_state(key, session_id) for session_id in session_ids]


def _nothing() -> None:
    """Does nothing: it is awaited because it runs after everything submitted before."""
