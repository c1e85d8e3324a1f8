"""One partition moves to another store while traffic flows: nothing is lost, and nothing is there twice.

1. A copy is made beside: what the store has, page by page, into partitions of the
   same name in the destination. What changes meanwhile is noted (`Host.keep_journal`)
   and brought after, until little is left.
2. The partition takes no commands for a moment; they wait. What was submitted is
   written, the rest of the journal is brought after, and copy and memory are compared.
3. The catalog is told, in one commit. That is the move. Until then the copy is litter,
   from then on the original is: a partition exists where the catalog has it, so after
   a crash the start sweeps the other one away (placing.py).
4. Memory stays as it is, locks, sessions and all; only the places of messages are
   others. Whoever has waited is served, and the original is dropped.

A topic's partition and those of its subscriptions share a store and many bodies,
so they move together. Which partitions move, and where to: draining.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bendybus.broker.health import StoreState
from bendybus.broker.host import Availability, Host
from bendybus.broker.stores import AttachedStore
from bendybus.broker.topic_host import TopicHost
from bendybus.broker.writer import Share
from bendybus.domain.effects import (
    DurableEffect,
    MarkTransferred,
    RememberIdentities,
    RemoveMessages,
    SaveSessionState,
    StoreMessages,
    UpdateMessages,
)
from bendybus.domain.entities import normalise_path
from bendybus.domain.messages import Message, MessageState, Origin
from bendybus.errors import EntityNotFound, StoreError, StoreUnavailable
from bendybus.names import EntityPath, Instant, PartitionNumber, SessionId
from bendybus.store.catalog import EntityRecord
from bendybus.store.protocol import NEVER_CLAIMED, MessagingStore, PartitionKey, Snapshot

if TYPE_CHECKING:
    from bendybus.broker.broker import Broker

__all__ = ["Move"]

logger = logging.getLogger(__name__)

AnyHost: TypeAlias = Host[Any]

# What is read and committed at once: some 10 ms of either store's time.
PAGE_MESSAGES: Final = 500
PAGE_BYTES: Final = 4 * 1024 * 1024
# Digests have 16 bytes, states of sessions may have 256 KB.
PAGE_IDENTITIES: Final = 5000
PAGE_STATES: Final = 16

# So little is brought over in the moment in which commands wait.
CLOSE_ENOUGH: Final = 500
# Traffic may be as fast as the copying; then more is brought over in that moment.
ROUNDS_MAX: Final = 20
# How long to leave a catalog alone that does not answer.
ASK_AGAIN_S: Final = 1.0
# A topic that is just publishing what was scheduled is left to it.
REST_AFTER_S: Final = 0.05


@dataclass(eq=False, slots=True)
class _Copy:
    """One partition, and what of it is in the destination already."""

    host: AnyHost
    partition: Any
    """What the host held when it began; a host that holds another has lost its memory meanwhile."""
    source_key: PartitionKey
    key: PartitionKey
    places: dict[int, int] = field(default_factory=dict)
    """Where a message is in the source -> where it is in the destination."""
    gone: dict[int, Message] = field(default_factory=dict)
    """What was removed meanwhile, by its place in the source."""

    @property
    def interrupted(self) -> bool:
        return self.host.partition is not self.partition


class Move:
    """Of partition `number` of everything that shares a store with it; `run` may be called once."""

    def __init__(
        self,
        broker: Broker,
        hosts: Callable[[], Sequence[AnyHost]],
        source: AttachedStore,
        target: AttachedStore,
    ) -> None:
        """`hosts`: those that are to move, the entity's own first; there may be more or fewer later."""
        self._broker = broker
        self._hosts = hosts
        self._source = source
        self._target = target
        self._copies: dict[AnyHost, _Copy] = {}
        self._origins: dict[int, Origin] = {}
        """Body in the source -> the origin that its copies share in the destination."""
        self._sharers: Counter[int] = Counter()
        self.copied = 0
        """Messages so far, for people."""

    async def run(self) -> None:
        """Return when all of it is in its new store; raise why it has stayed where it was."""
        try:
            while True:
                for host in self._newcomers():
                    await self._copy(host)
                await self._catch_up()
                async with self._broker.changing:
                    await self._leave_out_deleted()
                    if not self._newcomers() and all(host.at_rest for host in self._copies):
                        await self._switch()
                        break
                await asyncio.sleep(REST_AFTER_S)
        except BaseException:
            await _discard(self._target, [each.key for each in self._copies.values()])
            raise
        finally:
            for host in self._copies:
                host.end_journal()
        await self._clear_source()

    # -- the copy -----------------------------------------------------------------

    def _newcomers(self) -> list[AnyHost]:
        """Subscriptions may be made while their topic moves."""
        return [host for host in self._hosts() if host not in self._copies]

    async def _leave_out_deleted(self) -> None:
        """Subscriptions may be deleted meanwhile; when the entity itself is, there is nothing to move."""
        staying = set(self._hosts())
        left = [host for host in self._copies if host not in staying]
        for host in left:
            await _discard(self._target, [self._copies.pop(host).key])
        self._refuse_interrupted()

    def _refuse_interrupted(self) -> None:
        for each in self._copies.values():
            if each.host.availability is Availability.GONE:
                raise EntityNotFound(each.host.path)
            if each.interrupted:
                raise StoreUnavailable(f"{each.host} was lost from memory while it moved.")
        self._source.refuse_away()
        self._target.refuse_away()

    async def _copy(self, host: AnyHost) -> None:
        """Everything that the source has of it."""
        if host.partition is None or host.key is None or host.availability is not Availability.AVAILABLE:
            raise StoreUnavailable(f"{host} is not there now.")
        made = partial(_make_alone, self._target.store, host.path, host.number)
        each = _Copy(host, host.partition, host.key, await self._target.run(made))
        self._copies[host] = each
        self._refuse_interrupted()
        host.keep_journal()
        # What was submitted before the journal began is written, so the snapshot has it.
        await self._written()
        snapshot = await self._source.query(partial(self._source.store.load, each.source_key))
        for page in _pages(snapshot.messages):
            self._refuse_interrupted()
            await self._bring(each, (), await self._twins(each, page))
        await self._copy_rest(each, snapshot)

    async def _copy_rest(self, each: _Copy, snapshot: Snapshot) -> None:
        """What few entities have. Digests, states and marks are only ever added to, so order is no matter."""
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

    async def _catch_up(self) -> None:
        """Bring over what has changed meanwhile, until little changes while that is done."""
        for _ in range(ROUNDS_MAX):
            brought = 0
            for each in list(self._copies.values()):
                brought += await self._bring_journal(each)
            if brought <= CLOSE_ENOUGH:
                return

    async def _bring_journal(self, each: _Copy) -> int:
        """What was submitted since the last time; how many changes of messages that were."""
        journal = each.host.take_journal()
        await self._written()
        self._refuse_interrupted()
        touched: dict[int, Message] = {}
        removed: list[Message] = []
        others: list[DurableEffect] = []
        for effect in journal:
            if isinstance(effect, StoreMessages | UpdateMessages):
                touched |= {message.place: message for message in effect.messages}
            elif isinstance(effect, RemoveMessages):
                removed += effect.messages
            else:
                others.append(effect)
        each.gone |= {message.place: message for message in removed}
        await self._bring(each, [*self._removal(each, removed), *others])
        for page in _pages(touched.values()):
            await self._bring(each, list(self._update(each, page)), await self._twins(each, page))
        return len(touched) + len(removed)

    async def _written(self) -> None:
        """Everything submitted to the source so far is durable there, and in its place."""
        await self._source.run(_nothing)

    async def _twins(self, each: _Copy, messages: Sequence[Message]) -> dict[int, Message]:
        """Those of these that the destination does not have, by their places in the source."""
        new = [message for message in messages if message.place not in each.places]
        payloads = {message.place: message.payload for message in new}
        cold = [each for each in new if each.payload is None and not self._has_body(each)]
        if cold:
            places = [message.body_place for message in cold]
            read = await self._source.query(partial(self._source.store.read, places))
            payloads |= zip([message.place for message in cold], read, strict=True)
        # One without a payload is gone meanwhile; that is, or will be, in the journal.
        return {
            message.place: self._twin(message, payloads[message.place])
            for message in new
            if message.place not in each.gone
            and (payloads[message.place] is not None or self._has_body(message))
        }

    def _has_body(self, message: Message) -> bool:
        origin = None if message.origin is None else self._origins.get(message.origin.body)
        return origin is not None and origin.body != 0

    def _twin(self, message: Message, payload: bytes | None) -> Message:
        twin = _at_rest(message, place=0)
        twin.payload = payload
        if message.origin is not None:
            body = message.origin.body
            fresh = Origin(message.origin.sequence_number, hops=message.origin.hops)
            twin.origin = self._origins.setdefault(body, fresh)
            self._sharers[body] += 1
        return twin

    def _update(self, each: _Copy, messages: Sequence[Message]) -> Iterator[DurableEffect]:
        known = [message for message in messages if message.place in each.places]
        if known:
            yield UpdateMessages([self._known_twin(message, each.places[message.place]) for message in known])

    def _removal(self, each: _Copy, messages: Sequence[Message]) -> Iterator[DurableEffect]:
        known = [message for message in messages if message.place in each.places]
        twins = []
        for message in known:
            twins.append(self._known_twin(message, each.places.pop(message.place)))
            if message.origin is not None:
                body = message.origin.body
                self._sharers[body] -= 1
                if not self._sharers[body]:
                    # The last one takes the body along; who comes after brings it again.
                    del self._sharers[body], self._origins[body]
        if twins:
            yield RemoveMessages(twins)

    def _known_twin(self, message: Message, place: int) -> Message:
        twin = _at_rest(message, place)
        if message.origin is not None:
            twin.origin = self._origins[message.origin.body]
        return twin

    async def _bring(
        self, each: _Copy, effects: Sequence[DurableEffect], twins: Mapping[int, Message] | None = None
    ) -> None:
        if twins:
            effects = [StoreMessages(list(twins.values())), *effects]
        if effects:
            await self._target.commit([self._share(each, effects)])
        if twins:
            each.places |= {place: twin.place for place, twin in twins.items()}
            self.copied += len(twins)

    @staticmethod
    def _share(each: _Copy, effects: Sequence[DurableEffect]) -> Share:
        return Share(each.key, NEVER_CLAIMED, each.partition.next_sequence_number, effects)

    # -- the switch ---------------------------------------------------------------

    async def _switch(self) -> None:
        """While commands wait: the last changes, a comparison, and the catalog."""
        copies = list(self._copies.values())
        for each in copies:
            each.host.freeze()
        try:
            for each in copies:
                await self._bring_journal(each)
            # The counters, though nothing else may be left to bring.
            await self._target.commit([self._share(each, ()) for each in copies])
            # In a thread, since nobody changes a partition that is frozen, and others have work to do.
            messages = [await asyncio.to_thread(self._compared, each) for each in copies]
            self._refuse_interrupted()
            self._target.refuse_incomplete()
            records = list(self._records())
            await self._place(records)
        except BaseException:
            for each in copies:
                each.host.thaw()
            raise
        self._broker.registry.records.update({normalise_path(record.path): record for record in records})
        self._settle(copies, messages)

    async def _place(self, records: Sequence[EntityRecord]) -> None:
        """The one moment that decides. A catalog that fails may have done it all the same, so it is asked.

        Until it answers commands wait: to go on with either copy could be to go on with the wrong one.
        """
        catalog = self._broker.catalog
        try:
            await asyncio.to_thread(catalog.replace, *records)
        except Exception as failure:
            while True:
                try:
                    known = {record.path: record for record in await asyncio.to_thread(catalog.entities)}
                    break
                except Exception as silence:
                    logger.warning("the catalog does not say where partitions are: %s", silence)
                    await asyncio.sleep(ASK_AGAIN_S)
            if any(known.get(record.path) != record for record in records):
                raise
            logger.warning("the catalog has what it said it did not take: %s", failure)

    def _records(self) -> Iterator[EntityRecord]:
        for host in self._copies:
            record = self._broker.registry.records[normalise_path(host.path)]
            placement = list(record.placement)
            placement[host.number] = self._target.name
            yield replace(record, placement=tuple(placement))

    def _compared(self, each: _Copy) -> list[Message]:
        """The messages in memory; `StoreError` unless the copy has just those."""
        # No pair or set of theirs is made here: a million new objects would set the collector going.
        places = each.places
        messages = [message for message in each.partition.confirmed() if message.place in places]
        if len(messages) != len(places):
            raise StoreError(f"{each.host} cannot be moved: its copy has more messages than it has itself.")
        if not isinstance(each.host, TopicHost):
            is_whole = all(message.place in places for message in each.partition.confirmed())
        else:
            # What has been published stays in memory until the next confirmation.
            is_whole = all(
                message.place in places or message.state is not MessageState.SCHEDULED
                for message in each.partition.confirmed()
            )
        if not is_whole:
            raise StoreError(f"{each.host} cannot be moved: something is not in its copy.")
        return messages

    def _settle(self, copies: Sequence[_Copy], messages: Sequence[list[Message]]) -> None:
        """The catalog has it in the destination: so has memory, in one turn of the loop."""
        moved: set[int] = set()
        for each, moving in zip(copies, messages, strict=True):
            places = each.places
            for message in moving:
                message.place = places[message.place]
                origin = message.origin
                if origin is not None and id(origin) not in moved:
                    moved.add(id(origin))
                    origin.body = self._origins[origin.body].body
            for message in each.gone.values():
                _estrange(message)
        for each in copies:
            each.host.relocate(self._target, each.key, NEVER_CLAIMED)
        for each in copies:
            if self._target.state is StoreState.AWAY:
                each.host.refuse(each.host.withdraw(), StoreUnavailable(self._target.reason))
            elif each.interrupted:
                each.host.load_claimed(each.key, NEVER_CLAIMED)
            else:
                each.host.thaw()

    async def _clear_source(self) -> None:
        """Drop the original; whoever was reading from it is answered first."""
        with suppress(StoreUnavailable):
            await self._source.run(_nothing)
            await self._source.query(_nothing)
        await _discard(self._source, [each.source_key for each in self._copies.values()])


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


def _at_rest(message: Message, place: int) -> Message:
    """The message as a store knows it, elsewhere."""
    twin = copy(message)
    twin.place = place
    twin.lock_token, twin.locked_until = None, Instant(0)
    return twin


def _estrange(message: Message) -> None:
    """It was removed in the source: nobody may look for it under the same number in the destination."""
    message.place = 0
    if message.origin is not None:
        message.origin = Origin(message.origin.sequence_number, hops=message.origin.hops)


def _make_alone(store: MessagingStore, path: EntityPath, number: PartitionNumber) -> PartitionKey:
    """An empty partition: what an earlier move may have left behind must not come to light again."""
    store.discard([record.key for record in store.create_partitions(path, [number])])
    (made,) = store.create_partitions(path, [number])
    return made.key


def _read_states(
    store: MessagingStore, key: PartitionKey, session_ids: Sequence[SessionId]
) -> list[bytes | None]:
    return [store.read_session_state(key, session_id) for session_id in session_ids]


async def _discard(store: AttachedStore, keys: Sequence[PartitionKey]) -> None:
    """Clear away what nobody will miss: what stays is swept at the next start."""
    if not keys:
        return
    try:
        await store.run(partial(store.store.discard, keys))
    except Exception as failure:
        logger.warning("store %s: %d partitions stay for now: %s", store.name, len(keys), failure)


def _nothing() -> None:
    """For its place in the line."""
