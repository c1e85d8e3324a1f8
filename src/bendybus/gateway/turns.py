"""Turns: how much of one connection's input is handled before the next connection is looked at.

A connection handles its input in slices (`AmqpConnection.work`), measured in units of work (engine). After
so many units the event loop goes on to everybody else. What is left waits, and its socket is not read
meanwhile. Clients that have not proved who they are share one turn, so a crowd of strangers delays the others
no more than a single one does. They may use all the time that the others leave: when everybody reconnects
after a restart, nobody waits for a timer. A stranger that costs much has to pause after each slice; when it
is dropped: probation.py.

Turns are counted and not timed, so they are the same in every run of a simulation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from bendybus.engine.work import PERFORMATIVE_WORK

__all__ = ["Turns", "Worker"]

# One turn of an authenticated connection: 250 attaches or flows, or 4,000 dispositions, take about 20 ms. A
# series of plain transfers counts as one frame: what a bulk sender has in a socket read stays one batch.
TURN_WORK: Final = 250 * PERFORMATIVE_WORK
# Handled before anything is written. Dispositions that come one by one are still joined by the thousand.
SLICE_WORK: Final = 64 * PERFORMATIVE_WORK

# All strangers together in one turn of the loop, and each of them before the next: 32 and 8 frames. A client
# that brings its token sends about ten, in several round trips.
STRANGERS_TURN_WORK: Final = 32 * PERFORMATIVE_WORK
STRANGER_SLICE_WORK: Final = 8 * PERFORMATIVE_WORK

# How long a stranger that has cost much waits after each slice: 400 frames a second are left to it.
STRANGER_PAUSE_S: Final = 0.02


class Worker(Protocol):
    """A connection, as far as turns are concerned."""

    @property
    def authenticated(self) -> bool: ...

    @property
    def slowed(self) -> bool:
        """Whether this stranger has cost so much that it has to pause between slices."""
        ...

    @property
    def busy(self) -> bool:
        """Whether input waits to be handled."""
        ...

    def work(self, work_max: int) -> int:
        """Handle a slice of the input; how much work it was."""
        ...

    def wait_for_turn(self, waits: bool) -> None:
        """Input has to wait, so no more is to be read; or none waits any more."""
        ...


class Turns:
    """Every connection of a gateway takes its turns here."""

    def __init__(self) -> None:
        self._strangers: deque[Worker] = deque()
        self._strangers_work_left = STRANGERS_TURN_WORK
        self._next_turn: asyncio.Handle | None = None

    def take(self, worker: Worker) -> None:
        """Input has come where none waited: handle it now as far as a turn goes, and the rest later."""
        if worker.authenticated:
            self._serve(worker)
        else:
            self._strangers.append(worker)
            self._serve_strangers()

    def _serve(self, worker: Worker) -> None:
        left = TURN_WORK
        while worker.busy:
            if left <= 0:
                worker.wait_for_turn(True)
                asyncio.get_running_loop().call_soon(self._serve, worker)
                return
            left -= worker.work(SLICE_WORK)
        worker.wait_for_turn(False)

    def _serve_strangers(self) -> None:
        strangers = self._strangers
        while strangers and self._strangers_work_left > 0:
            stranger = strangers.popleft()
            self._strangers_work_left -= stranger.work(STRANGER_SLICE_WORK)
            self._after_slice(stranger)
        for stranger in strangers:
            stranger.wait_for_turn(True)
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._strangers_work_left = STRANGERS_TURN_WORK
        if self._strangers:
            self._serve_strangers()

    def _after_slice(self, stranger: Worker) -> None:
        if not stranger.busy:
            stranger.wait_for_turn(False)
        elif stranger.authenticated:
            self._serve(stranger)
        elif stranger.slowed:
            stranger.wait_for_turn(True)
            asyncio.get_running_loop().call_later(STRANGER_PAUSE_S, self.take, stranger)
        else:
            self._strangers.append(stranger)
