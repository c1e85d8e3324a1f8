"""Turns: how much of one connection's input is handled before other connections get their turn.

A connection handles its input in slices (`AmqpConnection.work`), measured in units of work (engine/work.py).
After a turn's worth of work the event loop serves the other connections. The remaining input waits, and the
socket is not read meanwhile. Clients that have not authenticated ("strangers") share one turn, so many of
them delay the others no more than a single one does. They may use all the time that the others leave: when
all clients reconnect after a restart, none waits for a timer. A stranger that has used much work pauses after
each slice. When it is disconnected: probation.py.

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

# How long a stranger that has used much work pauses after each slice. 400 frames a second remain.
STRANGER_PAUSE_S: Final = 0.02


class Worker(Protocol):
    """A connection, as `Turns` sees it."""

    @property
    def authenticated(self) -> bool: ...

    @property
    def slowed(self) -> bool:
        """Whether this stranger has used so much work that it must pause between slices."""
        ...

    @property
    def busy(self) -> bool:
        """Whether input waits to be handled."""
        ...

    def work(self, work_max: int) -> int:
        """Handle a slice of the input. Returns the units of work."""
        ...

    def wait_for_turn(self, waits: bool) -> None:
        """Input waits for a turn, so stop reading the socket; or none waits any more."""
        ...


class Turns:
    """Every connection of a gateway takes its turns here."""

    def __init__(self) -> None:
        self._strangers: deque[Worker] = deque()
        self._strangers_work_left = STRANGERS_TURN_WORK
        self._next_turn: asyncio.Handle | None = None

    def take(self, worker: Worker) -> None:
        """New input, and none was waiting: handle one turn's worth now, and the rest later."""
        if worker.authenticated:
            self._serve(worker)
        else:
            self._strangers.append(worker)
            self._serve_strangers()

    def _serve(self, worker: Worker) -> None:
        left = TURN_WORK - worker.work(SLICE_WORK)
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
