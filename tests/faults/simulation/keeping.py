"""Completed messages that are kept, and replays of them: what must be true of these. The rest: ledger.py.

The disks say when a message goes to those that are kept, comes back, or is forgotten. It comes back only
while a replay is under way that means it, and at most once for each replay, whether that was answered or not.
It is kept until its time is over. A replay puts back at least what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bendybus.domain.messages import SubQueue
from faults.simulation.plan import Plan
from faults.simulation.world import World

if TYPE_CHECKING:
    from faults.simulation.ledger import Letter, Spot

__all__ = ["Keeping", "Replay"]

# The clock may be set back by two seconds between a decision and its commit.
TOLERANCE_MS = 5_000


@dataclass(slots=True, eq=False)
class Replay:
    """A request to put completed messages back."""

    entity: str
    means: Callable[[Letter], bool]
    is_open: bool = True
    """Until all partitions have answered. One that does not may do it at any time."""
    moved: int = 0
    """How many messages came back to the entity meanwhile."""


class Keeping:
    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._keep_ms = {
            each.path: int(each.keep_completed_s * 1000) for each in (*plan.queues, *plan.subscriptions)
        }
        self._replays: list[Replay] = []
        self.replays = self.came_back_count = self.forgotten_count = 0

    def keeps(self, entity: str) -> bool:
        return bool(self._keep_ms.get(entity))

    def ends_ms(self, spot: Spot) -> int:
        """When a kept message is to be forgotten, by the wall clock."""
        assert spot.completed_at is not None, f"{spot} is kept and was never completed"
        return spot.completed_at + self._keep_ms[spot.entity]

    # -- what peers ask and are told -----------------------------------------------------

    def ask(self, entity: str, means: Callable[[Letter], bool]) -> Replay:
        self.replays += 1
        replay = Replay(entity, means)
        self._replays.append(replay)
        return replay

    def answer(self, replay: Replay, count: int, unavailable: int) -> str | None:
        """What is wrong with this answer, if anything is.

        What a partition was asked for that is said to be unavailable may still happen.
        """
        replay.is_open = unavailable > 0
        if count > replay.moved:
            return f"a replay of {replay.entity} put {count} messages back, and {replay.moved} came back"
        return None

    # -- what the disks say --------------------------------------------------------------

    def came_back(self, letter: Letter, entity: str) -> str | None:
        """A kept message is in its entity again. Begins its next life; says what is wrong."""
        self.came_back_count += 1
        asked = [each for each in self._replays if each.is_open and each.entity == entity]
        for replay in asked:
            replay.moved += 1
        letter.comebacks.append([each for each in asked if each.means(letter)])
        wrong = None
        if not letter.doubtful and not _each_has_its_own(letter.comebacks):
            wrong = f"{letter} came back {len(letter.comebacks)} times, more often than was asked for"
        letter.begin_again()
        return wrong

    def forgotten(self, letter: Letter, spot: Spot) -> str | None:
        """A kept message is gone; what is wrong with that, if anything is."""
        self.forgotten_count += 1
        early_ms = self.ends_ms(spot) - TOLERANCE_MS - self._world.wall_ms
        return f"{letter} was to be kept for {early_ms} ms more" if early_ms > 0 else None

    def left_over(self, letters: dict[tuple[str, str], Letter]) -> list[Spot]:
        """What is kept now."""
        return [
            spot
            for letter in letters.values()
            for spot in letter.spots.values()
            if spot.subqueue is SubQueue.COMPLETED
        ]


def _each_has_its_own(comebacks: list[list[Replay]]) -> bool:
    """Whether each time can be explained by another replay."""
    taken: dict[Replay, int] = {}

    def explain(number: int, tried: set[Replay]) -> bool:
        for replay in comebacks[number]:
            if replay not in tried:
                tried.add(replay)
                if replay not in taken or explain(taken[replay], tried):
                    taken[replay] = number
                    return True
        return False

    return all(explain(number, set()) for number in range(len(comebacks)))
