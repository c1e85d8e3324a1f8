"""What it costs to read a frame: units of work, and the memory of its values.

`Connection.work` counts the units, and `receive_data` stops after as many as its caller allows.
Work is counted and not timed, so a simulation repeats exactly.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BYTES_PER_WORK",
    "DELIVERIES_PER_WORK",
    "FRAME_WORK",
    "OUTCOMES_PER_WORK",
    "PERFORMATIVE_WORK",
    "WORK_UNLIMITED",
    "value_memory",
]

# Transfers and dispositions come by the thousand and are joined into batches. Every other frame is decoded
# into an object and answered, which takes about 16 times as long.
FRAME_WORK: Final = 1
PERFORMATIVE_WORK: Final = 16

# Frames and requests of the usual size take the same time, whatever is in them. A large one is decoded value
# by value: this many bytes, which may be as many values, take about as long as a unit of work.
BYTES_PER_WORK: Final = 64

# Unsettled deliveries of a session that are looked through in a unit of work, when one of its links ends or
# for the range of a disposition. Each delivery in the range takes longer, because it is settled then.
DELIVERIES_PER_WORK: Final = 256
OUTCOMES_PER_WORK: Final = 8

# More than any call has to do.
WORK_UNLIMITED: Final = 1 << 62

# An empty list takes one byte in a frame and this many in memory. Frames of the usual size have few values.
VALUE_MEMORY: Final = 64
FRAME_BYTES_USUAL: Final = 4096


def value_memory(frame_bytes: int) -> int:
    """The memory that the values of a performative of this size may take; 0 for one of the usual size."""
    return max(0, frame_bytes - FRAME_BYTES_USUAL) * VALUE_MEMORY
