"""What one side of a connection offers and accepts: every limit of the engine.

Passed to `Connection.server` and `Connection.client`, and never changed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bendybus.amqp.performatives import Open

__all__ = ["FRAME_SIZE_MIN", "ConnectionConfig"]

# "MIN-MAX-FRAME-SIZE: 512" [AMQP 2.8.19]: a smaller max-frame-size is invalid.
FRAME_SIZE_MIN: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Defaults suit a server; a client names its `sasl_mechanism`."""

    container_id: str
    hostname: str | None = None
    properties: Mapping[str, object] | None = None
    offered_capabilities: tuple[str, ...] = ()

    # The largest frame that we accept, and the largest that we write even if the peer accepts more.
    max_frame_size: int = 262_144
    # Numbers count from 0, so this is 5000 sessions with 256 links each at the most ...
    channel_max: int = 4_999
    handle_max: int = 255
    # ... and no more links than this on the whole connection.
    links_max: int = 5_000
    # The incoming window of a session, in transfer frames. It is renewed when half of it is used.
    incoming_window: int = 5_000
    # Unsettled deliveries that a session keeps after sending them; beyond that, credit is not used.
    unsettled_max: int = 65_536
    # For links whose application sets no limit.
    max_message_size: int = 1_048_576

    # Bytes of all incomplete deliveries of the connection together, unless one alone may have more. .NET
    # sends the messages of all senders over one connection, frame by frame in turns: this is 256 of 256 KB.
    incomplete_bytes_max: int = 64 * 1_048_576

    # The peer must send something at least this often. We wait twice as long, because
    # "the value in idle-time-out SHOULD be half the peer's actual timeout threshold" [AMQP 2.4.5].
    idle_timeout_s: float | None = None

    # Server: what is offered, and whether AMQP may start without SASL.
    sasl_mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    require_sasl: bool = True
    # Client: what is chosen (None: no SASL at all) and its initial response.
    sasl_mechanism: str | None = "ANONYMOUS"
    sasl_response: bytes = b""

    # The first delivery-id and transfer-id. They are serial numbers, so any value will do.
    first_outgoing_id: int = 0

    def opening(self) -> Open:
        """The open that tells the peer."""
        return Open(
            container_id=self.container_id,
            hostname=self.hostname,
            max_frame_size=self.max_frame_size,
            channel_max=self.channel_max,
            idle_time_out=None if self.idle_timeout_s is None else round(self.idle_timeout_s * 1000),
            offered_capabilities=list(self.offered_capabilities) or None,
            properties=None if self.properties is None else dict(self.properties),
        )
