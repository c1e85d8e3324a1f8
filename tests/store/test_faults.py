"""Switches: what hangs, dawdles or fails, and that nothing is lost by it. The contract: test_contract.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bendybus.errors import ArgumentError, StoreUnavailable
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.faults import Fault, FaultKind, StoreFaults
from bendybus.store.memory import MemoryStore


@pytest.fixture
def faults():
    faults = StoreFaults([MemoryStore("a"), MemoryStore("b")])
    yield faults
    faults.heal_all()


@pytest.mark.row("B-09")
def test_a_paused_store_hangs_until_it_is_healed_and_then_does_what_it_was_asked(faults):
    a, b = faults.stores
    faults.pause("a")
    begun = threading.Event()

    def create():
        begun.set()
        return a.create_partitions(EntityPath("orders"), [PartitionNumber(0)])

    with ThreadPoolExecutor() as pool:
        created = pool.submit(create)
        assert begun.wait(10)
        assert b.create_partitions(EntityPath("orders"), [PartitionNumber(1)])
        assert not created.done()
        faults.heal("a")
        assert [record.number for record in created.result(10)] == [0]
    assert len(a.partitions()) == 1


def test_a_failing_store_says_why_and_keeps_what_it_had(faults):
    a, _ = faults.stores
    a.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
    faults.fail("a", "the disk is full")
    for call in (a.partitions, a.open, a.tidy, lambda: a.commit([]), lambda: a.read([]), lambda: a.claim([])):
        with pytest.raises(StoreUnavailable, match="a: the disk is full"):
            call()
    faults.heal("a")
    assert len(a.partitions()) == 1


def test_one_that_hangs_fails_when_it_is_made_to_fail(faults):
    a, _ = faults.stores
    faults.pause("a")
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(a.partitions)
        faults.fail("a")
        with pytest.raises(StoreUnavailable):
            hanging.result(10)


def test_a_slow_store_takes_its_time_unless_it_is_healed_meanwhile(faults):
    a, _ = faults.stores
    faults.slow("a", 0.001)
    assert a.partitions() == []
    faults.slow("a", 600)
    with ThreadPoolExecutor() as pool:
        dawdling = pool.submit(a.partitions)
        assert not dawdling.done()
        faults.heal("a")
        assert dawdling.result(10) == []


def test_the_switches_show_how_they_stand(faults):
    faults.slow("b", 0.5)
    assert faults.current() == {"a": Fault(), "b": Fault(FaultKind.SLOW, delay_s=0.5)}


def test_a_store_that_is_not_there_and_a_delay_that_cannot_be_meant_are_named(faults):
    with pytest.raises(ArgumentError, match="no messaging store 'c'; there are a, b"):
        faults.pause("c")
    for delay_s in (0, -1, 601, float("nan")):
        with pytest.raises(ArgumentError, match="slower"):
            faults.slow("a", delay_s)
