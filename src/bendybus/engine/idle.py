"""Idle timeouts of both sides: when we must send something, and when we stop waiting for the peer.

"Each peer has its own (independent) idle timeout" [AMQP 2.4.5]. Ours is in
`ConnectionConfig.idle_timeout_s`; the peer's arrives with its open. The driver provides
the clock.
"""

from __future__ import annotations

from typing import Final

__all__ = ["IdleTimer"]

# Heartbeats are never sent more often than this, whatever the peer asks for.
HEARTBEAT_INTERVAL_MIN_S: Final = 0.1


class IdleTimer:
    __slots__ = ("_heard_at", "_heartbeat_interval_s", "_now", "_spoke_at", "silence_max_s")

    def __init__(self, idle_timeout_s: float | None) -> None:
        # "the value in idle-time-out SHOULD be half the peer's actual timeout threshold" [AMQP 2.4.5]
        self.silence_max_s = None if idle_timeout_s is None else 2 * idle_timeout_s
        self._heartbeat_interval_s: float | None = None
        self._now = 0.0
        self._heard_at: float | None = None
        self._spoke_at = 0.0

    def heard(self, now: float) -> None:
        self._now = self._heard_at = now

    def spoke(self) -> None:
        """Something was written, at the last `now` or later."""
        self._spoke_at = self._now

    def peer_asks(self, idle_time_out_ms: int | None) -> None:
        """Takes the peer's timeout. We send at half of it, to allow for a slow network."""
        if idle_time_out_ms:
            self._heartbeat_interval_s = max(idle_time_out_ms / 2000, HEARTBEAT_INTERVAL_MIN_S)

    def next_deadline(self) -> float | None:
        deadlines = []
        if self._heartbeat_interval_s is not None:
            deadlines.append(self._spoke_at + self._heartbeat_interval_s)
        if self.silence_max_s is not None and self._heard_at is not None:
            deadlines.append(self._heard_at + self.silence_max_s)
        return min(deadlines, default=None)

    def tick(self, now: float) -> tuple[bool, bool]:
        """Whether the peer has been silent too long, and whether a heartbeat is due."""
        self._now = now
        if self._heard_at is None:
            self._heard_at = now  # a peer that has sent nothing is timed from the first tick
        silent = self.silence_max_s is not None and now - self._heard_at >= self.silence_max_s
        interval = self._heartbeat_interval_s
        due = interval is not None and now - self._spoke_at >= interval
        if due:
            self._spoke_at = now
        return silent, due
