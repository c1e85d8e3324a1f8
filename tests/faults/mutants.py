"""Brokers with a fault in them, each of a kind that the simulation must find.

A mutant replaces a function or two of the real broker, as a careless change
might. That their seeds fail is what makes it worth something that the others do
not; test_simulation.py lets each of them be found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bendybus.broker import (
    attempts,
    commit_group,
    forwarding,
    partition_host,
    partition_lifecycle,
    placing,
    queue,
    recovery,
    writer,
)
from bendybus.cluster import ownership, sweeping
from bendybus.domain import completed, fanout, partition, run, stock
from bendybus.domain.changes import Changes
from bendybus.domain.commands import Enqueued, Transferred
from bendybus.domain.effects import (
    DurableEffect,
    MarkTransferred,
    RememberIdentities,
    RemoveMessages,
    SaveSessionState,
    UpdateMessages,
)
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.range_commands import Replay
from bendybus.names import Instant, SequenceNumber
from bendybus.store import memory
from bendybus.store.protocol import PartitionChanges
from faults.simulation import databases
from faults.simulation.ledger import Invariant

__all__ = ["CLUSTER_MUTANTS", "MUTANTS", "Mutant"]

LOST, RESURRECTED, DUPLICATED = Invariant.LOST, Invariant.RESURRECTED, Invariant.DUPLICATED
DISORDERED, PHANTOM, SHARED = Invariant.DISORDERED, Invariant.PHANTOM, Invariant.SHARED
FORGOTTEN, TORN, MISCOUNTED = Invariant.FORGOTTEN, Invariant.TORN, Invariant.MISCOUNTED
UNEXPECTED, TWO_OWNERS, STUCK = Invariant.UNEXPECTED, Invariant.TWO_OWNERS, Invariant.STUCK

Mutate = Callable[[pytest.MonkeyPatch], None]


def acknowledges_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    submit = writer.StoreWriter.submit

    def hasty(self: Any, shares: Any, committed: Any) -> None:
        submit(self, shares, _ignore)
        committed(None)

    patch.setattr(writer.StoreWriter, "submit", hasty)


def shows_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    perform = partition_host.PartitionHost._perform

    def eager(self: Any, partition: Any, command: Any, reply: Any, effects: Any, done: Any) -> None:
        perform(self, partition, command, reply, effects, done)
        if isinstance(reply, Enqueued):
            self._confirm(partition, SequenceNumber(reply.first + reply.count - 1))

    patch.setattr(partition_host.PartitionHost, "_perform", eager)


def keeps_its_memory_after_a_failed_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_lifecycle.PartitionLifecycle, "fail", lambda self, error: None)
    patch.setattr(partition_lifecycle.PartitionLifecycle, "withdraw", lambda self: [])


def forgets_on_disk(kind: type[DurableEffect]) -> Mutate:
    """A kind of effect that never reaches the store."""
    add = commit_group._add_effect

    def forgetful(changes: Any, effect: Any) -> None:
        if not isinstance(effect, kind):
            add(changes, effect)

    return lambda patch: patch.setattr(commit_group, "_add_effect", forgetful)


def forgets_failed_deliveries(patch: pytest.MonkeyPatch) -> None:
    def forgiving(self: Any, messages: list[Message], changes: Changes) -> None:
        self.put_back(messages, changes)

    patch.setattr(stock.Stock, "fail_delivery", forgiving)


def commits_transactions_in_two_halves(patch: pytest.MonkeyPatch) -> None:
    submit = writer.StoreWriter.submit

    def halved(self: Any, shares: Sequence[Any], committed: Any) -> None:
        if len(shares) < 2:
            submit(self, shares, committed)
            return
        submit(self, shares[:1], _ignore)
        asyncio.get_running_loop().call_later(0.01, submit, self, shares[1:], committed)

    patch.setattr(writer.StoreWriter, "submit", halved)


def removes_what_it_forwards_before_it_has_arrived(patch: pytest.MonkeyPatch) -> None:
    send = forwarding.Forwarder._send

    async def careless(self: Any, source: Any, target: Any, load: Any, away: Any) -> None:
        source.submit(Transferred(load.numbers), _ignore)
        await send(self, source, target, load, away)

    patch.setattr(forwarding.Forwarder, "_send", careless)


def reassigns_what_may_have_arrived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempts.Attempts, "never_sent", lambda self, number: True)


def leaves_copies_in_the_partition_of_the_old_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fanout.FanOut, "_home", lambda self, *others: None)


def does_not_note_what_a_partition_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue.Queue, "stock", lambda *_: None)


def puts_back_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run.Run, "insert", run.Run.extend)


def remembers_no_duplicates_after_a_start(patch: pytest.MonkeyPatch) -> None:
    restore = partition.Partition.restore

    def amnesic(self: Any, messages: Any, identities: Any = (), *others: Any) -> None:
        restore(self, messages, (), *others)

    patch.setattr(partition.Partition, "restore", amnesic)


def ends_locks_early(patch: pytest.MonkeyPatch) -> None:
    end_locks = stock.Stock.end_locks

    def impatient(self: Any, at: Instant, changes: Changes) -> None:
        end_locks(self, Instant(at + 4500), changes)

    patch.setattr(stock.Stock, "end_locks", impatient)


def sends_what_a_lost_partition_had_lent(patch: pytest.MonkeyPatch) -> None:
    """Links keep locked messages for their next credit: those of a partition that was thrown away, too."""
    patch.setattr(partition_host.PartitionHost, "held_among", lambda self, tokens, at: set(tokens))


def does_not_keep(patch: pytest.MonkeyPatch) -> None:
    def finish(self: Any, messages: list[Message], at: Instant, changes: Changes) -> None:
        self._stock.remove(messages, changes)

    patch.setattr(completed.CompletedMessages, "finish", finish)


def forgets_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(completed.CompletedMessages, "_keep_ms", property(lambda self: 1000))


def never_forgets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(completed.CompletedMessages, "forget_old", lambda self, at, changes: None)


def puts_back_what_nobody_asked_for(patch: pytest.MonkeyPatch) -> None:
    """A replay of one session, key or number puts everything back."""
    put_back = completed.CompletedMessages.put_back

    def generous(self: Any, command: Replay, at: Instant, changes: Changes) -> Any:
        return put_back(self, replace(command, session_id=None, numbers=None, count=1000), at, changes)

    patch.setattr(completed.CompletedMessages, "put_back", generous)


def puts_back_without_a_trace_on_disk(patch: pytest.MonkeyPatch) -> None:
    """What was put back is still kept after a restart, and can be put back again."""
    add = commit_group._add_effect

    def forgetful(changes: Any, effect: Any) -> None:
        if isinstance(effect, UpdateMessages):
            effect = UpdateMessages([each for each in effect.messages if not _was_put_back(each)])
        add(changes, effect)

    patch.setattr(commit_group, "_add_effect", forgetful)


def _was_put_back(message: Message) -> bool:
    return bool(message.row_id) and message.subqueue is SubQueue.MAIN and not message.delivery_count


def hands_out_what_rests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stock.Stock, "_rests", lambda self, message, until: False)


# -- of a cluster ---------------------------------------------------------------------------


def claims_without_regard_to_the_term(patch: pytest.MonkeyPatch) -> None:
    """The database lets a broker that was displaced claim partitions, and so go on committing."""
    patch.setattr(databases.StoreAccess, "refuse_displaced", lambda self: None)


def commits_without_regard_to_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """A broker that was displaced goes on committing."""
    commit = memory.MemoryStore.commit

    def lenient(self: Any, changes: Sequence[PartitionChanges]) -> None:
        for change in changes:
            change.epoch = self._partition(change.key).epoch
        commit(self, changes)

    patch.setattr(memory.MemoryStore, "commit", lenient)


def takes_stores_over_without_claiming_partitions(patch: pytest.MonkeyPatch) -> None:
    """Nothing fences the former owner."""
    claim = ownership.Ownership._claim

    def trusting(self: Any, store: Any, is_open: bool) -> Any:
        store.claim = lambda keys: [store._partitions[key].epoch for key in keys]
        try:
            return claim(self, store, is_open)
        finally:
            del store.claim

    patch.setattr(ownership.Ownership, "_claim", trusting)


def sweeps_while_an_entity_is_created(patch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Any) -> Any:
        _, records = await asyncio.to_thread(self._catalog.read)
        return placing.placed_in(records)

    patch.setattr(sweeping.Sweep, "_placed", hasty)


def sweeps_stores_that_it_has_given_up(patch: pytest.MonkeyPatch) -> None:
    """A former owner removes all partitions of a store that does not know yet that it was given up."""
    always = property(lambda self: True, lambda self, value: None)
    patch.setattr(recovery.Recovery, "may_sweep", always, raising=False)
    # Otherwise only a store that failed during a deletion is swept, in one of a thousand seeds.
    patch.setattr(recovery.Recovery, "has_leftovers", always, raising=False)


def _ignore(_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Mutant:
    mutate: Mutate
    found_as: tuple[Invariant, ...]
    """What must be said about it; any of these."""
    seed: int = 0
    """The first that is likely to find it, to save time."""


MUTANTS: dict[str, Mutant] = {
    "acknowledges before the commit": Mutant(acknowledges_before_the_commit, (LOST,), seed=4),
    "shows what is not durable": Mutant(shows_what_is_not_durable, (PHANTOM,), seed=7),
    "keeps its memory after a failed commit": Mutant(
        keeps_its_memory_after_a_failed_commit, (MISCOUNTED,), seed=4
    ),
    "does not store removals": Mutant(forgets_on_disk(RemoveMessages), (RESURRECTED,), seed=4),
    "does not store settlements": Mutant(forgets_on_disk(UpdateMessages), (FORGOTTEN,), seed=4),
    "does not store how far an outbox has arrived": Mutant(
        forgets_on_disk(MarkTransferred), (DUPLICATED, RESURRECTED), seed=4
    ),
    "does not store the states of sessions": Mutant(forgets_on_disk(SaveSessionState), (FORGOTTEN,), seed=8),
    "does not store what duplicates are known by": Mutant(
        forgets_on_disk(RememberIdentities), (DUPLICATED, RESURRECTED), seed=18
    ),
    "remembers no duplicates after a start": Mutant(
        remembers_no_duplicates_after_a_start, (DUPLICATED, RESURRECTED), seed=18
    ),
    "forgets failed deliveries": Mutant(forgets_failed_deliveries, (FORGOTTEN,), seed=5),
    "commits transactions in two halves": Mutant(commits_transactions_in_two_halves, (TORN,)),
    "removes what it forwards before it has arrived": Mutant(
        removes_what_it_forwards_before_it_has_arrived, (LOST,), seed=4
    ),
    "reassigns what may have arrived": Mutant(
        reassigns_what_may_have_arrived, (DUPLICATED, RESURRECTED), seed=4
    ),
    "leaves copies in the partition of the old key": Mutant(
        leaves_copies_in_the_partition_of_the_old_key, (UNEXPECTED,), seed=1
    ),
    "puts back at the end": Mutant(puts_back_at_the_end, (DISORDERED,)),
    "does not note what a partition has for receivers": Mutant(
        does_not_note_what_a_partition_has, (MISCOUNTED,), seed=0
    ),
    "does not keep completed messages": Mutant(does_not_keep, (LOST,), seed=1),
    "forgets completed messages too early": Mutant(forgets_too_early, (LOST,), seed=1),
    "never forgets completed messages": Mutant(never_forgets, (STUCK,), seed=1),
    "puts back what nobody asked for": Mutant(puts_back_what_nobody_asked_for, (RESURRECTED,), seed=1),
    "puts back without a trace on disk": Mutant(puts_back_without_a_trace_on_disk, (MISCOUNTED,)),
    "hands out what rests": Mutant(hands_out_what_rests, (FORGOTTEN,), seed=1),
    "ends locks early": Mutant(ends_locks_early, (SHARED,), seed=17),
    "sends what a lost partition had lent": Mutant(
        sends_what_a_lost_partition_had_lent, (RESURRECTED, SHARED), seed=168
    ),
}

CLUSTER_MUTANTS: dict[str, Mutant] = {
    "claims without regard to the term": Mutant(claims_without_regard_to_the_term, (TWO_OWNERS,), seed=2),
    "commits without regard to the epoch": Mutant(commits_without_regard_to_the_epoch, (TWO_OWNERS,), seed=2),
    "takes stores over without claiming partitions": Mutant(
        takes_stores_over_without_claiming_partitions, (TWO_OWNERS,)
    ),
    "sweeps stores that it has given up": Mutant(sweeps_stores_that_it_has_given_up, (LOST,), seed=20337),
    "sweeps while an entity is created": Mutant(
        sweeps_while_an_entity_is_created, (STUCK, UNEXPECTED), seed=983016
    ),
}
