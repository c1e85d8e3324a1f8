"""What must be true of every message, told by the peers on one side and by the disks on the other.

The peers say what they ask for and what was answered; the stores say, after each
commit, what is on disk now. Whatever is not answered may have happened or not,
and both are right. A message that was accepted is somewhere, in exactly one
place, until somebody has asked to remove it; once that was answered it is never
seen again. Nobody is shown a message that is not on disk. What was sent together
is there together. The broker's memory against the disks: mirror.py. Completed
messages that are kept, and come back: keeping.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from bendybus.amqp.message import read_properties, scan
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.resting import delay_ms
from bendybus.domain.routing import partition_of
from bendybus.envelope import Stored
from bendybus.names import PARTITION_SHIFT
from bendybus.store.protocol import PartitionKey
from faults.simulation.keeping import Keeping, Replay
from faults.simulation.plan import Lane, Plan
from faults.simulation.stores import VirtualStore
from faults.simulation.world import World

__all__ = ["Arrival", "Batch", "Invariant", "Ledger", "Letter", "Spot"]

# What a server had written may still be on its way this long after something else has been answered.
ON_THE_WIRE_S = 0.02

# The clock shows milliseconds, and a lock that is about to end may be found ended.
LOCK_TOLERANCE_MS = 50


class Invariant(Enum):
    """The names under which violations are counted."""

    LOST = "acknowledged and lost"
    RESURRECTED = "settled and seen again"
    DISORDERED = "out of order"
    DUPLICATED = "in more than one place"
    PHANTOM = "seen before it was durable"
    SHARED = "locked by two at once"
    FORGOTTEN = "a settlement without a trace"
    TORN = "half of a transaction or batch"
    MISCOUNTED = "counts or memory differ from what is kept"
    UNEXPECTED = "never sent, or not to there"
    TWO_OWNERS = "written by a broker that is not the owner"
    STUCK = "kept and not to be had"
    FAULTY = "an error that no fault explains"


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a copy of a message is on disk."""

    entity: str
    subqueue: SubQueue
    state: MessageState
    sequence_number: int
    delivery_count: int
    completed_at: int | None = None
    """Of one that is kept after its completion."""


@dataclass(slots=True, eq=False)
class Batch:
    """What is to be there together: a batch, or the work of a transaction."""

    name: str
    sent: list[Letter] = field(default_factory=list)
    removed: list[Letter] = field(default_factory=list)
    allowed: bool = True
    """False while nobody has asked to commit it, and after it was rolled back."""


@dataclass(slots=True, eq=False)
class Letter:
    """One copy of one message, in its lane."""

    id: str
    lane: Lane
    stream: str | None
    batch: Batch | None
    expires_ms: int | None
    colour: str
    seen_in: SubQueue = SubQueue.MAIN
    """Where it was received last."""
    accepted: bool = False
    removed: bool = False
    removed_at: float = 0.0
    removed_by: set[object] = field(default_factory=set)
    """`removals` of its former life, if it was put back: one of them has happened."""
    removals: set[object] = field(default_factory=set)
    """Who has asked to remove it, and may have been heard."""
    asked_at: float = 0.0
    """When somebody asked for it last."""
    settled_at: float = 0.0
    settled_as: SubQueue | MessageState | None = None
    """Where the last settlement has put it, if that was answered and nothing was asked since."""
    asked_by: object = None
    """Whose request concerns it last: an earlier one may be answered later."""
    failures: dict[str, int] = field(default_factory=dict)
    """Deliveries that were abandoned, and answered so, in each entity."""
    spots: dict[tuple[str, PartitionKey, int], Spot] = field(default_factory=dict)
    been_at: dict[str, None] = field(default_factory=dict)
    durable: bool = False
    """Whether it was ever on disk."""
    scheduled: bool = False
    """It gets another number when it is due."""
    doubtful: bool = False
    """A commit that held it was reported as failed, so that it may have been sent again elsewhere."""
    held_by: tuple[object, int, float] | None = None
    """Link, end of the lock by the wall clock, and since when: a later fault may have ended it."""
    rests: tuple[str, int, float] | None = None
    """Where it was abandoned, until when it rests by the wall clock at least, and since when."""
    life: int = 0
    """How often it came back after it was completed."""
    kept_in_life: int = -1
    """The last life after which it was kept."""
    asked_in: dict[object, tuple[int, str | None]] = field(default_factory=dict)
    """Who has asked to remove it, in which life, and the entity that is to keep it then."""
    comebacks: list[list[Replay]] = field(default_factory=list)
    """The replays that may have put it back, each time."""

    @property
    def live(self) -> list[Spot]:
        """Where it is, but for the place where completed messages are kept."""
        return [spot for spot in self.spots.values() if spot.subqueue is not SubQueue.COMPLETED]

    def begin_again(self) -> None:
        """It was completed, kept, and put back: nothing of its former life counts."""
        self.life += 1
        self.removed = False
        self.removed_by, self.removals = self.removals, set()
        self.failures.clear()
        self.settled_as = self.asked_by = self.held_by = self.rests = None

    def __str__(self) -> str:
        return f"{self.id} in {self.lane.name}"

    def keeps(self, spot: Spot) -> bool:
        """Whether the message is lost with this spot, if it is the only one.

        What has arrived where it goes stays in the outbox until that is known there. If the message may
        have been sent twice, what has arrived may be the other, and be taken back.
        """
        if spot.subqueue is not SubQueue.OUTBOX or self.doubtful:
            return True
        entities = self.lane.entities
        onward = entities[entities.index(spot.entity) + 1 :] if spot.entity in entities else ()
        if self.lane.key_of is not None:
            onward = entities
        return not any(each in self.been_at for each in onward)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery, as it came off the wire."""

    id: str
    body: bytes
    entity: str
    subqueue: SubQueue
    state: MessageState
    sequence_number: int
    delivery_count: int
    locked_until_ms: int | None
    link: object
    in_order: bool = False
    """Whether nobody else can have had messages of this partition, or session, since the link began."""


class Ledger:
    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.violations: list[tuple[Invariant, str]] = []
        self.letters: dict[tuple[str, str], Letter] = {}
        """By message id and lane."""
        self._last_fault_at = -1.0
        """Crashes and failed commits: each may have ended locks."""
        self.dirty: dict[tuple[VirtualStore, PartitionKey], None] = {}
        """Partitions that have changed since the broker's memory was last compared with them."""
        self.sent = self.acknowledged = self.delivered = self.completed = 0
        self.keeping = Keeping(world, plan)
        self.late = 0
        """Deliveries of settled messages that a fault explains."""
        self.jumped_at = -1.0
        """When somebody set the clock."""
        self._plan = plan
        self._ids: dict[tuple[str, int], str] = {}
        self._lanes: dict[tuple[str, str], Lane] = {
            (group, entity): lane
            for group, lanes in plan.lanes.items()
            for lane in lanes
            for entity in lane.entities
        }
        self._topics = {topic.path for topic in plan.topics}
        self._resting = {
            each.path: each for each in (*plan.queues, *plan.subscriptions) if each.retry_delay_s
        }
        self._fronts: dict[tuple[object, int], tuple[int, float]] = {}
        self._streams: dict[tuple[str, str], int] = {}
        self._batches: dict[Batch, None] = {}
        self._partitions: dict[tuple[str, PartitionKey], dict[int, tuple[list[Letter], Spot]]] = {}
        """What was last seen on disk: store and partition -> place -> whose it is and how it is there."""

    def violate(self, kind: Invariant, what: str) -> None:
        self.world.note(f"VIOLATION {kind.name}: {what}")
        self.violations.append((kind, what))

    # -- what peers ask and are told -----------------------------------------------------

    def attempt(
        self,
        ids: Sequence[str],
        colour: str,
        *,
        stream: str | None = None,
        ttl_s: float | None = None,
        batch: Batch | None = None,
        scheduled: bool = False,
    ) -> list[Letter]:
        """One send is about to go out; several ids are one batch."""
        letters = []
        expires_ms = None if ttl_s is None else self.world.wall_ms + int(ttl_s * 1000)
        for lane in self._plan.lanes[ids[0].partition(":")[0]]:
            if not lane.takes(colour) and not lane.optional:
                continue
            together = batch
            if batch is None and len(ids) > 1 and not lane.optional:
                together = Batch(f"{ids[0]} and {len(ids) - 1} more in {lane.name}")
                self._batches[together] = None
            for message_id in ids:
                known = self.letters.get((message_id, lane.name))
                letter = known or Letter(message_id, lane, stream, together, expires_ms, colour)
                letter.scheduled = scheduled
                self.letters[message_id, lane.name] = letter
                if known is None and together is not None:
                    together.sent.append(letter)
                letters.append(letter)
        self.sent += len(ids)
        return letters

    def accept(self, letters: Sequence[Letter]) -> None:
        self.acknowledged += len({letter.id for letter in letters})
        for letter in letters:
            letter.accepted = True
            self._check(letter)

    def begin(self, batch: Batch) -> None:
        """A transaction: its work is known by name, and not allowed yet."""
        batch.allowed = False
        self._batches[batch] = None

    def ask_removal(self, letter: Letter, who: object, completed_in: str | None = None) -> None:
        """`completed_in`: the entity, if it is a receiver that has processed the message."""
        letter.removals.add(who)
        keeps = completed_in is not None and self.keeping.keeps(completed_in)
        kept_in = completed_in if keeps and letter.seen_in is SubQueue.MAIN else None
        letter.asked_in[who] = letter.life, kept_in
        letter.asked_at = self.world.now
        letter.settled_as = None

    def remove(self, letter: Letter, who: object) -> None:
        """Answered: it is gone for good, unless it is kept and somebody puts it back."""
        life, kept_in = letter.asked_in[who]
        if life != letter.life:
            # It came back before the answer did.
            return
        if kept_in is not None and letter.kept_in_life != life and not letter.doubtful:
            self.violate(Invariant.LOST, f"{letter} was completed and is not kept in {kept_in}")
        if not letter.removed:
            letter.removed, letter.removed_at = True, self.world.now
            self.completed += 1
        self._check(letter)

    def settle(
        self, letter: Letter, how: SubQueue | MessageState | None, entity: str, asked_by: object
    ) -> None:
        """Answered: it was deferred, dead-lettered or, with None, abandoned."""
        letter.settled_at = self.world.now
        if letter.asked_by is asked_by:
            letter.settled_as = how
            letter.held_by = None
        # Among dead letters nothing is counted: there is nowhere to go from there.
        if how is None and letter.seen_in is not SubQueue.DEAD_LETTER:
            letter.failures[entity] = letter.failures.get(entity, 0) + 1

    def rest(self, letter: Letter, entity: str, asked_ms: int, asked_at: float) -> None:
        """Answered: it was abandoned, and is to rest if its entity says so."""
        if entity in self._resting:
            for_ms = delay_ms(self._resting[entity], letter.failures.get(entity, 1))
            letter.rests = entity, asked_ms + for_ms, asked_at

    def answer_replay(self, replay: Replay, count: int, unavailable: int) -> None:
        self._complain(Invariant.FORGOTTEN, self.keeping.answer(replay, count, unavailable))

    def fault(self) -> None:
        """Memory is thrown away, and locks with it, though whoever has some may not have heard so yet."""
        self._last_fault_at = self.world.now

    def may_be_late(self, since: float) -> bool:
        """Whether a delivery of now may be from a time before `since`. One server delays nothing for long."""
        return False

    def _fault_since(self, at: float) -> bool:
        return self._last_fault_at > at - ON_THE_WIRE_S

    # -- what peers are shown ------------------------------------------------------------

    def arrive(self, arrival: Arrival) -> Letter | None:
        """The letter, if it is one that can be settled."""
        letter = self.find(arrival.id, arrival.entity)
        if letter is None or arrival.body != body_of(arrival.id):
            self.violate(Invariant.UNEXPECTED, f"{arrival.id} at {arrival.entity}")
            return None
        self.delivered += 1
        if not letter.durable:
            self.violate(Invariant.PHANTOM, f"{letter} at {arrival.sequence_number:#x}")
        letter.seen_in = arrival.subqueue
        if letter.removed and not letter.doubtful and self.world.now > letter.removed_at + ON_THE_WIRE_S:
            if self.may_be_late(letter.removed_at):
                self.late += 1
                self.world.note(f"{letter} was settled {self.world.now - letter.removed_at:.3f} s ago")
            else:
                self.violate(Invariant.RESURRECTED, f"{letter} was delivered at {arrival.sequence_number:#x}")
        if not letter.doubtful and not self.may_be_late(letter.settled_at):
            self._check_traces(letter, arrival)
            self._check_rest(letter, arrival)
        if arrival.locked_until_ms is not None:
            self._check_lock(letter, arrival, arrival.locked_until_ms)
            if not self.may_be_late(letter.asked_at):
                # Whoever asked to remove it under an earlier lock was not heard, and will not be.
                letter.removals.clear()
        if arrival.in_order:
            self._check_front(letter, arrival)
        return letter

    def find(self, message_id: str, entity: str) -> Letter | None:
        lane = self._lanes.get((message_id.partition(":")[0], entity))
        return None if lane is None else self.letters.get((message_id, lane.name))

    def _check_traces(self, letter: Letter, arrival: Arrival) -> None:
        settled = letter.settled_as
        where = arrival.subqueue if isinstance(settled, SubQueue) else arrival.state
        if settled is not None and where is not settled and arrival.entity == letter.lane.entities[0]:
            self.violate(Invariant.FORGOTTEN, f"{letter} was settled as {settled!r} and is at {where!r}")
        failures = letter.failures.get(arrival.entity, 0)
        if arrival.delivery_count < failures:
            self.violate(
                Invariant.FORGOTTEN,
                f"{letter} was abandoned {failures} times and counts {arrival.delivery_count}",
            )

    def _check_rest(self, letter: Letter, arrival: Arrival) -> None:
        """What was abandoned with a delay is not handed out before. Locks and rests end together."""
        rests, letter.rests = letter.rests, None
        if rests is None or arrival.subqueue is not SubQueue.MAIN or arrival.state is not MessageState.ACTIVE:
            return
        entity, until_ms, since = rests
        early_ms = until_ms - LOCK_TOLERANCE_MS - self.world.wall_ms
        excused = self._fault_since(since) or self.jumped_at >= since
        if entity == arrival.entity and early_ms > 0 and not excused:
            self.violate(Invariant.FORGOTTEN, f"{letter} was to rest for {early_ms} ms more")

    def _check_lock(self, letter: Letter, arrival: Arrival, until_ms: int) -> None:
        if until_ms < self.world.wall_ms:
            # The clock was set while it was on the wire: its lock is over, and others may have it by now.
            return
        held = letter.held_by
        if held is not None and not letter.doubtful:
            link, ends_ms, since = held
            excused = self._fault_since(since) or self.world.wall_ms > ends_ms - LOCK_TOLERANCE_MS
            if link is not arrival.link and not excused:
                self.violate(Invariant.SHARED, f"{letter}: locked until {ends_ms}, and again")
        letter.held_by = arrival.link, until_ms, self._locked_at(arrival.entity, until_ms)

    def _locked_at(self, entity: str, until_ms: int) -> float:
        """When a lock was granted under which a message has just arrived. One server makes sure before it
        sends a message that its lock has not ended."""
        return self.world.now

    def _check_front(self, letter: Letter, arrival: Arrival) -> None:
        """A link gets what it gets for the first time in the order of each partition, or session (P-26)."""
        number = arrival.sequence_number
        front = arrival.link, number >> PARTITION_SHIFT
        before, since = self._fronts.get(front, (0, self.world.now))
        if self._fault_since(since):
            before = 0
        if arrival.delivery_count == 0 and number < before:
            self.violate(Invariant.DISORDERED, f"{letter} at {number:#x} came after {before:#x}")
        self._fronts[front] = max(number, before), self.world.now

    def given_up(self, link: object) -> None:
        """A peer has gone, or given back what it had: what it held may be given to others."""
        for letter in self.letters.values():
            if letter.held_by is not None and letter.held_by[0] is link:
                letter.held_by = None

    # -- what the disks say --------------------------------------------------------------

    def observe(self, store: VirtualStore, keys: Sequence[PartitionKey]) -> None:
        """These partitions have just changed on disk."""
        touched: dict[Letter, None] = {}
        for key in keys:
            self.dirty[store, key] = None
            self._read_partition(store, key, touched)
        for letter in touched:
            self._check(letter)
        for batch in tuple(self._batches):
            self._check_whole(batch)

    def _read_partition(self, store: VirtualStore, key: PartitionKey, touched: dict[Letter, None]) -> None:
        before = self._partitions.pop((store.name, key), {})
        now: dict[int, tuple[list[Letter], Spot]] = {}
        contents = store.contents(key)
        if contents is not None:
            record, messages = contents
            for message in messages:
                spot = Spot(
                    record.entity,
                    message.subqueue,
                    message.state,
                    message.sequence_number,
                    message.delivery_count,
                    None if message.amendment is None else message.amendment.completed_at,
                )
                known = before.get(message.row_id)
                if known is not None and known[1] == spot:
                    now[message.row_id] = known
                    continue
                letters = self._letters_of(self._id_of(store, message), record.entity)
                if not letters:
                    self.violate(Invariant.UNEXPECTED, f"{self._id_of(store, message)} is in {record.entity}")
                    continue
                now[message.row_id] = letters, spot
                for letter in letters:
                    if known is not None:
                        self._pass_on(letter, known[1], spot)
                    letter.spots[store.name, key, message.row_id] = spot
                    self._found(letter, spot)
                    # Who sent it may have been told that it failed, and sent it elsewhere.
                    letter.doubtful = letter.doubtful or (store.late and known is None)
                    touched[letter] = None
            self._partitions[store.name, key] = now
        for place, (letters, last) in before.items():
            if place not in now:
                for letter in letters:
                    if last.subqueue is SubQueue.COMPLETED and contents is not None:
                        self._complain(Invariant.LOST, self.keeping.forgotten(letter, last))
                    del letter.spots[store.name, key, place]
                    touched[letter] = None

    def _pass_on(self, letter: Letter, before: Spot, now: Spot) -> None:
        was_kept = before.subqueue is SubQueue.COMPLETED and now.subqueue is not SubQueue.COMPLETED
        if self.keeping.keeps(now.entity) and before.subqueue is now.subqueue is SubQueue.MAIN:
            # One commit may have both, completion and return. Else only what is due gets a number.
            is_due = before.state is MessageState.SCHEDULED
            was_kept = now.sequence_number != before.sequence_number and not is_due
        if was_kept:
            self._complain(Invariant.RESURRECTED, self.keeping.came_back(letter, now.entity))

    def _complain(self, kind: Invariant, what: str | None) -> None:
        if what is not None:
            self.violate(kind, what)

    def _letters_of(self, message_id: str, entity: str) -> list[Letter]:
        """Whose this is: what waits in a topic for its time is every lane's."""
        if entity in self._topics:
            lanes = self._plan.lanes[entity]
            found = [self.letters.get((message_id, lane.name)) for lane in lanes]
        else:
            found = [self.find(message_id, entity)]
        return [letter for letter in found if letter is not None]

    def _id_of(self, store: VirtualStore, message: Message) -> str:
        place = message.body_row_id
        found = self._ids.get((store.name, place))
        if found is None:
            bare = Stored.of(store.payload(message)).bare
            found = self._ids[store.name, place] = str(
                read_properties(bare, scan(bare).properties).message_id
            )
        return found

    def _found(self, letter: Letter, spot: Spot) -> None:
        letter.durable = True
        if spot.subqueue is SubQueue.COMPLETED:
            letter.kept_in_life = letter.life
        if spot.subqueue is SubQueue.OUTBOX or spot.entity in self._topics:
            return
        first = spot.entity not in letter.been_at
        letter.been_at[spot.entity] = None
        if letter.lane.key_of is not None and spot.subqueue is SubQueue.MAIN:
            self._check_home(letter, spot, letter.lane.key_of(letter.colour))
        if first and letter.stream is not None and spot.subqueue is SubQueue.MAIN:
            self._check_stream(letter, spot)

    def _check_home(self, letter: Letter, spot: Spot, key: str) -> None:
        """A key that a rule has set is in its partition alone."""
        home = partition_of(key, self._plan.partition_count(spot.entity))
        if spot.sequence_number >> PARTITION_SHIFT != home:
            self.violate(Invariant.UNEXPECTED, f"{letter} at {spot.sequence_number:#x}, not in {home}")

    def _check_stream(self, letter: Letter, spot: Spot) -> None:
        """What one sender sends with one key stays in its order, in one partition."""
        if spot.entity not in letter.lane.entities[: letter.lane.ordered]:
            return
        # A key that a rule has set makes several streams of one.
        key = "" if letter.lane.key_of is None else letter.lane.key_of(letter.colour)
        stream = f"{letter.lane.name}/{letter.stream}/{key}", spot.entity
        before = self._streams.get(stream, 0)
        number = spot.sequence_number
        if before and (number < before or number >> PARTITION_SHIFT != before >> PARTITION_SHIFT):
            self.violate(Invariant.DISORDERED, f"{letter} at {number:#x} follows {before:#x} in {stream}")
        self._streams[stream] = number

    def _check(self, letter: Letter) -> None:
        """Whether this one is where it has to be, given what is known."""
        live = sum(map(letter.keeps, letter.live))
        kept = live + len(letter.spots) - len(letter.live)
        if letter.batch is not None and not letter.batch.allowed and letter.durable:
            self.violate(Invariant.TORN, f"{letter} is there, and {letter.batch.name} was never committed")
        if kept > 1 and not letter.doubtful:
            self.violate(Invariant.DUPLICATED, f"{letter}: {list(letter.spots.values())}")
        elif live and letter.removed and not letter.doubtful:
            self.violate(Invariant.RESURRECTED, f"{letter}: {list(letter.spots.values())}")
        elif not live and letter.accepted and not letter.removals and not letter.removed:
            expired = letter.expires_ms is not None and letter.expires_ms <= self.world.wall_ms
            if not expired and not letter.lane.optional:
                self.violate(Invariant.LOST, f"{letter}")

    def _check_whole(self, batch: Batch) -> None:
        done = [letter.durable for letter in batch.sent]
        # Of one that somebody else wanted to remove, too, nobody can say who did.
        removed = [
            each for each in batch.removed if not each.doubtful and each.removals | each.removed_by <= {batch}
        ]
        done += [
            batch in letter.removed_by or (not letter.live and batch in letter.removals) for letter in removed
        ]
        if any(done):
            del self._batches[batch]
            if not all(done):
                self.violate(Invariant.TORN, f"{sum(done)} of {len(done)} in {batch.name}")

    def doubt(self, store: VirtualStore, keys: Sequence[PartitionKey]) -> None:
        """A commit of these partitions was reported as failed though it happened."""
        for key in keys:
            for letters, _ in self._partitions.get((store.name, key), {}).values():
                for letter in letters:
                    if not letter.accepted:
                        letter.doubtful = True

    # -- the end -------------------------------------------------------------------------

    def close(self) -> None:
        """Everything has been received that can be: nothing may be left."""
        for letter in self.letters.values():
            for spot in letter.spots.values():
                self.violate(Invariant.STUCK, f"{letter}: {spot}")


def body_of(message_id: str) -> bytes:
    return message_id.encode() * (1 + len(message_id) % 7)
