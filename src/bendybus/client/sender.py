"""Sending: packs messages into batches, sends several at a time, and waits for every outcome.

`post` fills a window and `flush` empties it. A batch is sent again if it was refused for a transient reason,
or if the connection was lost before its outcome arrived. So a message may arrive twice, but it does arrive.
Batches with the same key keep their order even then: the next one is sent when the one before is accepted.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from bendybus.amqp.message import BATCH_FORMAT
from bendybus.amqp.performatives import (
    RCV_FIRST,
    SENDER,
    SND_UNSETTLED,
    Accepted,
    DeliveryState,
    Source,
    Target,
)
from bendybus.client.channel import Channel, ended
from bendybus.client.refusals import refusal_in
from bendybus.engine.events import Event, LinkDetached, OutcomesReceived
from bendybus.engine.sending import SendingLink
from bendybus.errors import BrokerError, MessageSizeExceeded, RequestError
from bendybus.session_ids import fold_case

if TYPE_CHECKING:
    from bendybus.client.client import BusClient

__all__ = ["Sender"]

Accepts: TypeAlias = Callable[[int, int], None]
"""Told of messages that were accepted: the place of the first in its call, and how many."""

# Enough to keep the server's next commit filled while it writes the last one.
WINDOW_BYTES: Final = 4 * 1024 * 1024
WINDOW_BATCHES: Final = 500

# Service Bus takes at most 4500 messages in one batch, and no large batch where it takes large messages.
BATCH_COUNT_MAX: Final = 4000
BATCH_BYTES_MAX: Final = 1024 * 1024

# Where a link names no limit: what the Standard tier has.
SIZE_MAX_DEFAULT: Final = 256 * 1024

# A data section with a binary of 32-bit length in front of each message of a batch.
SECTION_BYTES: Final = 8


@dataclass(slots=True)
class _Batch:
    """One transfer: a single message, or several in one envelope."""

    payload: bytes = field(repr=False)
    message_format: int
    count: int
    key: str | None
    first: int = 0
    """The index of its first message in the call that posted it."""
    accepts: Accepts | None = None


class Sender:
    """Made by `BusClient.sender`. Its link is attached by the first message."""

    def __init__(self, client: BusClient, entity: str) -> None:
        self.entity = entity
        self.sent = 0
        """Messages accepted so far."""
        self._client = client
        self._link: SendingLink | None = None
        self._channel: Channel | None = None
        self._gone: BrokerError | None = None
        self._tags = itertools.count(1)
        self._queue: deque[_Batch] = deque()
        self._under_way: dict[bytes, _Batch] = {}
        self._under_way_bytes = 0
        self._keys: set[str] = set()
        self._failures = 0
        """Passing failures since a batch was last accepted."""
        self._refusal: BrokerError | None = None

    def send(self, messages: Iterable[bytes], key: str | None = None) -> None:
        """Send encoded messages and return when all are accepted; raises the first refusal."""
        self.post(messages, key)
        self.flush()

    def post(self, messages: Iterable[bytes], key: str | None = None, accepts: Accepts | None = None) -> None:
        """Send without waiting for the outcomes, but for room in the window.

        Messages of one call go into common batches: on a partitioned entity they must share one routing key.
        Name it as `key` to keep calls with equal keys in order. After an error, the outcome of messages that
        were not flushed is unknown, unless `accepts` was called for them: it gets the index of the first
        accepted message and the number of accepted messages.
        """
        size_max = self._client.retry(self._size_max)
        for batch in _packed(messages, size_max, key, self.entity):
            batch.accepts = accepts
            self._queue.append(batch)
            while self._queue:
                self._progress()

    def flush(self) -> None:
        """Wait until everything posted is accepted; raises the first refusal."""
        while self._under_way or self._queue:
            self._progress()

    def check(self) -> None:
        """Attach now, to find out whether sending is allowed before there is a message."""
        self._client.retry(self._size_max)

    def close(self) -> None:
        if self._link is not None and self._gone is None:
            self._link.detach()
        self._link = None

    # -- the window ----------------------------------------------------------------------

    def _progress(self) -> None:
        """Send the next batch, or wait for an outcome if there is no room for it."""
        try:
            channel, link = self._attached()
            if self._queue and self._has_room(self._queue[0]):
                self._post(channel, link)
            else:
                waiting = len(self._under_way)
                channel.wait(
                    lambda: len(self._under_way) < waiting or self._gone is not None,
                    f"sending to '{self.entity}'",
                )
            if self._gone is not None:
                raise self._gone
        except BrokerError as error:
            self._take_back()
            self._failed(error)
        if self._refusal is not None:
            refused, self._refusal = self._refusal, None
            self._failed(refused)

    def _has_room(self, batch: _Batch) -> bool:
        if batch.key is not None and batch.key in self._keys:
            return False
        return not self._under_way or (
            len(self._under_way) < WINDOW_BATCHES
            and self._under_way_bytes + len(batch.payload) <= WINDOW_BYTES
        )

    def _take_back(self) -> None:
        """The link has ended with outcomes open: their batches are sent again, in order."""
        if self._link is not None and self._gone is None:
            self._link.detach()
        self._link = None
        self._queue.extendleft(reversed(self._under_way.values()))
        self._under_way.clear()
        self._keys.clear()
        self._under_way_bytes = 0

    def _failed(self, error: BrokerError) -> None:
        """Pause before the caller retries; raise the error if a retry is useless."""
        self._failures += 1
        if not error.retryable or self._failures > self._client.settings.retries:
            self._take_back()
            self._queue.clear()
            raise error
        self._client.pause(self._failures - 1)

    # -- the link ------------------------------------------------------------------------

    def _post(self, channel: Channel, link: SendingLink) -> None:
        channel.wait(lambda: link.credit > 0 or self._gone is not None, f"credit to send to '{self.entity}'")
        if self._gone is not None:
            raise self._gone
        batch = self._queue.popleft()
        tag = next(self._tags).to_bytes(8, "big")
        self._under_way[tag] = batch
        self._under_way_bytes += len(batch.payload)
        if batch.key is not None:
            self._keys.add(batch.key)
        link.send([(tag, b"", batch.payload)], settled=False, message_format=batch.message_format)
        channel.serve(0)

    def _size_max(self) -> int:
        return self._attached()[1].max_message_size or SIZE_MAX_DEFAULT

    def _attached(self) -> tuple[Channel, SendingLink]:
        channel = self._client.channel(self.entity)
        if self._link is None or channel is not self._channel or self._gone is not None:
            self._take_back()
            self._gone = None
            self._channel = channel
            link = channel.begin().attach(
                channel.new_name(f"to-{self.entity}"),
                SENDER,
                source=Source(address="bendybus-client"),
                target=Target(address=self.entity),
                snd_settle_mode=SND_UNSETTLED,
                rcv_settle_mode=RCV_FIRST,
            )
            self._link = cast(SendingLink, link)
            channel.attached(link, self, f"attaching to '{self.entity}'")
            if self._gone is not None:
                raise self._gone
        return channel, self._link

    def heard(self, event: Event) -> None:
        match event:
            case OutcomesReceived(deliveries=sent, state=state, settled=settled):
                for delivery in sent:
                    self._settled(delivery.tag, state)
                if not settled:
                    event.link.settle(sent, state)
            case LinkDetached(link=link, error=error) if link is self._link:
                self._gone = ended(link, error, f"the link to '{self.entity}'")

    def _settled(self, tag: bytes, state: DeliveryState | None) -> None:
        batch = self._under_way.pop(tag, None)
        if batch is None:
            return
        self._under_way_bytes -= len(batch.payload)
        if batch.key is not None:
            self._keys.discard(batch.key)
        if isinstance(state, Accepted):
            self.sent += batch.count
            self._failures = 0
            if batch.accepts is not None:
                batch.accepts(batch.first, batch.count)
            return
        error = refusal_in(state, f"a message to '{self.entity}'")
        if error is None:
            error = RequestError(f"A message to '{self.entity}' was not accepted: {state}.")
        if error.retryable:
            self._queue.appendleft(batch)
        if self._refusal is None or not error.retryable:
            self._refusal = error


def _packed(messages: Iterable[bytes], size_max: int, key: str | None, entity: str) -> Iterator[_Batch]:
    """Messages in their order, as few transfers as the link's size allows."""
    batch_max = min(size_max, BATCH_BYTES_MAX)
    waiting: list[bytes] = []
    size = 0
    for place, message in enumerate(messages):
        if len(message) > size_max:
            raise MessageSizeExceeded(
                f"A message to '{entity}' has {len(message)} bytes; at most {size_max} are allowed."
            )
        needed = len(message) + SECTION_BYTES
        if waiting and (size + needed > batch_max or len(waiting) >= BATCH_COUNT_MAX):
            yield _batch(waiting, key, place - len(waiting))
            waiting, size = [], 0
        waiting.append(message)
        size += needed
    if waiting:
        yield _batch(waiting, key, place + 1 - len(waiting))


def _batch(messages: Sequence[bytes], key: str | None, first: int) -> _Batch:
    key = None if key is None else fold_case(key)
    if len(messages) == 1:
        return _Batch(messages[0], 0, 1, key, first)
    pieces: list[bytes] = []
    for message in messages:
        pieces += (b"\x00\x53\x75\xb0", len(message).to_bytes(4, "big"), message)
    return _Batch(b"".join(pieces), BATCH_FORMAT, len(messages), key, first)
