"""What a waiting message costs: resident memory idle and with a long backlog, and the disk under it.

Each queue gets a broker started fresh, alone on the machine. Rates and CPU: cases.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from cases import Target
from load import load

__all__ = ["Footprint", "measure_memory"]

# Time for start-up and for the last writes to come to rest before memory is read.
REST_S = 5
WINDOW = 500

# A broker slower than this a second, after a first minute, counts as stuck.
SLOWEST_RATE = 1_000
TIMEOUT_MIN_S = 60


@dataclass(slots=True, frozen=True)
class Footprint:
    label: str
    broker: str
    partitions: int
    waiting: int
    idle_bytes: int
    loaded_bytes: int
    disk_bytes: int
    send_rate: float

    @property
    def bytes_per_waiting_message(self) -> float:
        return (self.loaded_bytes - self.idle_bytes) / self.waiting


def measure_memory(target: Target, waiting: int, body_bytes: int) -> Footprint:
    """Fills the queue of a fresh broker with `waiting` messages; reads its memory before and after."""
    broker = target.broker
    time.sleep(REST_S)
    idle_bytes = broker.resident_bytes()
    timeout_s = TIMEOUT_MIN_S + waiting / SLOWEST_RATE
    sent = load(broker.endpoint, target.address, "send", waiting, WINDOW, body_bytes, timeout_s)
    time.sleep(REST_S)
    return Footprint(
        target.label,
        broker.name,
        target.partitions,
        waiting,
        idle_bytes,
        broker.resident_bytes(),
        broker.disk_bytes(),
        sent["rate"],
    )
