"""Who is alive, and who is to own which store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bendybus.cluster.membership import (
    DEAD_AFTER_S,
    DRAINING,
    GONE,
    LEAVING,
    SERVING,
    STARTING,
    common_stores,
    known_stores,
    living,
    refuse_missing_stores,
    refuse_other_stores,
    wanted_owners,
)
from bendybus.errors import ConfigError
from bendybus.store.roster import BrokerRow, Lead, RosterView

STORES = ("s", "t", "u", "v")


def broker(
    name: str, state: str = SERVING, silent_s: float = 0.1, stores: tuple[str, ...] = STORES
) -> BrokerRow:
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
    assert wanted_owners(seen, STORES) == dict.fromkeys(STORES, "a")
    assert wanted_owners(view(broker("b", STARTING)), STORES) == {}


def test_a_broker_that_drains_owns_nothing_unless_there_is_no_other() -> None:
    drains = broker("a", DRAINING)
    assert set(wanted_owners(view(drains, broker("b")), STORES).values()) == {"b"}
    assert set(wanted_owners(view(drains, broker("b", LEAVING)), STORES).values()) == {"a"}


def test_stores_are_spread_over_those_that_serve() -> None:
    owners = wanted_owners(view(broker("a"), broker("b")), STORES)
    assert sorted(owners.values()) == ["a", "a", "b", "b"]


def test_a_store_is_owned_by_a_broker_that_was_given_it() -> None:
    grown = (*STORES, "w")
    for name in "abcdefgh":
        seen = view(broker("x"), broker("y"), broker(name, stores=grown))
        owners = wanted_owners(seen, STORES)
        assert owners.keys() == set(grown) and owners["w"] == name
        assert owners == wanted_owners(seen, grown), "every broker computes the same"
        assert set(owners.values()) == {"x", "y", name}


def test_new_partitions_are_placed_in_stores_that_all_brokers_have() -> None:
    seen = view(
        broker("a", stores=("s", "t")), broker("b", stores=("s",)), broker("c", silent_s=9.0, stores=())
    )
    assert common_stores(seen) == {"s"}
    assert known_stores(seen) == ["s", "t"]


def test_a_broker_with_other_stores_is_refused() -> None:
    seen = view(broker("a", stores=("s", "t")), broker("b", silent_s=9.0, stores=("other",)))
    refuse_other_stores(seen, "c", ["t", "s"])
    refuse_other_stores(seen, "a", ["x"])
    # While stores are added, some brokers have them, and some do not.
    refuse_other_stores(seen, "c", ["s"])
    refuse_other_stores(seen, "c", ["s", "t", "u"])
    with pytest.raises(ConfigError, match=r"'a' .* stores s, t, this one has s, u\. .*the same --store"):
        refuse_other_stores(seen, "c", ["s", "u"])


def test_a_store_with_partitions_must_be_given_to_somebody() -> None:
    seen = view(broker("a", stores=("s",)), broker("b", silent_s=9.0, stores=("s", "t")))
    refuse_missing_stores(seen, ["s"], ["s"])
    refuse_missing_stores(seen, ["s", "t"], ["s", "t"])
    with pytest.raises(ConfigError, match="partitions in the messaging stores t, and no broker is given"):
        refuse_missing_stores(seen, ["s", "t"], ["s"])


def test_a_store_is_owned_by_a_broker_that_reaches_it_if_there_is_one() -> None:
    def seen(*unreached_by: str) -> RosterView:
        return view(
            *(replace(broker(name), unreached=("s",) if name in unreached_by else ()) for name in "abc")
        )

    usual = wanted_owners(seen(), STORES)["s"]
    others = [name for name in "abc" if name != usual]
    assert wanted_owners(seen(usual), STORES)["s"] in others
    assert wanted_owners(seen(usual, others[0]), STORES)["s"] == others[1]
    assert wanted_owners(seen("a", "b", "c"), STORES)["s"] == usual
