"""The stored form of a message, and its conversion from and to AMQP.

    stored        how a payload is stored
    front         the part of it that is made of header and annotations
    admission     from a transfer to a message that can be enqueued
    delivery      from a stored message to one with the broker's header and annotations
    transfer      from one entity to another by forwarding, or to another partition

What rules and selectors see of a message, and how actions change it: contents.py.
"""

from __future__ import annotations

from bendybus.amqp.message import BATCH_FORMAT
from bendybus.envelope.admission import (
    admit,
    admit_all,
    admit_batch,
    admit_enlisted,
    admit_together,
    batched,
)
from bendybus.envelope.delivery import Rendered, render, render_browsed, render_locked, render_peeked
from bendybus.envelope.stored import Stored, amended, bare_start, body_start
from bendybus.envelope.transfer import readmit, relocate

__all__ = [
    "BATCH_FORMAT",
    "Rendered",
    "Stored",
    "admit",
    "admit_all",
    "admit_batch",
    "admit_enlisted",
    "admit_together",
    "amended",
    "bare_start",
    "batched",
    "body_start",
    "readmit",
    "relocate",
    "render",
    "render_browsed",
    "render_locked",
    "render_peeked",
]
