"""Actions that can be undone: offered for some seconds, on every page of the session.

An action is offered only if undoing it restores the exact former state: settings, rules, policies with their
keys, session states, and scheduled messages (under a new number). An action that loses messages has to be
confirmed instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

__all__ = ["Undo", "Undos"]

OFFERED_S: Final = 20.0
OFFERED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Undo:
    number: int
    text: str
    """What was done."""
    work: Callable[[], object]
    """Takes it back. Blocks."""
    ends_at: float


class Undos:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self._offered: list[Undo] = []

    def offer(self, text: str, work: Callable[[], object]) -> None:
        made = Undo(next(self._numbers), text, work, self._clock() + OFFERED_S)
        self._offered = [made, *self.offered()][:OFFERED_MAX]

    def offered(self) -> list[Undo]:
        """The newest first."""
        at = self._clock()
        self._offered = [each for each in self._offered if each.ends_at > at]
        return list(self._offered)

    def left_s(self, undo: Undo) -> int:
        return max(1, round(undo.ends_at - self._clock()))

    def take(self, number: int) -> Undo | None:
        """The one with this number, which is offered no longer; None if it is too late."""
        found = next((each for each in self.offered() if each.number == number), None)
        self._offered = [each for each in self._offered if each is not found]
        return found
