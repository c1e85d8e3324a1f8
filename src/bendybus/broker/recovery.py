"""The recovery of a messaging store: when it is probed again, and how.

A probe claims, in one call, all partitions that have to be loaded. That shows whether the store can be
written to, and it fences everything submitted before. A store that fails again soon after it came back
is left alone for twice as long each time (a full disk accepts small writes and refuses large ones). A
probe also serves single partitions that have to be loaded again although their store is healthy.
The states are a table in lifecycle.py.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from bendybus.broker.lifecycle import RECOVERY, RecoveryEvent, RecoveryState, StoreState, after
from bendybus.broker.loop_calls import call_in_loop
from bendybus.broker.resident import Claimed, Resident
from bendybus.errors import StoreError
from bendybus.names import EntityPath, PartitionNumber
from bendybus.store.protocol import PartitionKey

if TYPE_CHECKING:
    from bendybus.broker.stores import AttachedStore

__all__ = ["RECOVER_AFTER_S", "Recovery"]

logger = logging.getLogger(__name__)

# How long to wait after a failure of a store or partition. Doubled each time it fails again soon.
RECOVER_AFTER_S: Final = 1.0
RECOVER_AFTER_MAX_S: Final = 30.0
SOUND_AFTER_S: Final = 60.0


class Recovery:
    def __init__(self, store: AttachedStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self.state = RecoveryState.IDLE
        self.opened = True
        """False for a store that could not be opened when the broker started."""
        self.has_leftovers = False
        """Whether partitions could not be dropped while the store was away. They are swept later."""
        self.may_sweep = True
        """False once the store is given up to another broker: what is in it is not ours to remove."""
        self.given_up: set[tuple[EntityPath, PartitionNumber]] = set()
        """Partitions that are being created again elsewhere. Until that is done, they are no leftovers."""
        self._timer: asyncio.TimerHandle | None = None
        self._recovered_at: float | None = None
        self.delay_s = RECOVER_AFTER_S
        """How long the last wait was."""

    def _change(self, event: RecoveryEvent) -> None:
        """The one place that sets the state."""
        self.state = after(RECOVERY, self.state, event)
        self._store.changes.notify()

    # -- when ---------------------------------------------------------------------

    def plan(self, delay_s: float) -> None:
        """Probe after this time, unless a probe is under way or planned for an earlier time."""
        if self.state in (RecoveryState.PROBING, RecoveryState.STOPPED):
            return
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + delay_s:
                return
            self._timer.cancel()
        self._change(RecoveryEvent.PLAN)
        self._timer = self._loop.call_later(delay_s, self.probe)

    def _plan_others(self) -> None:
        """Partitions that failed shortly before a probe, or during it, are due after it. Probe again then."""
        # For partitions without a key, which the store does not have, `_succeeded` plans a later probe.
        known = [each for each in self._store.residents if each.key is not None]
        times = [each.reload_at for each in known if each.reload_at is not None]
        if times:
            self.plan(max(min(times) - self._loop.time(), 0.0))

    def plan_after_failure(self) -> None:
        """The store has failed: probe soon, or later if it had only just come back."""
        back = self._recovered_at
        if back is None or self._loop.time() - back > SOUND_AFTER_S:
            self.delay_s = RECOVER_AFTER_S
            self.plan(RECOVER_AFTER_S)
        else:
            self.plan(self._longer_s())

    def _longer_s(self) -> float:
        """Twice as long as before, because the cause will probably not go away on its own."""
        self.delay_s = min(self.delay_s * 2, RECOVER_AFTER_MAX_S)
        return self.delay_s

    def stop(self) -> None:
        self._cancel_timer()
        self._change(RecoveryEvent.STOP)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- how ----------------------------------------------------------------------

    def probe(self) -> None:
        """Claim all partitions to be loaded at once. That shows whether the store can be written to."""
        if self.state in (RecoveryState.PROBING, RecoveryState.STOPPED):
            return
        self._cancel_timer()
        self._change(RecoveryEvent.REST)
        store, at = self._store, self._loop.time()
        wanted = [each for each in store.residents if each.reload_at is not None and each.reload_at <= at]
        if store.writer.stuck or store.reader.stuck:
            # The call in which it is stuck may still write. Only after that is there something to read.
            self.plan(RECOVER_AFTER_S)
        elif wanted or store.state is StoreState.AWAY:
            self._change(RecoveryEvent.PROBE)
            # The thread must not read what the loop may change.
            unknown = {(each.path, each.number): each for each in wanted if each.key is None}
            known = {each: each.key for each in wanted if each.key is not None}
            residents = self.given_up | {(each.path, each.number) for each in store.residents}
            # A store that answers may contain the copy of a move that is under way. It must not be swept.
            sweeps = self.may_sweep and self.has_leftovers and store.state is StoreState.AWAY
            claim = partial(self._claim, residents, unknown, known, sweeps)
            store.writer.when_written(partial(self._run, claim), self._failed)
        else:
            self._plan_others()

    def _run(self, claim: partial[Claimed]) -> None:
        """Runs in the writer's thread."""
        try:
            claimed = claim()
        except Exception as failure:
            call_in_loop(self._loop, self._failed, failure)
        else:
            call_in_loop(self._loop, self._succeeded, claimed)

    def _claim(
        self,
        residents: set[tuple[EntityPath, PartitionNumber]],
        unknown: dict[tuple[EntityPath, PartitionNumber], Resident],
        known: dict[Resident, PartitionKey],
        sweeps: bool,
    ) -> Claimed:
        """In the writer's thread: open the store if it never was, and claim what has to be loaded."""
        messaging_store = self._store.store
        if not self.opened:
            messaging_store.open()
            self.opened = True
        if unknown or sweeps:
            # The reader is not in use yet, so its calls may be made from this thread.
            records = messaging_store.partitions()
            # Left behind by an interrupted create, delete or move, or by one made while the store was away.
            leftovers = [each.key for each in records if (each.entity, each.number) not in residents]
            # Asked now and not in the loop: the store may have been given up since.
            if leftovers and self.may_sweep:
                messaging_store.discard(leftovers)
            for record in records:
                resident = unknown.get((record.entity, record.number))
                if resident is not None:
                    known[resident] = record.key
        epochs = messaging_store.claim(list(known.values()))
        return {each: (key, epoch) for (each, key), epoch in zip(known.items(), epochs, strict=True)}

    def _succeeded(self, claimed: Claimed) -> None:
        if self.state is RecoveryState.STOPPED:
            return
        self._change(RecoveryEvent.ANSWERED)
        store = self._store
        if store.state is StoreState.AWAY:
            self._recovered_at = self._loop.time()
            self.has_leftovers = False
        store.probed(len(claimed))
        for resident, (key, epoch) in claimed.items():
            # The store may have been given up meanwhile: forgetting.py.
            if resident in store.residents:
                resident.load_claimed(key, epoch)
        missing = [resident for resident in store.residents if resident.key is None]
        if missing:
            logger.error("store %s does not have %s: was another file put in its place?", store.name, missing)
            self.plan(RECOVER_AFTER_MAX_S)
        self._plan_others()

    def _failed(self, failure: Exception) -> None:
        if self.state is RecoveryState.STOPPED:
            return
        self._change(RecoveryEvent.ANSWERED)
        store = self._store
        was_away = store.state is StoreState.AWAY
        store.probe_failed(failure)
        if was_away or store.state is not StoreState.AWAY:
            self.plan(self._longer_s() if isinstance(failure, StoreError) else RECOVER_AFTER_S)
