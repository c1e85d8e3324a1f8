"""Which brokers of a cluster are alive, and which of them should own which messaging store.

Everything here is a function of the rows in the catalog's database (store/roster.py), whose clock measures
how long a broker has been silent. Every broker computes the same answer. A broker that is wrongly presumed
dead does no harm: the stores and the catalog refuse its writes once another broker has taken its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
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
    "common_stores",
    "is_alive",
    "known_stores",
    "living",
    "refuse_missing_stores",
    "refuse_other_stores",
    "wanted_owners",
    "without_outage",
]

BEAT_S: Final = 0.5
# With the time until the next heartbeat is read and a store is claimed, another broker serves its partitions
# within five seconds.
DEAD_AFTER_S: Final = 3.0

# The states of a broker.
STARTING: Final = "starting"
SERVING: Final = "serving"
DRAINING: Final = "draining"
"""It gives up its stores, but continues to serve its clients."""
LEAVING: Final = "leaving"
"""It is stopping, and gives up its stores."""
GONE: Final = "gone"


def is_alive(broker: BrokerRow) -> bool:
    return broker.state != GONE and broker.silent_s < DEAD_AFTER_S


def without_outage(view: RosterView, outage_s: float) -> RosterView:
    """The view without the time in which this broker wrote no heartbeat. Perhaps nobody could, because the
    catalog was away: then the silence of the others says nothing."""
    if not outage_s:
        return view
    brokers = [replace(each, silent_s=max(0.0, each.silent_s - outage_s)) for each in view.brokers]
    return replace(view, brokers=brokers)


def living(view: RosterView) -> dict[str, BrokerRow]:
    """The brokers that are alive, by their instances."""
    return {broker.instance: broker for broker in view.brokers if is_alive(broker)}


def wanted_owners(view: RosterView, stores: Collection[str]) -> dict[str, str]:
    """The broker that is to own each store. Empty while no broker serves.

    A broker that drains owns nothing, unless there is no other. A broker owns only stores that it was given,
    and that it reaches if another one does.
    """
    alive = [broker for broker in view.brokers if is_alive(broker)]
    for state in (SERVING, DRAINING):
        brokers = [broker for broker in alive if broker.state == state]
        if brokers:
            groups = set(stores).union(*(broker.stores for broker in brokers))
            names = [broker.name for broker in brokers]
            return assign(groups, names, _cannot_own(brokers, groups))
    return {}


def _cannot_own(brokers: Sequence[BrokerRow], stores: Collection[str]) -> set[tuple[str, str]]:
    """The pairs of a store and a broker that was not given it, or does not reach it."""
    cannot: set[tuple[str, str]] = set()
    for store in stores:
        given = [broker for broker in brokers if store in broker.stores]
        cannot |= {(store, broker.name) for broker in brokers if broker not in given}
        if any(store not in broker.unreached for broker in given):
            # Otherwise no broker reaches it, and the broker that should own it keeps trying.
            cannot |= {(store, broker.name) for broker in given if store in broker.unreached}
    return cannot


def known_stores(view: RosterView) -> list[str]:
    """The stores that some living broker was given."""
    return sorted({store for broker in living(view).values() for store in broker.stores})


def common_stores(view: RosterView) -> set[str]:
    """The stores that every living broker was given. Only these get new partitions: others could be lost with
    one broker."""
    given = [set(broker.stores) for broker in living(view).values()]
    return set.intersection(*given) if given else set()


def refuse_other_stores(view: RosterView, name: str, stores: Collection[str]) -> None:
    """`ConfigError` if another broker was given other messaging stores, unless stores are being added: then
    one of the two has all that the other has."""
    for broker in view.brokers:
        theirs, ours = set(broker.stores), set(stores)
        if broker.name != name and is_alive(broker) and not (theirs <= ours or ours <= theirs):
            raise ConfigError(
                f"the broker '{broker.name}' of this cluster has the messaging stores "
                f"{', '.join(sorted(theirs))}, this one has {', '.join(sorted(ours))}. All brokers of a "
                "cluster need the same --store options; to add stores, give them to one broker after another"
            )


def refuse_missing_stores(view: RosterView, placed: Collection[str], stores: Collection[str]) -> None:
    """`ConfigError` if entities have partitions in stores that no living broker was given."""
    missing = set(placed).difference(known_stores(view), stores)
    if missing:
        raise ConfigError(
            f"entities of this cluster have partitions in the messaging stores {', '.join(sorted(missing))}, "
            "and no broker is given them. Add the --store options"
        )
