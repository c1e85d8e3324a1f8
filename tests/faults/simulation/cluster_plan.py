"""The plan of a simulation with several brokers: more stores, and other faults. The rest: plan.py."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from faults.simulation.plan import Plan

__all__ = ["ClusterFaultRates", "ClusterPlan"]

NAMES = "abcd"


@dataclass(slots=True)
class ClusterFaultRates:
    """How often each fault of processes and of the network happens, on average; 0 means never."""

    end_every_s: float
    """The end of a broker's process."""
    orderly_share: float
    """The share of these that are orderly: the stores move as planned."""
    pause_every_s: float
    """A process is suspended for a while and then continues."""
    cut_every_s: float
    block_every_s: float
    """The network is cut between two brokers, or between a broker and a database."""
    outage_every_s: float
    catalog_outage_every_s: float
    jump_every_s: float
    failover_every_s: float
    """The standby of a database takes over. It has all commits."""
    drain_every_s: float
    """A broker is drained for a while, and still serves its clients: its stores move as planned."""


@dataclass(slots=True)
class ClusterPlan:
    brokers: str
    """Their names, one letter each."""
    plan: Plan
    fault_rates: ClusterFaultRates

    @classmethod
    def of(cls, dice: random.Random, brokers: int) -> ClusterPlan:
        plan = Plan.of(dice)
        plan.stores = dice.randint(2, 4)
        plan.duration_s = dice.uniform(10, 25)

        def sometimes(probability: float, least: float, most: float) -> float:
            return dice.uniform(least, most) if dice.random() < probability else 0.0

        rates = ClusterFaultRates(
            end_every_s=sometimes(0.7, 4, 15),
            orderly_share=dice.choice((0.0, 0.5, 1.0)),
            pause_every_s=sometimes(0.5, 4, 15),
            cut_every_s=sometimes(0.6, 1, 10),
            block_every_s=sometimes(0.5, 3, 12),
            outage_every_s=sometimes(0.3, 5, 20),
            catalog_outage_every_s=sometimes(0.2, 5, 20),
            jump_every_s=sometimes(0.2, 5, 20),
            failover_every_s=sometimes(0.25, 5, 20),
            drain_every_s=sometimes(0.35, 3, 12),
        )
        # Faults of one disk are mostly simulated with one broker; they are rarer here.
        plan.fault_rates.disk = replace(plan.fault_rates.disk, stalls=plan.fault_rates.disk.stalls / 2)
        return cls(NAMES[:brokers], plan, rates)
