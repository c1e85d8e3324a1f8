"""The lifecycle tables: nothing in them is out of reach, and every life can end."""

from __future__ import annotations

from enum import Enum

import pytest

from bendybus.broker.lifecycle import (
    AVAILABILITY,
    IN_MEMORY,
    PARTITION,
    RECOVERY,
    STORE,
    Availability,
    PartitionEvent,
    PartitionState,
    RecoveryState,
    StoreEvent,
    StoreState,
    after,
)

TABLES = [
    pytest.param(PARTITION, PartitionState.LOADING, PartitionState.GONE, id="partition"),
    pytest.param(STORE, StoreState.AVAILABLE, StoreState.STOPPED, id="store"),
    pytest.param(RECOVERY, RecoveryState.IDLE, RecoveryState.STOPPED, id="recovery"),
]


def reachable(table: dict[tuple[Enum, Enum], Enum], start: Enum) -> set[Enum]:
    found = {start}
    while more := {to for (state, _), to in table.items() if state in found} - found:
        found |= more
    return found


@pytest.mark.parametrize(("table", "first", "last"), TABLES)
def test_every_state_can_be_reached_and_left_for_the_last(table, first, last):
    assert reachable(table, first) == set(type(first))
    assert all(last in reachable(table, state) for state in type(first))
    assert reachable(table, last) == {last}


@pytest.mark.parametrize(("table", "first", "last"), TABLES)
def test_every_event_can_happen(table, first, last):
    events = {event for _, event in table}
    assert events == set(type(next(iter(events))))


def test_what_cannot_happen_is_a_fault_that_names_both():
    with pytest.raises(AssertionError, match="'the move is over' cannot happen to something that is away"):
        after(PARTITION, PartitionState.AWAY, PartitionEvent.THAW)
    with pytest.raises(AssertionError, match="stopped"):
        after(STORE, StoreState.STOPPED, StoreEvent.FAILED)


def test_commands_are_taken_only_where_the_partition_is_in_memory():
    assert set(AVAILABILITY) == set(PartitionState)
    taking = {state for state, says in AVAILABILITY.items() if says is Availability.AVAILABLE}
    assert taking == {PartitionState.SERVING} <= IN_MEMORY


@pytest.mark.row("P-04")
def test_a_lost_partition_serves_again_only_after_a_load():
    """No way leads from a state without memory to one with it, but the end of a load."""
    for (state, event), to in PARTITION.items():
        if state not in IN_MEMORY and to in IN_MEMORY:
            assert event is PartitionEvent.LOADED
