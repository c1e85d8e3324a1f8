"""Which brokers of a cluster are alive, and which of them is to own which messaging store.

Everything here is a function of what the catalog database says (store/roster.py): its clock tells how long a
broker has been silent. Every broker computes the same answer. A broker that is wrongly presumed dead does no
harm, because the stores and the catalog refuse what it writes once another broker has taken its place.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from bendybus.cluster.assignment import assign
from bendybus.errors import ConfigError
from bendybus.store.roster import BrokerRow, RosterView

__all__ = [
    "BEAT_S",
    "DEAD_AFTER_S",
    "DRAINING",
    "GONE",
    "LEAVING",
    "SERVING",
    "STARTING",
    "is_alive",
    "living",
    "refuse_other_stores",
    "wanted_owners",
]

BEAT_S: Final = 0.5
# With the time until the next heartbeat is read and a store is claimed, somebody else serves its partitions
# before five seconds are over.
DEAD_AFTER_S: Final = 3.0

# The states of a broker.
STARTING: Final = "starting"
SERVING: Final = "serving"
DRAINING: Final = "draining"
"""It gives its stores up, and goes on serving its clients."""
LEAVING: Final = "leaving"
"""It is ending, and gives its stores up."""
GONE: Final = "gone"


def is_alive(broker: BrokerRow) -> bool:
    return broker.state != GONE and broker.silent_s < DEAD_AFTER_S


def living(view: RosterView) -> dict[str, BrokerRow]:
    """The brokers that are alive, by their instances."""
    return {broker.instance: broker for broker in view.brokers if is_alive(broker)}


def wanted_owners(view: RosterView, stores: Collection[str]) -> dict[str, str]:
    """The broker that is to own each store. Empty while no broker serves.

    A broker that drains owns nothing, unless there is no other.
    """
    alive = [broker for broker in view.brokers if is_alive(broker)]
    for state in (SERVING, DRAINING):
        brokers = [broker.name for broker in alive if broker.state == state]
        if brokers:
            return assign(stores, brokers)
    return {}


def refuse_other_stores(view: RosterView, name: str, stores: Collection[str]) -> None:
    """`ConfigError` if another broker was given other messaging stores: neither could replace the other."""
    for broker in view.brokers:
        if broker.name != name and is_alive(broker) and set(broker.stores) != set(stores):
            raise ConfigError(
                f"the broker '{broker.name}' of this cluster has the messaging stores "
                f"{', '.join(sorted(broker.stores))}, this one has {', '.join(sorted(stores))}. All brokers "
                "of a cluster need the same --store options"
            )
