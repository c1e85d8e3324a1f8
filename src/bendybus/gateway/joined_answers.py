"""Answers to one socket read that are sent together, if they are ready soon after each other.

The messages of a read may be for many partitions, in several stores and at several brokers, and each commit
answers some of them. If such answers were sent at once, they would name ids with gaps, and each would need a
frame. A client that keeps its window full sends as many messages as were accepted. So its next reads would be
smaller, and their messages would still be spread over as many partitions. An answer does not wait for a slow
store (P-27): the answers that are ready are sent after a short time. A busy broker waits for a few turns of
its event loop, because the other brokers may be as busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["TURNS", "TURN_S", "JoinedAnswers"]

# Together longer than the usual difference between the commits of two stores, and too short to be noticed. A
# message to another broker and its answer take four turns if both brokers are busy.
TURNS: Final = 4
TURN_S: Final = 0.005


class JoinedAnswers:
    __slots__ = ("_ready", "_timer", "_turns_left", "_unready")

    def __init__(self, count: int) -> None:
        """`count`: how many calls of `ready` there will be."""
        self._unready = count
        self._ready: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turns_left = 0

    def ready(self, answer: Callable[[], None]) -> None:
        """Call this together with the others."""
        self._ready.append(answer)
        self._unready -= 1
        if not self._unready:
            self._send()
        elif self._timer is None:
            self._turns_left = TURNS
            self._wait()

    def _wait(self) -> None:
        """Wait for a turn of the loop, which takes `TURN_S` or longer."""
        if self._turns_left:
            self._turns_left -= 1
            self._timer = asyncio.get_running_loop().call_later(TURN_S, self._wait)
        else:
            self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready, self._ready = self._ready, []
        for answer in ready:
            answer()
