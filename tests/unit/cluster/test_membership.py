"""Who is alive, and who is to own which store."""

from __future__ import annotations

import pytest

from bendybus.cluster.membership import (
    DEAD_AFTER_S,
    GONE,
    LEAVING,
    SERVING,
    STARTING,
    living,
    refuse_other_stores,
    wanted_owners,
)
from bendybus.errors import ConfigError
from bendybus.store.roster import BrokerRow, Lead, RosterView


def broker(name: str, state: str = SERVING, silent_s: float = 0.1, *stores: str) -> BrokerRow:
    return BrokerRow(name, f"{name}-1", "", "1", state, stores, silent_s)


def view(*brokers: BrokerRow) -> RosterView:
    return RosterView(brokers, Lead("", "", 0, 0), 0.0)


def test_a_broker_that_is_silent_is_presumed_dead() -> None:
    seen = view(
        broker("a", silent_s=DEAD_AFTER_S - 0.1), broker("b", silent_s=DEAD_AFTER_S), broker("c", GONE)
    )
    assert [each.name for each in living(seen).values()] == ["a"]


def test_only_brokers_that_serve_are_to_own_stores() -> None:
    seen = view(
        broker("a"), broker("b", STARTING), broker("c", LEAVING), broker("d", silent_s=9.0), broker("e", GONE)
    )
    assert wanted_owners(seen, ["s", "t"]) == {"s": "a", "t": "a"}
    assert wanted_owners(view(broker("b", STARTING)), ["s"]) == {}


def test_stores_are_spread_over_those_that_serve() -> None:
    owners = wanted_owners(view(broker("a"), broker("b")), ["s", "t", "u", "v"])
    assert sorted(owners.values()) == ["a", "a", "b", "b"]


def test_a_broker_with_other_stores_is_refused() -> None:
    seen = view(broker("a", SERVING, 0.1, "s", "t"), broker("b", SERVING, 9.0, "other"))
    refuse_other_stores(seen, "c", ["t", "s"])
    refuse_other_stores(seen, "a", ["x"])
    with pytest.raises(ConfigError, match=r"'a' .* stores s, t, this one has s\. .*the same --store"):
        refuse_other_stores(seen, "c", ["s"])
