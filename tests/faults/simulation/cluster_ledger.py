"""What must be true of every message when there are several brokers. The rules: ledger.py.

What a broker had locked and sent may be on its way for long: while a process is paused, while the network
holds something up, and while a broker does not know that it has lost a store. A client may be shown such a
message after another one has settled it, and cannot settle it itself. Nothing of that reaches a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bendybus.store.protocol import PartitionRecord
from faults.simulation.ledger import Invariant, Ledger
from faults.simulation.plan import Plan
from faults.simulation.states import SessionStates
from faults.simulation.world import World

__all__ = ["ClusterLedger", "ClusterSessionStates"]

# A message passes two wires, and a broker between them.
ON_TWO_WIRES_S = 0.1
# Longer than any lock of a session.
SESSION_LOCK_S = 30.0


class ClusterLedger(Ledger):
    def __init__(self, world: World, plan: Plan, disturbed: Callable[[], bool]) -> None:
        """`disturbed`: whether something is held up now."""
        super().__init__(world, plan)
        self._disturbed = disturbed
        self._disturbed_at = -1.0

    def disturb(self) -> None:
        """Something begins or ends that holds messages up."""
        self._disturbed_at = self.world.now
        self.fault()
        self.doubt_unanswered()

    def may_be_late(self, since: float) -> bool:
        return (
            self._disturbed()
            or max(self._disturbed_at, since) + ON_TWO_WIRES_S > self.world.now
            or (self._disturbed_at >= since)
        )

    def _fault_since(self, at: float) -> bool:
        return self._disturbed() or super()._fault_since(at)

    def _locked_at(self, entity: str, until_ms: int) -> float:
        """A link keeps messages that it has no credit for, up to half of their lock time. If another broker
        owns the partition, only that one knows whether a lock has ended meanwhile (`held_among` of a remote
        partition). So a message may be sent under a lock that a fault ended before, and that settles nothing.
        A link whose session ends is told, and sends nothing more.
        """
        now = self.world.now
        described = [each for each in self._plan.sources if each.path == entity and not each.requires_session]
        if not described:
            return now
        lock_s = described[0].lock_duration_s
        if self.jumped_at > max(now - lock_s, 0.0):
            # Somebody has set the clock, so the age of the lock is not known.
            return now - lock_s
        left_s = (until_ms - self.world.wall_ms) / 1000
        return min(now - lock_s + left_s, now)

    def delete(self, left: Sequence[PartitionRecord], asked_at: float, *, answered: bool) -> None:
        """The catalog does not list an entity any more, and the stores have these partitions of it.
        `answered`: whether the broker has said that all is done.

        The owner of each store removes them before that. If it is killed, or the store fails, they stay until
        the leader sweeps (cluster/sweeping.py). If nothing went wrong, none may be left.
        """
        if answered and not self._fault_since(asked_at):
            for record in left:
                self.violate(
                    Invariant.STUCK, f"partition {record.number} of '{record.entity}', which was deleted"
                )

    def lose_connection(self) -> None:
        """Two brokers are not connected any more: sessions that one of them holds at the other end."""
        self.fault()
        self.doubt_unanswered()

    def doubt_unanswered(self) -> None:
        """A broker may report any send as failed that it has not answered yet, though it happened."""
        for letter in self.letters.values():
            if not letter.accepted:
                letter.doubtful = True


class ClusterSessionStates(SessionStates):
    """The states of sessions. What was asked for long ago may be answered now."""

    def __init__(self, violate: Callable[[str], None], ledger: ClusterLedger) -> None:
        super().__init__(violate)
        self._ledger = ledger

    def _late(self) -> bool:
        return self._ledger.may_be_late(self._ledger.world.now - SESSION_LOCK_S)

    def answered(self, session_id: str, state: bytes | None) -> None:
        if not self._late():
            super().answered(session_id, state)

    def got(self, session_id: str, state: bytes | None) -> None:
        if self._late():
            self.ask(session_id, state)
        else:
            super().got(session_id, state)
