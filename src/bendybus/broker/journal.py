"""The journal of a partition that moves: what is submitted to its store while a copy is made (copying.py)."""

from __future__ import annotations

from collections.abc import Sequence

from bendybus.domain.effects import DurableEffect

__all__ = ["Journal"]


class Journal:
    """Costs nothing while it is not active."""

    __slots__ = ("_effects",)

    def __init__(self) -> None:
        self._effects: list[DurableEffect] | None = None

    def begin(self) -> None:
        """Record what is submitted from now on."""
        self._effects = []

    def note(self, effects: Sequence[DurableEffect]) -> None:
        if self._effects is not None:
            self._effects += effects

    def take(self) -> list[DurableEffect]:
        """What was submitted since the last time."""
        taken = self._effects or []
        if self._effects is not None:
            self._effects = []
        return taken

    def end(self) -> None:
        self._effects = None
