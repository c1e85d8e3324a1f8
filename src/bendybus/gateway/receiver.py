"""A client's receiving link: fan-in over an entity's partitions.

The link asks every partition for as many messages as it has credit for. A partition whose
payloads are in memory answers at once. A partition that must read them from its store
answers later; if other partitions have used up the credit by then, its messages are *kept*
for the link's next credit (P-25). A slow store delays only its own messages (P-27). A
receive-and-delete link does the same, and removes only as many messages as it has credit
for; a partition whose store may be slow to remove is treated like one that must read.

Kept messages are released, uncounted, when the link closes (P-28). Messages that were sent
stay locked until they are settled or their lock expires, as on Azure. Settlement:
dispositions.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Final

from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Complete, Reply, Settled
from bendybus.domain.messages import Message, SubQueue
from bendybus.envelope import render, render_locked
from bendybus.errors import BrokerError
from bendybus.gateway.dispositions import Dispositions
from bendybus.gateway.link_ports import OutboundLink
from bendybus.names import Instant, LockToken

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["PAGE_BYTES_MAX", "PAGE_MAX", "Receiver", "payloads_in_memory", "tokens_of"]

# Messages in one read from a store: enough to make the read worthwhile, and not too many locks at once.
PAGE_MAX: Final = 256
# Every partition may be reading a page for every link, so a page of large messages is short.
PAGE_BYTES_MAX: Final = 1024 * 1024

# What is being read for one link. If the client has stopped reading when it arrives, all of it is kept.
READING_BYTES_MAX: Final = 2 * 1024 * 1024

# Messages that are kept for a link without credit are released after half of their lock time, uncounted.
# If their locks expired, that would count as a failed delivery.
KEEP_FRACTION: Final = 0.5


@dataclass(slots=True)
class _Page:
    """Locked messages of one partition that wait here for credit.

    The partition tells by the tokens whether they are still locked.
    """

    host: ReceivingPort
    messages: list[Message]
    tokens: list[LockToken]
    payloads: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.payloads))

    def cut(self, start: int, stop: int | None) -> _Page:
        part = slice(start, stop)
        return _Page(self.host, self.messages[part], self.tokens[part], self.payloads[part])

    def only(self, is_wanted: Sequence[bool]) -> _Page:
        """Some of the messages."""
        return _Page(
            self.host,
            list(compress(self.messages, is_wanted)),
            list(compress(self.tokens, is_wanted)),
            list(compress(self.payloads, is_wanted)),
        )


class Receiver:
    """`Waiter` of its queue; the application side of one `SendingLink`."""

    def __init__(
        self, connection: AmqpConnection, link: OutboundLink, queue: Queue, subqueue: SubQueue
    ) -> None:
        self._connection = connection
        self._link = link
        self._queue = queue
        self.subqueue = subqueue
        self._deletes = link.snd_settle_mode == 1
        self._kept: deque[_Page] = deque()
        self._reading: set[ReceivingPort] = set()
        self._page_bytes: dict[ReceivingPort, int] = {}
        self._reading_bytes = 0
        self._expected = 0
        """Messages whose removal is under way, on a receive-and-delete link."""
        self._taking = False
        self._crowded = False
        """Whether the link cannot send only because too much is unsettled: no flow will announce room."""
        self._closed = False
        self._dispositions = Dispositions(connection, link, queue, self._go_on)
        # Called for every disposition, so it is called directly and not through a method of this class.
        self.outcomes = self._dispositions.outcomes

    # -- delivering ---------------------------------------------------------------

    def flow(self) -> None:
        """The client's credit changed."""
        if self._link.credit > 0:
            self.take()
        else:
            self._stop_waiting()
        self._answer_drain()

    def wake(self) -> None:
        self._deliver()

    def _deliver(self) -> None:
        self.take()
        self._answer_drain()
        self._connection.flush_soon()

    def take(self) -> None:
        """Deliver what is available within the credit; wait for more if credit is left."""
        if self._taking or self._closed:
            return
        self._taking = True
        try:
            if self._kept:
                self._deliver_kept()
            while (wanted := self._wanted()) > 0 and self._ask_all(wanted):
                pass
        finally:
            self._taking = False
        self._crowded = self._link.crowded
        if (wanted := self._wanted()) > 0:
            self._wait(wanted)

    def _wanted(self) -> int:
        return self._link.credit - self._expected if self._connection.writable else 0

    def _ask_all(self, wanted: int) -> bool:
        """Ask each partition for a page. Returns whether one answered at once and may have more.

        What is in memory is sent together: it may be a few messages from each of many partitions.
        """
        more = False
        ready: list[Message] = []
        payloads: list[bytes] = []
        size = 0
        for host in self._partitions():
            if wanted <= 0 or size >= PAGE_BYTES_MAX:
                break
            if host in self._reading or self._reads_enough(host):
                continue
            messages = self._lock(host, min(wanted, PAGE_MAX))
            if not messages:
                continue
            known = payloads_in_memory(host, messages)
            if len(known) < len(messages) or self._deletes:
                self._fetch(host, messages, known)
                wanted = self._wanted() - len(ready)
            else:
                ready += messages
                payloads += known
                size += sum(map(len, known))
                wanted -= len(messages)
            more |= self._may_ask_again(host)
        if ready:
            self._send(ready, payloads)
        return more or size >= PAGE_BYTES_MAX

    def _may_ask_again(self, host: ReceivingPort) -> bool:
        """Whether a partition that has just given messages has more at once."""
        return host not in self._reading and self._has_more(host)

    def _reads_enough(self, host: ReceivingPort) -> bool:
        """Whether enough is being read for the link, so that the next page of this store can wait.

        Pages of other stores do not wait, because those may be faster (P-27). All partitions are asked again
        after each page.
        """
        if self._reading_bytes < READING_BYTES_MAX:
            return False
        return any(reading.store is host.store for reading in self._reading)

    def _reads(self, host: ReceivingPort, messages: Sequence[Message]) -> None:
        size = sum([message.size for message in messages])
        self._page_bytes[host] = size
        self._reading_bytes += size
        self._connection.holdings.keep(size)

    def _has_read(self, host: ReceivingPort) -> None:
        size = self._page_bytes.pop(host)
        self._reading_bytes -= size
        self._connection.holdings.keep(-size)

    def _fetch(self, host: ReceivingPort, messages: list[Message], payloads: list[bytes]) -> None:
        """Read locked messages, or remove them. They are sent when that is done.

        `payloads`: those that are in memory.
        """
        if len(payloads) == len(messages) and host.removes_promptly:
            self._remove(host, messages, tokens_of(messages), payloads)
        else:
            self._reading.add(host)
            self._reads(host, messages)
            read = host.read_to_remove if self._deletes else host.read
            read(messages, partial(self._page_read, host, messages, tokens_of(messages)))

    def _page_read(
        self,
        host: ReceivingPort,
        messages: list[Message],
        tokens: list[LockToken],
        payloads: list[bytes | None] | BrokerError,
    ) -> None:
        self._reading.discard(host)
        self._has_read(host)
        if self._closed or isinstance(payloads, BrokerError):
            self._give_back(host, tokens)
            return
        found = [payload for payload in payloads if payload is not None]
        if len(found) < len(payloads):
            exists = [payload is not None for payload in payloads]
            messages, tokens = list(compress(messages, exists)), list(compress(tokens, exists))
        if found:
            page = _Page(host, messages, tokens, found)
            self._kept.append(page)
            self._connection.holdings.keep(page.size)
        self._deliver()

    def _give_back(self, host: ReceivingPort, tokens: list[LockToken]) -> None:
        """These messages cannot be read now, or are no longer wanted."""
        if not self._closed:
            # Before the release: we may lock them again at once, and the drain would then wait for that read.
            self._answer_drain()
        host.release(tokens)
        if not self._closed:
            self._deliver()

    def _deliver_kept(self) -> None:
        messages: list[Message] = []
        payloads: list[bytes] = []
        at = self._queue.now()
        for kept in self._unkeep(self._wanted()):
            held = kept.host.held_among(kept.tokens, at)
            page = (
                kept if len(held) == len(kept.tokens) else kept.only([each in held for each in kept.tokens])
            )
            if self._deletes and page.messages:
                self._remove(page.host, page.messages, page.tokens, page.payloads)
            else:
                messages += page.messages
                payloads += page.payloads
        if messages:
            self._send(messages, payloads)

    def _send(self, messages: Sequence[Message], payloads: Sequence[bytes]) -> None:
        if (observer := self._connection.observer) is not None:
            observer.delivering(self._queue.path, messages, payloads)
        deletes = self._deletes
        self._link.send(
            [
                # Without a lock there is no token for a tag. SDKs know such messages by that.
                (b"", *render(message, payload, locked=False))
                for message, payload in zip(messages, payloads, strict=True)
            ]
            if deletes
            else render_locked(messages, payloads),
            settled=deletes,
            # Removed messages must be sent even if the client has taken its credit back in the meantime.
            overrun=deletes,
        )
        self._connection.sent(sum(map(len, payloads)))

    def _remove(
        self,
        host: ReceivingPort,
        messages: Sequence[Message],
        tokens: Sequence[LockToken],
        payloads: Sequence[bytes],
    ) -> None:
        """Remove, then send: a message is sent only when its removal is durable."""
        if self._queue.description.keep_completed_s:
            # The partition keeps the message itself, and may put it back before it is sent.
            messages = list(map(copy, messages))
        self._expected += len(messages)

        def removed(reply: Reply | BrokerError) -> None:
            self._expected -= len(messages)
            if isinstance(reply, Settled) and not self._closed:
                lost = set(reply.lost)
                gone = [
                    (message, payload)
                    for message, token, payload in zip(messages, tokens, payloads, strict=True)
                    if token not in lost
                ]
                self._send([message for message, _ in gone], [payload for _, payload in gone])
            self._deliver()

        host.submit(Complete(tokens), removed)

    def _answer_drain(self) -> None:
        """Answer a drain once every partition has been asked and has answered, or no credit is left."""
        under_way = self._reading or self._expected
        is_full = self._link.credit <= 0 and not self._link.crowded
        is_done = not under_way and (is_full or not self._loading())
        if self._link.drain and is_done and self._connection.writable:
            self._stop_waiting()
            self._link.drained()

    # -- the source of messages; session_receiver.py and selective_receiver.py have their own -----

    def _partitions(self) -> Iterable[ReceivingPort]:
        return self._queue.stocked(self.subqueue)

    def _lock(self, host: ReceivingPort, count: int) -> list[Message]:
        return host.lock(count, PAGE_BYTES_MAX, self.subqueue)

    def _has_more(self, host: ReceivingPort) -> bool:
        return host.available(self.subqueue) > 0

    def _wait(self, wanted: int) -> None:
        self._queue.wait(self, self.subqueue, wanted)

    def _stop_waiting(self) -> None:
        self._queue.stop_waiting(self, self.subqueue)

    def _loading(self) -> bool:
        return self._queue.is_unknown(self.subqueue)

    def _go_on(self) -> None:
        """Messages were settled: if that made room, deliver more."""
        if self._crowded and not self._link.crowded:
            self._deliver()

    # -- the end ------------------------------------------------------------------

    def tick(self, at: Instant) -> None:
        """Release what has been kept too long; deliver more if another link has made room."""
        self._go_on()
        limit = at + self._queue.description.lock_duration_s * 1000 * KEEP_FRACTION
        while self._kept and self._kept[0].messages[0].locked_until < limit:
            for page in self._unkeep(len(self._kept[0].messages)):
                page.host.release(page.tokens)

    def close(self) -> None:
        """The link is gone: release what was never sent."""
        self._closed = True
        self._dispositions.close()
        self._stop_waiting()
        for page in self._unkeep():
            page.host.release(page.tokens)

    def _unkeep(self, count: int | None = None) -> list[_Page]:
        """Take out the first `count` messages that are kept, or all of them."""
        kept: list[_Page] = []
        while self._kept and (count is None or count > 0):
            page = self._kept.popleft()
            if count is not None:
                if len(page.messages) > count:
                    self._kept.appendleft(page.cut(count, None))
                    page = page.cut(0, count)
                count -= len(page.messages)
            kept.append(page)
        self._connection.holdings.keep(-sum([page.size for page in kept]))
        return kept


def payloads_in_memory(host: ReceivingPort, messages: Sequence[Message]) -> list[bytes]:
    """The payloads of these messages that need not be read, in their order. The messages were just locked."""
    known = [message.payload for message in messages if message.payload is not None]
    if len(known) < len(messages):
        return host.at_hand(messages) or known
    return known


def tokens_of(messages: Sequence[Message]) -> list[LockToken]:
    """The tokens of messages that were just locked."""
    return [message.lock_token for message in messages if message.lock_token is not None]
