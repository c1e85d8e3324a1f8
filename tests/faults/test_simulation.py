"""A few seeds of the simulation for every day, and proof that it finds what it looks for.

The many: `make faults`. A seed that ever failed is no test by itself, since another plan gives it another
meaning; what it found has a test of its own, named where the fault was.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path

import pytest

from bendybus.build import is_compiled
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import MessageState, SubQueue
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber
from bendybus.store.memory import MemoryStore
from bendybus.store.protocol import PartitionKey, PartitionRecord
from faults.mutants import CLUSTER_MUTANTS, MUTANTS, Mutant
from faults.simulation.cluster_ledger import ClusterLedger
from faults.simulation.cluster_simulation import simulate_cluster
from faults.simulation.keeping import Keeping
from faults.simulation.ledger import Arrival, Batch, Invariant, Ledger, Letter, Spot
from faults.simulation.plan import Lane, Plan
from faults.simulation.simulation import simulate
from faults.simulation.stores import Disk, DiskFaults, VirtualStore
from faults.simulation.world import EPOCH_MS, World

TESTS = Path(__file__).parents[1]

SEEDS = 16
SEEDS_AT_ONCE = 8

# Each has a seed to begin with that finds it; should plans change, one of the next will.
SEEDS_PER_MUTANT = 40


@pytest.mark.row("B-08", "P-12", "P-16", "P-18", "P-23", "P-26", "P-32", "P-34")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_every_invariant_holds_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        assert simulate(seed).violations == [], f"python -m faults.simulation --seed {seed} --trace"


@pytest.mark.row("N-03", "N-04")
@pytest.mark.parametrize(("brokers", "seeds"), [(2, range(4)), (3, range(4))])
def test_every_invariant_holds_with_several_brokers(brokers: int, seeds: range) -> None:
    for seed in seeds:
        again = f"python -m faults.simulation --brokers {brokers} --seed {seed} --trace"
        assert simulate_cluster(seed, brokers).violations == [], again


def test_a_seed_replays_to_the_last_byte() -> None:
    """In other processes, too, where objects have other addresses and texts other hashes."""
    fingerprints = {_play_elsewhere("simulation", "simulate(7)", hash_seed) for hash_seed in ("1", "2")}
    assert fingerprints == {simulate(7).fingerprint}
    assert simulate(8).fingerprint not in fingerprints


def test_a_seed_of_several_brokers_replays_to_the_last_byte() -> None:
    played = [
        _play_elsewhere("cluster_simulation", "simulate_cluster(1, 3)", hash_seed) for hash_seed in ("1", "2")
    ]
    assert played == 2 * [simulate_cluster(1, 3).fingerprint]


def _play_elsewhere(module: str, call: str, hash_seed: str) -> str:
    program = f"from faults.simulation.{module} import *; print({call}.fingerprint)"
    environment = os.environ | {
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_partition_that_a_dying_process_discards_is_seen_to_go() -> None:
    # Found by seed 902542: the process died before the call returned, and the checker kept the messages.
    class Dies(BaseException):
        pass

    class DyingDisk(Disk):
        calls = 0

        def take_time(self, name: str, stalls: Callable[[], None] | None = None) -> None:
            self.calls += 1
            if self.calls == 2:
                raise Dies

    store = VirtualStore("store", DyingDisk(World(0), DiskFaults()))
    (made,) = MemoryStore.create_partitions(store, EntityPath("passing"), [PartitionNumber(0)])
    seen: list[PartitionKey] = []
    store.watcher = lambda _, keys: seen.extend(keys)
    with pytest.raises(Dies):
        store.discard([made.key])
    assert store.contents(made.key) is None
    assert seen == [made.key]


def test_a_stall_excuses_locks_that_were_granted_before_its_end() -> None:
    # Found by seed 7001364: the broker gave up a store that stalled before its commit, and the locks with it.
    faults: list[str] = []

    class StallingDisk(Disk):
        def at_work(self) -> bool:
            return True

    disk = StallingDisk(World(0), DiskFaults(stalls=1.0))
    disk.on_stall = lambda: faults.append("stall")
    disk.take_time("store")
    assert faults == ["stall", "stall"]
    assert disk.stalls == 1


def test_an_answer_that_comes_late_says_nothing_about_what_was_asked_since() -> None:
    # Found by seed 7007395: a message was deferred, fetched and dead-lettered before the first answer came.
    ledger = Ledger(World(0), Plan.of(random.Random(0)))
    letter = Letter("id", Lane("lane", ("queue",)), None, None, None, "red")
    letter.asked_by = deferring = object()
    letter.asked_by = fetching = object()
    ledger.settle(letter, None, "queue", fetching)
    ledger.settle(letter, MessageState.DEFERRED, "queue", deferring)
    assert letter.settled_as is None


@pytest.mark.parametrize(("fault_at", "is_shared"), [(0.5, True), (1.5, False), (2.5, False)])
def test_a_lock_that_a_fault_ended_before_its_message_was_delivered_is_no_lock(
    fault_at: float, is_shared: bool
) -> None:
    # Found by seed 910713 of three brokers: a link had kept the message while its owner lost all locks.
    world, plan = World(0), Plan.of(random.Random(0))
    plan.queues = [QueueDescription(EntityPath("queue"), lock_duration_s=10)]
    ledger = ClusterLedger(world, plan, lambda: False)
    letter = Letter("id", Lane("queue", ("queue",)), None, None, None, "red")

    def arrive(locked_at: float, link: object) -> None:
        arrival = Arrival(
            "id", b"", "queue", SubQueue.MAIN, MessageState.ACTIVE, SequenceNumber(1), 0, None, link
        )
        ledger._check_lock(letter, arrival, EPOCH_MS + int((locked_at + 10) * 1000))

    events = [
        (fault_at, ledger.fault),
        (2.0, partial(arrive, 1.0, "one")),
        (3.0, partial(arrive, 3.0, "another")),
    ]
    for world.now, happen in sorted(events, key=itemgetter(0)):
        happen()
    assert [kind for kind, _ in ledger.violations] == [Invariant.SHARED] * is_shared


@pytest.mark.parametrize("doubtful", [False, True])
def test_a_message_that_may_have_been_sent_twice_is_kept_by_its_copy_in_the_outbox(doubtful: bool) -> None:
    # Found by seed 5003866: the copy that had arrived was taken back, since its send was reported as failed.
    lane = Lane("keyed", ("topic/Subscriptions/keyed",), key_of=str)
    letter = Letter("id", lane, None, None, None, "red", doubtful=doubtful)
    waiting = Spot(lane.entities[0], SubQueue.OUTBOX, MessageState.ACTIVE, SequenceNumber(1), 0)
    assert letter.keeps(waiting)
    letter.been_at[lane.entities[0]] = None
    assert letter.keeps(waiting) is doubtful


def test_a_replay_that_did_not_reach_a_partition_may_still_put_back_what_is_in_it() -> None:
    # Found by seed 20261119431 of four brokers: the commit happened after the store had been given up.
    keeping = Keeping(World(0), Plan.of(random.Random(0)))
    letter = Letter("id", Lane("lane", ("queue",)), None, None, None, "red")
    whole, part = (keeping.ask("queue", lambda letter: True) for _ in range(2))
    assert keeping.answer(whole, 0, unavailable=0) is None
    assert keeping.answer(part, 0, unavailable=1) is None
    assert keeping.came_back(letter, "queue") is None
    assert "more often" in str(keeping.came_back(letter, "queue"))
    assert "came back" in str(keeping.answer(part, 3, unavailable=1))


@pytest.mark.parametrize(
    ("killed_at", "answered", "is_stuck"),
    [(None, True, True), (0.5, True, True), (1.5, True, False), (None, False, False)],
)
def test_a_deletion_may_leave_partitions_behind_only_if_something_goes_wrong(
    killed_at: float | None, answered: bool, is_stuck: bool
) -> None:
    # Found by seed 930026 of three brokers: an owner was killed before it had removed its partitions.
    world = World(0)
    ledger = ClusterLedger(world, Plan.of(random.Random(0)), lambda: False)
    if killed_at is not None:
        world.now = killed_at
        ledger.fault()
    world.now = 2.0
    left = PartitionRecord(PartitionKey(1), EntityPath("passing"), PartitionNumber(3))
    ledger.delete([left], 1.0, answered=answered)
    expected = [(Invariant.STUCK, "partition 3 of 'passing', which was deleted")]
    assert ledger.violations == expected * is_stuck


@pytest.mark.parametrize("put_back", [True, False])
def test_what_a_transaction_completed_may_be_put_back_in_the_same_commit(put_back: bool) -> None:
    # Found by seed 991081 of three brokers: what stood still for seconds was written at once.
    ledger, batch = Ledger(World(0), Plan.of(random.Random(0))), Batch("transaction")
    sent, completed = (Letter(name, Lane("q", ("q",)), None, None, None, "red") for name in ("sent", "old"))
    batch.sent, batch.removed = [sent], [completed]
    ledger.begin(batch)
    completed.spots["store", PartitionKey(1), 1] = Spot(
        "q", SubQueue.MAIN, MessageState.ACTIVE, SequenceNumber(1), 0
    )
    completed.removals.add(batch)
    sent.durable = True
    if put_back:
        completed.begin_again()
    ledger._check_whole(batch)
    assert [kind for kind, _ in ledger.violations] == ([] if put_back else [Invariant.TORN])


# A method of a compiled class cannot be replaced: its callers do not look it up.
needs_python = pytest.mark.skipif(is_compiled(), reason="mutants replace methods, and compiled ones stay")


@needs_python
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broker_is_found_out_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant: Mutant = MUTANTS[name]
    mutant.mutate(monkeypatch)
    for seed in range(mutant.seed, mutant.seed + SEEDS_PER_MUTANT):
        if any(kind in mutant.found_as for kind, _ in simulate(seed).violations):
            return
    pytest.fail(f"not in {SEEDS_PER_MUTANT} seeds")


@needs_python
@pytest.mark.row("N-03")
@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_a_cluster_is_found_out_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant: Mutant = CLUSTER_MUTANTS[name]
    mutant.mutate(monkeypatch)
    for seed in range(mutant.seed, mutant.seed + SEEDS_PER_MUTANT):
        if any(kind in mutant.found_as for kind, _ in simulate_cluster(seed, 3).violations):
            return
    pytest.fail(f"not in {SEEDS_PER_MUTANT} seeds")
