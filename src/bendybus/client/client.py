"""The client: one connection at a time, opened when it is needed and replaced when it was lost.

Only this module retries: `retry` runs an operation again after a transient failure. Senders, receivers and
management nodes attach to the current connection.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from bendybus.client.cbs import ChannelTokens
from bendybus.client.channel import Channel
from bendybus.client.management import Management
from bendybus.client.receiver import Receiver
from bendybus.client.sender import Sender
from bendybus.client.settings import ClientSettings
from bendybus.errors import BrokerError

__all__ = ["BusClient"]

T = TypeVar("T")

RETRY_DELAY_MAX_S: Final = 10.0


class BusClient:
    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._channel: Channel | None = None
        self._claims: ChannelTokens | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # -- what it hands out -------------------------------------------------------------

    def sender(self, entity: str | None = None) -> Sender:
        return Sender(self, self.settings.named_entity(entity))

    def receiver(
        self,
        entity: str | None = None,
        *,
        deletes: bool = False,
        filters: Mapping[str, object] | None = None,
    ) -> Receiver:
        """`deletes`: receive and delete, else peek-lock. `filters` of the source, such as a session's."""
        return Receiver(self, self.settings.named_entity(entity), deletes=deletes, filters=filters)

    def management(self, entity: str | None = None) -> Management:
        return Management(self, self.settings.named_entity(entity))

    # -- for those -----------------------------------------------------------------------

    def channel(self, entity: str) -> Channel:
        """An open connection on which `entity` may be used."""
        channel = self._channel
        if channel is None or channel.failure is not None:
            if channel is not None:
                channel.drop()
            self._channel = channel = Channel(self.settings)
            self._claims = ChannelTokens(channel)
        assert self._claims is not None
        self._claims.require(entity)
        return channel

    def retry(self, operation: Callable[[], T]) -> T:
        """Run an operation, and again after a transient failure, with growing pauses."""
        for failures in range(self.settings.retries):
            try:
                return operation()
            except BrokerError as error:
                if not error.retryable:
                    raise
            self.pause(failures)
        return operation()

    def pause(self, failures: int) -> None:
        delay_s = min(self.settings.retry_delay_s * 2**failures, RETRY_DELAY_MAX_S)
        # When a server restarts, its clients should not all reconnect at the same moment.
        time.sleep(delay_s * random.uniform(0.8, 1.2))
