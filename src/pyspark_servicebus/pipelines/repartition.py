"""Repartition: moves the contents of a queue or topic to a new one with the other partitioning choice.

    planned -> created -> frozen -> equal -> opened -> done

Each phase is recorded in the checkpoint when it is reached, and every phase can be repeated.
While the old entity is frozen, its clients are refused, and the new one delivers nothing. The
copies have marks, so that after any interruption both are compared and only the difference is corrected
(parts.py). The old entity is given up only when counts, checksums, the order of every key and the states of
sessions agree.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from bendybus.errors import (
    ArgumentError,
    ConfigError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    NotSupported,
    SessionCannotBeLocked,
    Unavailable,
)
from bendybus.management.entries import Entry, bare_name
from bendybus.management.properties import subscription_path
from pyspark_servicebus.pipelines.checkpoint import Folder, default_checkpoint, own_checkpoint
from pyspark_servicebus.pipelines.entities import Entities, is_topic
from pyspark_servicebus.pipelines.jobs import Stopped, stoppable
from pyspark_servicebus.pipelines.parts import Comparison, Part
from pyspark_servicebus.pipelines.pipeline import (
    Bus,
    EntityState,
    Progress,
    Run,
    Summary,
    dead_letters_of,
    is_dead_letters,
    timed,
)
from pyspark_servicebus.pipelines.session_states import copy_states, read_states

__all__ = ["ENDINGS", "Repartition"]

ENDINGS: Final = ("forward", "delete", "keep")
STATE: Final = "repartition.json"
DEFERRED: Final = "deferred.json"
PHASES: Final = ("planned", "created", "frozen", "equal", "opened", "done")

# Each round corrects what the last one left. If more are needed, something else changes the entities.
ROUNDS_MAX: Final = 6

# Partitions of a topic in Standard. Its size is shown for all of them and set for one.
PARTITIONS: Final = 16

# Set when the new entity is opened, because the pipeline's own copies must not be forwarded or kept.
WITHHELD: Final = ("ForwardTo", "ForwardDeadLetteredMessagesTo", "KeepCompleted")

# A subscription of the old topic with this name passes its messages to the new topic.
FORWARDING: Final = "forward"

# What the summary has of the state.
TOLD: Final = (
    *("phase", "partitioned", "checksum", "deadLetters", "sessionStates"),
    *("deferred", "deferredNumbers"),
)

# So many are compared and copied without Spark's tasks.
FEW_MAX: Final = 2000
FEW_BYTES_MAX: Final = 16 * 1024 * 1024

POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    bus: Bus
    source: str
    target: str
    """The new queue or topic. The pipeline creates it."""
    ending: str = "forward"
    """What happens to the old one: it forwards to the new one, is deleted, or is kept disabled."""
    checkpoint: str | None = None

    def check(self) -> None:
        if self.ending not in ENDINGS:
            raise ArgumentError(f"'{self.ending}' is none of {', '.join(ENDINGS)}.")
        if "/" in self.source:
            raise ArgumentError(f"'{self.source}' is a part of an entity: name the queue or the topic.")
        if self.source.lower() == self.target.lower():
            raise ArgumentError(f"'{self.source}' cannot be moved to itself: name a new entity.")
        entities = self._entities()
        # If a run was interrupted near its end, the old entity may already be gone.
        if entities.find(self.source) is None and entities.find(self.target) is None:
            raise EntityNotFound(self.source)

    def run(self, spark: SparkSession, run: Run) -> Summary:
        self.check()
        path = self.checkpoint or default_checkpoint("repartition", self.source, self.target)
        entities = self._entities()
        with timed() as seconds:
            begun = Folder(spark, path).exists(STATE)
            if not begun:
                # Nothing is recorded for a run that cannot start.
                self._refuse(entities)
            identity = {
                "pipeline": "repartition",
                "source": self.source.lower(),
                "target": self.target.lower(),
                "ending": self.ending,
            }
            move = _Move(self, spark, run, entities, own_checkpoint(spark, path, identity))
            outcome = move.go_on()
        details: dict[str, Any] = {
            "source": self.source,
            "target": self.target,
            "ending": self.ending,
            "checkpoint": path,
        }
        told = {name: move.state[name] for name in TOLD if name in move.state}
        return Summary("repartition", outcome, move.state.get("messages", 0), seconds(), details | told)

    def _entities(self) -> Entities:
        return Entities(self.bus.connection_string, self.bus.options.get("certificate"))

    def _refuse(self, entities: Entities) -> None:
        """Raise if the move cannot start."""
        source = entities.get(self.source)
        if entities.find(self.target) is not None:
            raise EntityExists(f"'{self.target}' exists already: the new entity is made by the pipeline.")
        if source.text("ForwardTo"):
            raise InvalidOperation(f"'{self.source}' forwards its messages, so it has none to move.")
        paths = [self.source]
        if is_topic(source):
            refuse_scheduled(source)
            names = [each.name for each in entities.subscriptions(self.source)]
            paths = [subscription_path(self.source, name) for name in names]
        for path in paths:
            self.bus_state(path)
            refuse_undelivered(path, entities.get(path))

    def bus_state(self, entity: str) -> EntityState:
        state = self.bus.check_readable(entity)
        if state is None:
            raise NotSupported("This namespace lacks the operations that repartitioning needs.")
        return state


def refuse_scheduled(topic: Entry) -> None:
    count = _count_of(topic, "ScheduledMessageCount")
    if count:
        raise InvalidOperation(
            f"'{topic.name}' has {count} scheduled messages, which a topic does not show: wait until they "
            "are due, or cancel them."
        )


def refuse_undelivered(path: str, entry: Entry) -> None:
    """Messages on their way to another entity, and those that could not be delivered there."""
    count = _count_of(entry, "TransferDeadLetterMessageCount")
    if count:
        raise InvalidOperation(
            f"'{path}' has {count} messages in its transfer dead-letter queue, which is not moved: receive "
            "them first."
        )


def _count_of(entry: Entry, name: str) -> int:
    found = (int(each.text or 0) for each in entry.description.iter() if bare_name(each) == name)
    return next(found, 0)


class _Move:
    """One run of the move: from the phase that was reached to the end, or as far as possible."""

    def __init__(
        self, plan: Repartition, spark: SparkSession, run: Run, entities: Entities, folder: Folder
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._run = run
        self._entities = entities
        self._folder = folder
        self.state: dict[str, Any] = folder.read_json(STATE) or {}

    def go_on(self) -> str:
        steps: dict[str, Callable[[], None]] = {
            "planned": self._begin,
            "created": self._create,
            "frozen": self._freeze,
            "equal": self._copy,
            "opened": self._open,
            "done": self._give_up,
        }
        reached = self.state.get("phase")
        if reached is not None and (reached not in PHASES or "topic" not in self.state):
            raise ConfigError(f"the checkpoint is in the phase '{reached}' of another version's move")
        for phase in PHASES[0 if reached is None else PHASES.index(reached) + 1 :]:
            self._run.tell(Progress(f"Repartition: {phase}", self.state.get("messages", 0)))
            if self._run.stopping.is_set():
                return "stopped"
            try:
                steps[phase]()
            except Stopped:
                return "stopped"
            self.state["phase"] = phase
            self._folder.write_json(STATE, self.state)
        return "finished"

    # -- phases ----------------------------------------------------------------------------

    def _begin(self) -> None:
        source = self._entities.get(self._plan.source)
        self.state = {
            "topic": is_topic(source),
            "generation": uuid.uuid4().hex,
            "identity": self._identity(self._plan.source),
            "partitioned": source.text("EnablePartitioning") != "true",
            "properties": self._withheld(source),
        }

    def _create(self) -> None:
        """Create the new entity. It delivers nothing before all messages are there."""
        plan, entities = self._plan, self._entities
        source = entities.get(plan.source)
        if entities.find(plan.target) is None:
            changed = dict.fromkeys(self.state["properties"], "")
            changed["EnablePartitioning"] = str(self.state["partitioned"]).lower()
            # Messages are sent to a queue, and inserted into subscriptions.
            changed["Status"] = "Disabled" if self.state["topic"] else "ReceiveDisabled"
            entities.create_like(source, self._partition_count(source), plan.target, **changed)
        self.state["target_identity"] = self._identity(plan.target)
        if self.state["topic"]:
            self._create_subscriptions()

    def _create_subscriptions(self) -> None:
        """The new topic gets the subscriptions of the old one, with their rules, and no others."""
        plan, entities = self._plan, self._entities
        known = self.state.setdefault("subscriptions", {})
        wanted = {each.name: each for each in entities.subscriptions(plan.source)}
        there = {each.name for each in entities.subscriptions(plan.target)}
        for name, entry in wanted.items():
            # Settings that the old one gets later, when it is frozen, must not be copied.
            known.setdefault(name, self._withheld(entry))
            path = subscription_path(plan.target, name)
            if name not in there:
                changed = {**dict.fromkeys(known[name], ""), "Status": "Disabled"}
                entities.create_like(entry, 1, path, **changed)
            entities.copy_rules(subscription_path(plan.source, name), path)
        for name in {*known, *there} - wanted.keys():
            known.pop(name, None)
            entities.delete(subscription_path(plan.target, name))

    def _freeze(self) -> None:
        """Refuse the clients of the old entity, and wait until none of them holds a lock."""
        plan, entities = self._plan, self._entities
        self._same_entities()
        entities.update(plan.source, Status="Disabled")
        if self.state["topic"]:
            # Whatever was changed since they were created.
            self._create_subscriptions()
            for name in self.state["subscriptions"]:
                entities.update(subscription_path(plan.source, name), Status="Disabled")
            refuse_scheduled(entities.get(plan.source))
        for path, _ in self._pairs():
            self._wait_for_clients(path)

    def _wait_for_clients(self, path: str) -> None:
        """A receiver may settle what it has locked, even now. Locks that are not renewed end."""
        while (waited_for := self._waited_for(path)) is not None:
            self._run.tell(Progress(f"Repartition: waiting for {waited_for} of '{path}'", 0))
            if self._run.stopping.wait(POLL_S):
                raise Stopped

    def _waited_for(self, path: str) -> str | None:
        locked = sum(self._available(each).locked for each in (path, dead_letters_of(path)))
        if locked:
            return f"{locked} locked messages"
        under_way = _count_of(self._entities.get(path), "TransferMessageCount")
        if under_way:
            return f"{under_way} transfers"
        if self._has_sessions(path):
            try:
                read_states(self._plan.bus, path)
            except SessionCannotBeLocked:
                return "the holder of a session"
        return None

    def _copy(self) -> None:
        """Copy until both are equal. The old entity changes only by messages that become due or expire."""
        self._same_entities()
        if not self._is_frozen():
            self._freeze()
        for _ in range(ROUNDS_MAX):
            with stoppable(self._spark, self._run):
                found = {part: part.compare(self._spark) for part in self._parts()}
                messages = sum(each.messages for each in found.values())
                complete = all(each.equal for each in found.values())
                if complete and self._counts_agree(found):
                    self._record(found)
                    return
                for part, difference in found.items():
                    if not difference.equal:
                        part.correct(self._spark, difference)
            self._run.tell(Progress("Repartition: copied", messages, messages))
        raise Unavailable(
            f"'{self._plan.target}' does not become equal to '{self._plan.source}': is somebody else sending "
            "to it, or do messages share an id that its duplicate detection drops? Nothing was given up."
        )

    def _counts_agree(self, found: Mapping[Part, Comparison]) -> bool:
        """Whether everything was read. A partition that was unavailable for a moment would be missing."""
        return all(
            each.messages == self._contents(part.source) and each.copies == self._contents(part.target)
            for part, each in found.items()
        )

    def _record(self, found: Mapping[Part, Comparison]) -> None:
        states = 0
        for source, target in self._pairs():
            if self._has_sessions(source):
                states += copy_states(self._plan.bus, source, target)
        letters = sum(each.messages for part, each in found.items() if is_dead_letters(part.source))
        numbers = {
            part.target: {str(old): new for old, new in each.deferred}
            for part, each in found.items()
            if each.deferred
        }
        self.state |= {
            "messages": sum(each.messages for each in found.values()),
            "checksum": f"{sum(each.checksum for each in found.values()):x}",
            "deadLetters": letters,
            "deferred": sum(map(len, numbers.values())),
            "sessionStates": states,
        }
        if numbers:
            # The only trace of their old numbers, by which applications know them.
            self._folder.write_json(DEFERRED, numbers)
            self.state["deferredNumbers"] = f"{self._folder.uri}/{DEFERRED}"

    def _is_frozen(self) -> bool:
        """False if the old entity was enabled again: by a user, or by a restart with its Config.json."""
        paths = {self._plan.source, *(source for source, _ in self._pairs())}
        return all(self._entities.get(path).text("Status") == "Disabled" for path in paths)

    def _refuse_new_messages(self) -> None:
        """The new entity is open, so messages that were sent to the old one since then are not copied."""
        found = sum(self._contents(part.source) for part in self._parts())
        if found > self.state["messages"] or not self._is_frozen():
            raise InvalidOperation(
                f"'{self._plan.source}' was enabled again after its messages had been copied, so clients may "
                f"have sent to it: it has {found} messages, and {self.state['messages']} were copied. "
                f"Nothing was given up. Disable it, move the others to '{self._plan.target}', and delete it."
            )

    def _open(self) -> None:
        if not self._is_frozen():
            self._copy()
        for name, properties in self.state.get("subscriptions", {}).items():
            self._entities.update(subscription_path(self._plan.target, name), **properties)
        self._entities.update(self._plan.target, **self.state["properties"])

    def _give_up(self) -> None:
        plan, entities = self._plan, self._entities
        if plan.ending == "keep":
            return
        old = entities.find(plan.source)
        if old is not None and self._identity(plan.source) == self.state["identity"]:
            self._refuse_new_messages()
            entities.delete(plan.source)
            old = None
        if plan.ending != "forward":
            return
        if old is None:
            pattern = entities.get(plan.target)
            changed: dict[str, object] = dict.fromkeys(WITHHELD, "")
            changed |= self.state["properties"]
            changed["EnablePartitioning"] = str(not self.state["partitioned"]).lower()
            if not self.state["topic"]:
                changed |= {"RequiresSession": "", "ForwardTo": plan.target}
            entities.create_like(pattern, self._partition_count(pattern), plan.source, **changed)
        if self.state["topic"]:
            entities.create_forwarding(plan.source, FORWARDING, plan.target)

    # -- the entities ----------------------------------------------------------------------

    def _same_entities(self) -> None:
        """Check that these are the two planned entities, and not others created later with the same names."""
        plan = self._plan
        for entity, name in ((plan.source, "identity"), (plan.target, "target_identity")):
            if self._identity(entity) != self.state[name]:
                raise InvalidOperation(
                    f"'{entity}' was created again after the move began: start a new move."
                )

    def _identity(self, name: str) -> str:
        return self._entities.get(name).text("CreatedAt") or ""

    def _withheld(self, entry: Entry) -> dict[str, str]:
        """What the copy of an entity is set to when it is opened."""
        found = {name: entry.text(name) for name in WITHHELD}
        status = entry.text("Status") or "Active"
        return {"Status": status, **{name: text for name, text in found.items() if text}}

    def _partition_count(self, entry: Entry) -> int:
        if not is_topic(entry):
            return self._plan.bus_state(entry.name).partition_count
        return PARTITIONS if entry.text("EnablePartitioning") == "true" else 1

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """The queue or the subscriptions, and what they become."""
        plan = self._plan
        if not self.state["topic"]:
            yield plan.source, plan.target
        for name in self.state.get("subscriptions", ()):
            yield subscription_path(plan.source, name), subscription_path(plan.target, name)

    def _parts(self) -> Iterator[Part]:
        for source, target in self._pairs():
            yield self._part(source, target, sendable=not self.state["topic"])
            yield self._part(dead_letters_of(source), dead_letters_of(target), sendable=False)

    def _part(self, source: str, target: str, *, sendable: bool) -> Part:
        both = self._available(source), self._available(target)
        messages = sum(each.active + each.deferred + each.scheduled for each in both)
        few = messages <= FEW_MAX and sum(each.size_bytes for each in both) <= FEW_BYTES_MAX
        return Part(self._plan.bus, source, target, self.state["generation"], sendable, few, not messages)

    def _has_sessions(self, path: str) -> bool:
        return self._entities.get(path).text("RequiresSession") == "true"

    def _contents(self, path: str) -> int:
        state = self._available(path)
        return state.active + state.deferred + state.scheduled

    def _available(self, path: str) -> EntityState:
        state = self._plan.bus_state(path)
        if not state.available:
            raise Unavailable(
                f"A partition of '{path}' is away. Nothing was given up: run it again when its store is back."
            )
        return state
