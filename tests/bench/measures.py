"""What every section measures, and in which units: a line of the load generator, CPU seconds."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["PER_MESSAGES", "Measured"]

# CPU seconds are given for this many messages.
PER_MESSAGES = 100_000


class Measured(TypedDict, total=False):
    """One line of the generator: counts, seconds, messages a second, milliseconds.

    `rate` counts messages, however many subscriptions each went to; `delivery_rate` counts deliveries.
    """

    mode: str
    window: int
    body_bytes: int
    accepted: int
    received: int
    send_seconds: float
    receive_seconds: float
    seconds: float
    rate: float
    delivery_rate: float
    sessions_taken: int
    ack_p50_ms: float
    ack_p99_ms: float
    end_to_end_p50_ms: float
    end_to_end_p99_ms: float
    transaction_p50_ms: float
    transaction_p99_ms: float
    client_cpu_s: float
    missing: int
    duplicates: int
    foreign: int
    errors: list[str]
