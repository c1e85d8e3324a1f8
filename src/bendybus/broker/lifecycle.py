"""The lifecycles of a partition and of a messaging store as tables, and nothing else.

A table maps (state, event) to the next state; a missing key is a bug. Each machine has one
owner, which alone changes the state and acts on the change: a partition's is
`PartitionLifecycle` (partition_lifecycle.py), a store's is `AttachedStore` (stores.py), and that of a store's
recovery is `Recovery` (recovery.py).

Other modules only need to know whether a partition takes a command now. `Availability`
answers that, and `AVAILABILITY` derives it from the state.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

__all__ = [
    "AVAILABILITY",
    "IN_MEMORY",
    "PARTITION",
    "RECOVERY",
    "STORE",
    "Availability",
    "PartitionEvent",
    "PartitionState",
    "RecoveryEvent",
    "RecoveryState",
    "StoreEvent",
    "StoreState",
    "after",
]


# -- a partition ----------------------------------------------------------------


class PartitionState(Enum):
    LOADING = "loading"
    """The partition is being read from its store, or is about to be. Commands wait."""
    LATE = "late"
    """The partition is still being read, but takes too long to wait for. Commands are refused."""
    SERVING = "serving"
    """The partition is in memory and takes commands."""
    FROZEN = "frozen"
    """The partition is in memory. Commands wait while it moves to another store (moving.py)."""
    EMPTYING = "emptying"
    """All messages of the partition are being discarded (emptying.py). Commands wait."""
    AWAY = "away"
    """Its store has failed, or cannot say what it holds. Commands are refused until the next load."""
    HANDING_OVER = "handing over"
    """The partition is in memory. Commands wait while another broker takes it over."""
    OWNED_ELSEWHERE = "owned elsewhere"
    """Another broker has claimed the partition."""
    GONE = "gone"
    """The entity of the partition has been deleted."""


class PartitionEvent(Enum):
    LOAD = "a load begins"
    LOADED = "the load has succeeded"
    OVERDUE = "the load takes too long to wait for it"
    LOST = "its store has failed, or memory is no longer what the store holds"
    FREEZE = "a move wants it to stand still"
    THAW = "the move is over"
    EMPTY = "its messages are about to be discarded"
    HAND_OVER = "another broker is to have it"
    KEEP = "the other broker did not take it"
    CLAIMED_ELSEWHERE = "another broker has claimed it"
    CLOSE = "its entity is deleted"


def _from_all(
    states: tuple[PartitionState, ...], event: PartitionEvent, to: PartitionState
) -> dict[tuple[PartitionState, PartitionEvent], PartitionState]:
    return {(state, event): to for state in states}


_LIVE: Final = tuple(state for state in PartitionState if state is not PartitionState.GONE)

PARTITION: Final[dict[tuple[PartitionState, PartitionEvent], PartitionState]] = {
    # A load may begin again before the last one has ended; its result is then ignored.
    **_from_all(_LIVE, PartitionEvent.LOAD, PartitionState.LOADING),
    (PartitionState.LOADING, PartitionEvent.LOADED): PartitionState.SERVING,
    (PartitionState.LOADING, PartitionEvent.OVERDUE): PartitionState.LATE,
    (PartitionState.LATE, PartitionEvent.LOADED): PartitionState.SERVING,
    (PartitionState.SERVING, PartitionEvent.FREEZE): PartitionState.FROZEN,
    (PartitionState.FROZEN, PartitionEvent.THAW): PartitionState.SERVING,
    (PartitionState.SERVING, PartitionEvent.HAND_OVER): PartitionState.HANDING_OVER,
    (PartitionState.HANDING_OVER, PartitionEvent.KEEP): PartitionState.SERVING,
    **_from_all(_LIVE, PartitionEvent.EMPTY, PartitionState.EMPTYING),
    **_from_all(_LIVE, PartitionEvent.LOST, PartitionState.AWAY),
    **_from_all(_LIVE, PartitionEvent.CLAIMED_ELSEWHERE, PartitionState.OWNED_ELSEWHERE),
    **_from_all(tuple(PartitionState), PartitionEvent.CLOSE, PartitionState.GONE),
}

IN_MEMORY: Final = frozenset({PartitionState.SERVING, PartitionState.FROZEN, PartitionState.HANDING_OVER})
"""The states in which the partition is in memory. Entering another state discards the memory."""


class Availability(Enum):
    """What happens to a command that is submitted now."""

    AVAILABLE = "available"
    LOADING = "loading"
    """It waits."""
    UNAVAILABLE = "unavailable"
    """It is refused with a retryable error."""
    GONE = "gone"
    """It is refused: the entity no longer exists."""


AVAILABILITY: Final = {
    PartitionState.LOADING: Availability.LOADING,
    PartitionState.LATE: Availability.UNAVAILABLE,
    PartitionState.SERVING: Availability.AVAILABLE,
    PartitionState.FROZEN: Availability.LOADING,
    PartitionState.EMPTYING: Availability.LOADING,
    PartitionState.AWAY: Availability.UNAVAILABLE,
    PartitionState.HANDING_OVER: Availability.LOADING,
    PartitionState.OWNED_ELSEWHERE: Availability.UNAVAILABLE,
    PartitionState.GONE: Availability.GONE,
}


# -- a messaging store ----------------------------------------------------------


class StoreState(Enum):
    AVAILABLE = "available"
    """The store answers."""
    SLOW = "slow"
    """A call has taken a second. Messages without a key go elsewhere; nothing is given up."""
    DAMAGED = "damaged"
    """The store answers, but a recent call met damage. Partitions that need that data are unavailable."""
    AWAY = "away"
    """The store has failed, or a call exceeded its patience (health.py). Partitions are unavailable."""
    STOPPED = "stopped"
    """The broker has detached the store."""


class StoreEvent(Enum):
    DELAYED = "a call takes long"
    CAUGHT_UP = "no call takes long any more"
    DAMAGE_MET = "a call has met damage"
    MENDED = "no call has met damage for a while, and all partitions are loaded"
    FAILED = "a call has failed, or has taken too long"
    RECOVERED = "a probe has succeeded"
    STOP = "the broker lets go of it"


STORE: Final[dict[tuple[StoreState, StoreEvent], StoreState]] = {
    (StoreState.AVAILABLE, StoreEvent.DELAYED): StoreState.SLOW,
    (StoreState.SLOW, StoreEvent.CAUGHT_UP): StoreState.AVAILABLE,
    (StoreState.AVAILABLE, StoreEvent.DAMAGE_MET): StoreState.DAMAGED,
    (StoreState.SLOW, StoreEvent.DAMAGE_MET): StoreState.DAMAGED,
    (StoreState.DAMAGED, StoreEvent.DAMAGE_MET): StoreState.DAMAGED,
    (StoreState.DAMAGED, StoreEvent.MENDED): StoreState.AVAILABLE,
    (StoreState.DAMAGED, StoreEvent.FAILED): StoreState.AWAY,
    (StoreState.AVAILABLE, StoreEvent.FAILED): StoreState.AWAY,
    (StoreState.SLOW, StoreEvent.FAILED): StoreState.AWAY,
    (StoreState.AWAY, StoreEvent.RECOVERED): StoreState.AVAILABLE,
    **{(state, StoreEvent.STOP): StoreState.STOPPED for state in StoreState},
}


# -- the recovery of a store, or of single partitions in it -------------------------


class RecoveryState(Enum):
    IDLE = "idle"
    """Nothing has to be recovered."""
    PLANNED = "planned"
    """A probe starts when its timer expires."""
    PROBING = "probing"
    """The writer's thread is claiming the partitions to be loaded."""
    STOPPED = "stopped"


class RecoveryEvent(Enum):
    PLAN = "something is to be recovered later"
    PROBE = "a probe begins"
    REST = "there is nothing to recover"
    ANSWERED = "the probe has succeeded or failed"
    STOP = "the broker lets go of the store"


RECOVERY: Final[dict[tuple[RecoveryState, RecoveryEvent], RecoveryState]] = {
    (RecoveryState.IDLE, RecoveryEvent.PLAN): RecoveryState.PLANNED,
    (RecoveryState.IDLE, RecoveryEvent.PROBE): RecoveryState.PROBING,
    (RecoveryState.IDLE, RecoveryEvent.REST): RecoveryState.IDLE,
    (RecoveryState.PLANNED, RecoveryEvent.PLAN): RecoveryState.PLANNED,
    (RecoveryState.PLANNED, RecoveryEvent.PROBE): RecoveryState.PROBING,
    (RecoveryState.PLANNED, RecoveryEvent.REST): RecoveryState.IDLE,
    (RecoveryState.PROBING, RecoveryEvent.ANSWERED): RecoveryState.IDLE,
    # A probe that was given up because its store stalled may still answer.
    (RecoveryState.IDLE, RecoveryEvent.ANSWERED): RecoveryState.IDLE,
    (RecoveryState.PLANNED, RecoveryEvent.ANSWERED): RecoveryState.PLANNED,
    **{(state, RecoveryEvent.STOP): RecoveryState.STOPPED for state in RecoveryState},
}


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def after(table: dict[tuple[S, E], S], state: S, event: E) -> S:
    """The next state. The owner ensures that the event can happen in this state."""
    assert (state, event) in table, f"'{event.value}' cannot happen to something that is {state.value}"
    return table[state, event]
