"""The plan of a simulation, made from a seed: its entities, its peers, its faults.

A *lane* is a path that a message can take: the entities in which one copy of it
may be, in their order. A message sent to a queue has one lane; one sent to a
topic has one for each subscription whose rules take it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bendybus.domain.entities import QueueDescription, Tier
from bendybus.domain.filters import RuleDescription, SqlFilter, SqlRuleAction, TrueFilter
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription
from bendybus.names import EntityPath
from faults.simulation.stores import DiskFaults

__all__ = ["COLOURS", "FaultRates", "Lane", "Plan"]

COLOURS = ("red", "green", "blue")


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    entities: tuple[str, ...]
    takes: Callable[[str], bool] = field(default=lambda colour: True)
    """Whether a message of this colour goes here."""
    optional: bool = False
    """Rules change, or its entity comes and goes: nobody can say what must be here."""
    ordered: int = 1
    """In so many of its entities the messages of a stream stay in order."""
    key_of: Callable[[str], str] | None = None
    """The key that a rule gives to a message of this colour: it moves to that key's partition."""


@dataclass(slots=True)
class FaultRates:
    """How often each kind of fault happens."""

    disk: DiskFaults
    crash_every_s: float
    """The average; 0 means never. The same holds for the other times."""
    orderly_share: float
    """The share of these that are orderly stops and not crashes."""
    cut_every_s: float
    outage_every_s: float
    jump_every_s: float


@dataclass(slots=True)
class Plan:
    tier: Tier
    stores: int
    duration_s: float
    fault_rates: FaultRates
    queues: list[QueueDescription] = field(default_factory=list)
    topics: list[TopicDescription] = field(default_factory=list)
    subscriptions: list[SubscriptionDescription] = field(default_factory=list)
    lanes: dict[str, list[Lane]] = field(default_factory=dict)
    """By the first part of a message's id, which is usually the entity that it is sent to."""
    peers: list[tuple[str, str]] = field(default_factory=list)
    """The kind of each peer, and the entity that it uses."""

    @classmethod
    def of(cls, dice: random.Random) -> Plan:
        plan = cls(
            tier=dice.choice((Tier.STANDARD, Tier.STANDARD, Tier.PREMIUM)),
            stores=dice.randint(1, 3),
            duration_s=dice.uniform(5, 25),
            fault_rates=_fault_rates(dice),
        )
        _Planner(plan, dice).plan()
        _refine(plan, dice)
        if plan.tier is Tier.PREMIUM:
            # The namespace decides (P-09).
            plan.queues = [replace(each, enable_partitioning=None) for each in plan.queues]
            plan.topics = [replace(each, enable_partitioning=None) for each in plan.topics]
        return plan

    def partition_count(self, entity: str) -> int:
        """Of a queue, a topic or a subscription."""
        described = [*self.queues, *self.topics]
        owner = next(each for each in described if each.path in (entity, entity.partition("/")[0]))
        return self.tier.partition_count(enable_partitioning=owner.enable_partitioning)

    @property
    def sources(self) -> list[QueueDescription]:
        """The entities that receivers can use."""
        return [*self.queues, *self.subscriptions]

    def describe(self, path: str) -> QueueDescription:
        return next(each for each in self.sources if each.path == path)


def _fault_rates(dice: random.Random) -> FaultRates:
    def sometimes(probability: float, least: float, most: float) -> float:
        return dice.uniform(least, most) if dice.random() < probability else 0.0

    return FaultRates(
        DiskFaults(
            torn=sometimes(0.5, 0.002, 0.05),
            lost_reply=sometimes(0.4, 0.002, 0.05),
            stalls=sometimes(0.3, 0.001, 0.01),
            unreadable=sometimes(0.3, 0.002, 0.05),
        ),
        crash_every_s=sometimes(0.7, 2, 15),
        orderly_share=0.25,
        cut_every_s=sometimes(0.6, 1, 10),
        outage_every_s=sometimes(0.3, 5, 20),
        jump_every_s=sometimes(0.3, 5, 20),
    )


# How long entities keep completed messages, and let abandoned ones rest: seconds.
KEEP_S = (3, 15, 45)
REST_S = (0.5, 1, 3)
REST_MAX_S = 6


def _refine(plan: Plan, dice: random.Random) -> None:
    """Some entities keep what was completed, and let rest what was abandoned.

    The dice are a copy: nothing that is thrown later depends on this.
    """
    copy = random.Random()
    copy.setstate(dice.getstate())

    def refined(each: Any) -> Any:
        if each.forward_to is None and copy.random() < 0.3:
            each = replace(each, keep_completed_s=copy.choice(KEEP_S))
            plan.peers.append(("replayer", each.path))
        if each.forward_to is None and copy.random() < 0.25:
            each = replace(
                each,
                retry_delay_s=copy.choice(REST_S),
                retry_delay_factor=copy.randint(1, 3),
                retry_delay_max_s=REST_MAX_S,
            )
        return each

    plan.queues = [refined(each) for each in plan.queues]
    plan.subscriptions = [refined(each) for each in plan.subscriptions]


class _Planner:
    def __init__(self, plan: Plan, dice: random.Random) -> None:
        self._plan = plan
        self._dice = dice

    def plan(self) -> None:
        kinds = ("parts", "plain", "sess", "dups", "hop", "topic", "passing", "transactions")
        chosen = self._dice.sample(kinds, self._dice.randint(1, 3))
        # Sorted so that what others refer to is there first.
        for kind in sorted(chosen):
            getattr(self, f"_{kind}")()

    def _queue(self, path: str, **properties: Any) -> QueueDescription:
        known = [each for each in self._plan.queues if each.path == path]
        if known:
            return known[0]
        dice = self._dice
        queue = QueueDescription(
            EntityPath(path),
            lock_duration_s=dice.choice((5, 10, 30)),
            max_delivery_count=dice.choice((2, 3, 10)),
            **({"enable_partitioning": True} | properties),
        )
        self._plan.queues.append(queue)
        self._plan.lanes[path] = [Lane(path, (path,))]
        return queue

    def _peers(self, *peers: tuple[str, str]) -> None:
        self._plan.peers += peers

    def _parts(self) -> None:
        forwards = self._dice.random() < 0.4
        if forwards:
            self._queue("graves", enable_partitioning=self._dice.random() < 0.5)
            self._peers(("receiver", "graves"))
        self._queue(
            "parts",
            dead_letter_on_expiry=self._dice.random() < 0.5,
            forward_dead_lettered_to=EntityPath("graves") if forwards else None,
        )
        if forwards:
            self._plan.lanes["parts"] = [Lane("parts", ("parts", "graves"))]
        self._peers(("sender", "parts"), ("sender", "parts"), ("receiver", "parts"), ("receiver", "parts"))
        self._peers(("looker", "parts"))

    def _plain(self) -> None:
        self._queue("plain", enable_partitioning=False)
        self._peers(("sender", "plain"), ("receiver", "plain"), ("receiver", "plain"), ("looker", "plain"))

    def _sess(self) -> None:
        self._queue("sess", requires_session=True, enable_partitioning=self._dice.random() < 0.7)
        self._peers(("sender", "sess"), ("holder", "sess"), ("holder", "sess"), ("looker", "sess"))

    def _dups(self) -> None:
        self._queue("dups", requires_duplicate_detection=True, duplicate_detection_window_s=7 * 86_400)
        self._peers(("sender", "dups"), ("receiver", "dups"), ("looker", "dups"))

    def _landing(self) -> None:
        self._queue("landing", enable_partitioning=self._dice.random() < 0.5)
        if ("receiver", "landing") not in self._plan.peers:
            self._peers(("receiver", "landing"))

    def _hop(self) -> None:
        self._landing()
        self._queue("hop", enable_partitioning=self._dice.random() < 0.5, forward_to=EntityPath("landing"))
        self._plan.lanes["hop"] = [Lane("hop", ("hop", "landing"), ordered=2)]
        self._peers(("sender", "hop"))

    def _topic(self) -> None:
        self._landing()
        detects = self._dice.random() < 0.3
        self._plan.topics.append(
            TopicDescription(
                EntityPath("topic"),
                enable_partitioning=self._dice.random() < 0.6,
                requires_duplicate_detection=detects,
                duplicate_detection_window_s=7 * 86_400,
            )
        )
        every = SubscriptionDescription.of("topic", "all", lock_duration_s=10)
        red = replace(
            SubscriptionDescription.of("topic", "red", lock_duration_s=10),
            rules=(RuleDescription("red", SqlFilter("colour = 'red'")),),
        )
        onward = SubscriptionDescription.of("topic", "onward", forward_to=EntityPath("landing"))
        changing = SubscriptionDescription.of("topic", "changing", lock_duration_s=10)
        keyed = replace(
            SubscriptionDescription.of("topic", "keyed", lock_duration_s=10),
            rules=(RuleDescription("key", TrueFilter(), SqlRuleAction("SET sys.PartitionKey = colour")),),
        )
        self._plan.subscriptions += [every, red, onward, changing, keyed]
        self._plan.lanes["topic"] = [
            Lane("all", (every.path,)),
            Lane("red", (red.path,), lambda colour: colour == "red"),
            Lane("onward", (onward.path, "landing"), ordered=2),
            Lane("changing", (changing.path,), optional=True),
            Lane("keyed", (keyed.path,), key_of=lambda colour: colour),
        ]
        self._peers(("sender", "topic"), ("receiver", every.path), ("receiver", red.path))
        self._peers(("receiver", changing.path), ("changer", changing.path), ("receiver", keyed.path))

    def _passing(self) -> None:
        """A queue that somebody makes and deletes; it is not there when all begins."""
        self._plan.lanes["passing"] = [Lane("passing", ("passing",), optional=True)]
        self._peers(("manager", "passing"))

    def _transactions(self) -> None:
        self._landing()
        self._queue("ledger", enable_partitioning=self._dice.random() < 0.7)
        self._plan.lanes["via"] = [Lane("via", ("ledger", "landing"))]
        self._peers(("sender", "ledger"), ("transactor", "ledger"), ("transactor", "ledger"))
