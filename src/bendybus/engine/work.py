"""Units of work: what it costs to read a frame.

`Connection.work` counts them, and `receive_data` stops after as many as its caller allows.
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
