"""Every broker computes the same owners; they share the groups equally; few groups move."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bendybus.cluster.assignment import assign, share_max

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
groups = st.sets(names, max_size=80)
brokers = st.sets(names, min_size=1, max_size=9)


@given(groups, brokers)
def test_every_group_has_one_owner_and_no_broker_more_than_its_share(groups, brokers):
    owners = assign(groups, brokers)

    assert owners.keys() == groups
    assert set(owners.values()) <= brokers
    for broker in brokers:
        assert list(owners.values()).count(broker) <= share_max(len(groups), len(brokers))


@given(groups, brokers, st.randoms())
def test_the_order_in_which_things_are_known_does_not_matter(groups, brokers, order: random.Random):
    shuffled_groups, shuffled_brokers = list(groups), list(brokers)
    order.shuffle(shuffled_groups)
    order.shuffle(shuffled_brokers)

    assert assign(shuffled_groups, shuffled_brokers) == assign(groups, brokers)


def test_the_hash_is_pinned():
    # Brokers of different versions must agree, so this answer may never change.
    groups = [f"orders/{number}" for number in range(8)]

    owners = assign(groups, ["a", "b", "c"])

    assert "".join(owners[group] for group in groups) == "cccabbab"


@given(st.integers(2, 8), st.integers(8, 80), st.integers(0, 1_000_000))
def test_few_groups_move_when_a_broker_joins_or_leaves(count, size, seed):
    groups = [f"{seed}/{number}" for number in range(size)]
    members = [f"broker-{seed}-{number}" for number in range(count + 1)]

    fewer, more = assign(groups, members[:-1]), assign(groups, members)

    moved = sum(fewer[group] != more[group] for group in groups)
    # One share has to move. Another share at most moves because the bound on each broker's load changes.
    assert moved <= 2 * share_max(size, count) + count


def test_as_many_groups_as_brokers_is_one_for_each():
    stores, members = [f"store-{number}" for number in range(6)], [str(number) for number in range(6)]

    assert sorted(assign(stores, members).values()) == members
