"""What a seed makes of a simulation with several brokers: more stores, other faults. The rest: plan.py."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from faults.simulation.plan import Plan

__all__ = ["ClusterPlan", "ClusterWeather"]

NAMES = "abcd"


@dataclass(slots=True)
class ClusterWeather:
    """What goes wrong between processes, how often on average; 0 for never."""

    end_every_s: float
    """The end of a broker's process."""
    stop_rather: float
    """Of these, so many are orderly: the stores move as planned."""
    pause_every_s: float
    """A process is stopped for a while, and then goes on as if nothing had happened."""
    cut_every_s: float
    block_every_s: float
    """Something does not get through: between two brokers, or between a broker and a database."""
    outage_every_s: float
    catalog_outage_every_s: float
    jump_every_s: float
    failover_every_s: float
    """The standby of a database takes over; it has everything that was committed."""
    drain_every_s: float
    """A broker is drained for a while, and goes on serving its clients: stores move as planned."""


@dataclass(slots=True)
class ClusterPlan:
    brokers: str
    """Their names, a letter each."""
    plan: Plan
    weather: ClusterWeather

    @classmethod
    def of(cls, dice: random.Random, brokers: int) -> ClusterPlan:
        plan = Plan.of(dice)
        plan.stores = dice.randint(2, 4)
        plan.duration_s = dice.uniform(10, 25)

        def sometimes(probability: float, least: float, most: float) -> float:
            return dice.uniform(least, most) if dice.random() < probability else 0.0

        weather = ClusterWeather(
            end_every_s=sometimes(0.7, 4, 15),
            stop_rather=dice.choice((0.0, 0.5, 1.0)),
            pause_every_s=sometimes(0.5, 4, 15),
            cut_every_s=sometimes(0.6, 1, 10),
            block_every_s=sometimes(0.5, 3, 12),
            outage_every_s=sometimes(0.3, 5, 20),
            catalog_outage_every_s=sometimes(0.2, 5, 20),
            jump_every_s=sometimes(0.2, 5, 20),
            failover_every_s=sometimes(0.25, 5, 20),
            drain_every_s=sometimes(0.35, 3, 12),
        )
        # Most of what one disk does wrong is played with one broker; here it is to be the exception.
        plan.weather.disk = replace(plan.weather.disk, stalls=plan.weather.disk.stalls / 2)
        return cls(NAMES[:brokers], plan, weather)
