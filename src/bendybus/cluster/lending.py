"""Messages here for receivers of another broker: the owner's side of a demand.

A borrower represents the receivers of one queue at one other broker. It gets the messages that receivers here
do not want, locks as many as the other side has asked for, and sends them with their payloads. They stay
locked until they are settled or their locks expire, like messages that were sent to a client. Sessions are
lent in the same way, and are returned when the connection is lost. The other side: supply.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bendybus.broker.host import ignore
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.broker.scans import Scan
from bendybus.broker.selection import Selection
from bendybus.cluster.items import Item, News, SelectiveSupply, SessionLost, SessionSupply, Supply
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import ReleaseSession, SessionAccepted, SessionLock
from bendybus.errors import BrokerError
from bendybus.names import LockToken

if TYPE_CHECKING:
    from msgspec import Raw

    from bendybus.cluster.link import PeerLink

__all__ = ["Borrower", "Lender", "LentSession"]

# As for a receiver here (gateway/receiver.py).
PAGE_MAX: Final = 256
PAGE_BYTES_MAX: Final = 1024 * 1024


class Borrower:
    """`Waiter` of its queue, for the receivers of another broker."""

    def __init__(self, link: PeerLink, queue: Queue, subqueue: SubQueue) -> None:
        self._link = link
        self._queue = queue
        self._subqueue = subqueue
        self._limit = 0
        self._given = 0
        self._answered = 0
        """The last limit at which the other side was told everything."""
        self._reading: set[PartitionHost] = set()
        self._next_to_ask = 0
        self._closed = False

    def demand(self, limit: int) -> None:
        """The other side's receivers may be given this many messages in total."""
        self._limit = limit
        self.wake()

    def wake(self) -> None:
        if self._closed:
            return
        while self._limit > self._given and self._lend_pages():
            pass
        if self._limit > self._given:
            self._queue.wait_to_borrow(self, self._subqueue)
        else:
            self._queue.stop_borrowing(self, self._subqueue)
        self._answer()

    def _lend_pages(self) -> bool:
        """Lend a page of each partition. Returns whether one may have more at once."""
        hosts = list(self._queue.own.values())
        first = self._next_to_ask % max(1, len(hosts))
        self._next_to_ask += 1
        more = False
        for host in (*hosts[first:], *hosts[:first]):
            wanted = min(self._limit - self._given, PAGE_MAX)
            if wanted <= 0:
                break
            if host in self._reading:
                continue
            messages = self._lock(host, wanted)
            if messages:
                self._lend(host, messages)
                more |= host not in self._reading and self._has_more(host)
        return more

    def _lock(self, host: PartitionHost, count: int) -> list[Message]:
        return host.lock(count, PAGE_BYTES_MAX, self._subqueue)

    def _has_more(self, host: PartitionHost) -> bool:
        return host.available(self._subqueue) > 0

    def _lend(self, host: PartitionHost, messages: list[Message]) -> None:
        self._given += len(messages)
        if all(message.payload is not None for message in messages):
            self._send(host, messages)
        else:
            self._reading.add(host)
            tokens = [message.lock_token for message in messages if message.lock_token is not None]
            host.read(messages, partial(self._page_read, host, messages, tokens))

    def _page_read(
        self,
        host: PartitionHost,
        messages: list[Message],
        tokens: list[LockToken],
        payloads: list[bytes | None] | BrokerError,
    ) -> None:
        self._reading.discard(host)
        if self._closed or isinstance(payloads, BrokerError):
            self._given -= len(messages)
            host.release(tokens)
        else:
            held = host.held_among(tokens, self._queue.now())
            lent = {
                message: payload
                for message, payload in zip(messages, payloads, strict=True)
                if payload is not None and message.lock_token in held
            }
            self._given -= len(messages) - len(lent)
            if lent:
                self._send(host, list(lent), list(lent.values()))
        self.wake()

    def _send(
        self, host: PartitionHost, messages: Sequence[Message], payloads: Sequence[bytes] | None = None
    ) -> None:
        body = self._link.writer.encoded_messages(messages, payloads)
        self._link.send(self._supply(self._answered, host.number, body))

    def _answer(self) -> None:
        """Say that there is no more now, once that is known."""
        if self._answered == self._limit or self._reading or self._queue.loading_here:
            return
        self._answered = self._limit
        self._link.send(self._supply(self._limit, -1, self._link.writer.encoded_messages(())))

    def _supply(self, limit: int, number: int, messages: Raw) -> Item:
        queue = self._queue
        return Supply(queue.path, queue.generation, self._subqueue, None, limit, number, messages)

    def close(self) -> None:
        self._closed = True
        self._queue.stop_borrowing(self, self._subqueue)


class SelectiveBorrower(Borrower):
    """`Waiter` of its queue, for one receiver of another broker. See gateway/selective_receiver.py."""

    def __init__(
        self, link: PeerLink, queue: Queue, subqueue: SubQueue, number: int, selection: Selection
    ) -> None:
        super().__init__(link, queue, subqueue)
        self._number = number
        self._selection = selection
        self._scans: dict[PartitionHost, Scan] = {}

    def wake(self) -> None:
        if self._closed:
            return
        own = set(self._queue.own.values())
        for host in self._scans.keys() - own:
            # Another broker owns it.
            self._scans.pop(host).close()
        super().wake()

    def _scan(self, host: PartitionHost) -> Scan:
        scan = self._scans.get(host)
        if scan is None:
            scan = self._scans[host] = host.scan(self._subqueue, self._selection, self.wake)
        return scan

    def _lock(self, host: PartitionHost, count: int) -> list[Message]:
        scan = self._scan(host)
        messages = scan.lock(count)
        if not messages and scan.is_behind:
            self._examine(host, scan)
            messages = scan.lock(count)
        if not messages:
            self._go_on_later(host)
        return messages

    def _has_more(self, host: PartitionHost) -> bool:
        self._go_on_later(host)
        return self._scan(host).has_found

    def _examine(self, host: PartitionHost, scan: Scan) -> None:
        is_at_once = True

        def examined(failure: BrokerError | None) -> None:
            self._reading.discard(host)
            if not is_at_once:
                if failure is not None:
                    # Before the wake, which reads again: a drain must not wait for a partition that is away.
                    self._answer()
                self.wake()

        self._reading.add(host)
        scan.examine(examined)
        is_at_once = False

    def _go_on_later(self, host: PartitionHost) -> None:
        """There may be more: continue in another turn of the event loop."""
        scan = self._scan(host)
        if host not in self._reading and not scan.has_found and scan.is_behind:
            self._reading.add(host)
            asyncio.get_running_loop().call_soon(partial(self._look_further, host))

    def _look_further(self, host: PartitionHost) -> None:
        self._reading.discard(host)
        self.wake()

    def _supply(self, limit: int, number: int, messages: Raw) -> Item:
        queue = self._queue
        return SelectiveSupply(queue.path, queue.generation, self._number, limit, number, messages)

    def close(self) -> None:
        super().close()
        for scan in self._scans.values():
            scan.close()
        self._scans.clear()


class SessionBorrower:
    """`Waiter` of its queue, for receivers of another broker that want the next free session."""

    def __init__(self, lender: Lender, queue: Queue, exclusive: bool) -> None:
        self._lender = lender
        self._queue = queue
        self._exclusive = exclusive
        self._limit = 0
        self._given = 0

    def demand(self, limit: int) -> None:
        self._limit = limit
        self.wake()
        if self._limit > self._given:
            self._send(-1, SessionAccepted(None))

    def wake(self) -> None:
        while self._limit > self._given and self._lend_one():
            pass
        if self._limit > self._given:
            self._queue.wait_to_borrow(self, SubQueue.MAIN)
        else:
            self._queue.stop_borrowing(self, SubQueue.MAIN)

    def _lend_one(self) -> bool:
        for host in self._queue.own.values():
            accepted = host.accept_next_session(exclusive=self._exclusive)
            if accepted is not None and accepted.lock is not None:
                self._given += 1
                self._lender.hold(host, self._queue, accepted.lock)
                self._send(host.number, accepted)
                return True
        return False

    def _send(self, number: int, accepted: SessionAccepted) -> None:
        queue, link = self._queue, self._lender.link
        body = link.writer.encoded(accepted)
        link.send(SessionSupply(queue.path, queue.generation, self._exclusive, self._limit, number, body))

    def close(self) -> None:
        self._limit = self._given
        self._queue.stop_borrowing(self, SubQueue.MAIN)


class Watcher:
    """`Waiter` of its queue, for readers of another broker that look at messages and take none."""

    def __init__(self, link: PeerLink, queue: Queue, subqueue: SubQueue) -> None:
        self._link = link
        self._queue = queue
        self._subqueue = subqueue

    def wake(self) -> None:
        self._link.send(News(self._queue.path, self._queue.generation, self._subqueue))

    def close(self) -> None:
        self._queue.stop_borrowing(self, self._subqueue)


class LentSession:
    """`SessionHolder` of a session that a receiver of another broker has."""

    def __init__(self, lender: Lender, host: PartitionHost, queue: Queue, lock: SessionLock) -> None:
        self._lender = lender
        self.host = host
        self._queue = queue
        self.lock = lock
        self._limit = 0
        self._given = 0
        self._answered = 0
        """The limit up to which the receiver knows what there is."""
        self._is_reading = False

    def demand(self, limit: int) -> None:
        self._limit = limit
        self.wake()
        self._answer()

    def wake(self) -> None:
        while self._limit > self._given and not self._is_reading:
            wanted = min(self._limit - self._given, PAGE_MAX)
            messages = self.host.lock_in_session(self.lock, wanted, PAGE_BYTES_MAX)
            if not messages:
                return
            self._given += len(messages)
            self._is_reading = True
            tokens = [message.lock_token for message in messages if message.lock_token is not None]
            self.host.read(messages, partial(self._page_read, messages, tokens))

    def _page_read(
        self,
        messages: list[Message],
        tokens: list[LockToken],
        payloads: list[bytes | None] | BrokerError,
    ) -> None:
        self._is_reading = False
        if isinstance(payloads, BrokerError) or None in payloads:
            # In order or not at all: what follows waits behind what cannot be read.
            self._given -= len(messages)
            self.host.release(tokens)
            self._answer()
            return
        self._send(messages, [each for each in payloads if each is not None])
        self.wake()
        self._answer()

    def _answer(self) -> None:
        """Say that there is no more now, once that is known: a drain may wait for it."""
        if self._answered < self._limit and not self._is_reading:
            self._answered = self._limit
            self._send((), ())

    def _send(self, messages: Sequence[Message], payloads: Sequence[bytes]) -> None:
        queue, link = self._queue, self._lender.link
        body = link.writer.encoded_messages(messages, payloads)
        number, token = self.host.number, self.lock.token
        link.send(Supply(queue.path, queue.generation, SubQueue.MAIN, token, self._answered, number, body))

    @property
    def broker(self) -> str:
        """The broker whose receiver has the session."""
        return self._lender.link.peer

    def pass_away(self) -> None:
        """Another broker owns the partition, and lends the session from now on."""
        self._lender.forget(self.lock)

    def lost(self) -> None:
        self._lender.forget(self.lock)
        queue = self._queue
        self._lender.link.send(SessionLost(queue.path, queue.generation, self.host.number, self.lock.token))


class Lender:
    """Everything that is lent over one connection."""

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self._borrowers: dict[tuple[Queue, SubQueue], Borrower] = {}
        self._selecting: dict[tuple[Queue, int], SelectiveBorrower] = {}
        self._seekers: dict[tuple[Queue, bool], SessionBorrower] = {}
        self._watchers: dict[tuple[Queue, SubQueue], Watcher] = {}
        self._sessions: dict[LockToken, LentSession] = {}

    def demand(self, queue: Queue, subqueue: SubQueue, limit: int) -> None:
        borrower = self._borrowers.get((queue, subqueue))
        if borrower is None:
            borrower = self._borrowers[queue, subqueue] = Borrower(self.link, queue, subqueue)
        borrower.demand(limit)

    def demand_selected(
        self, queue: Queue, subqueue: SubQueue, number: int, selector: str, limit: int | None
    ) -> None:
        """`limit`: None if the receiver is gone."""
        borrower = self._selecting.get((queue, number))
        if limit is None:
            if borrower is not None:
                self._selecting.pop((queue, number)).close()
            return
        if borrower is None:
            selection = Selection.parse(selector)
            borrower = SelectiveBorrower(self.link, queue, subqueue, number, selection)
            self._selecting[queue, number] = borrower
        borrower.demand(limit)

    def watch(self, queue: Queue, subqueue: SubQueue) -> None:
        watcher = self._watchers.get((queue, subqueue))
        if watcher is None:
            watcher = self._watchers[queue, subqueue] = Watcher(self.link, queue, subqueue)
        queue.wait_to_borrow(watcher, subqueue)

    def demand_in_session(self, token: LockToken, limit: int) -> None:
        session = self._sessions.get(token)
        if session is not None:
            session.demand(limit)

    def demand_sessions(self, queue: Queue, exclusive: bool, limit: int) -> None:
        seeker = self._seekers.get((queue, exclusive))
        if seeker is None:
            seeker = self._seekers[queue, exclusive] = SessionBorrower(self, queue, exclusive)
        seeker.demand(limit)

    def hold(self, host: PartitionHost, queue: Queue, lock: SessionLock) -> None:
        """A receiver of the other broker has this session now."""
        session = self._sessions[lock.token] = LentSession(self, host, queue, lock)
        host.hold_session(lock, session)

    def forget(self, lock: SessionLock) -> None:
        """The session is released or lost."""
        session = self._sessions.pop(lock.token, None)
        if session is not None:
            session.host.let_go_session(lock)

    def forget_entity(self, queue: Queue) -> None:
        """The entity is deleted."""
        for key in [key for key in self._borrowers if key[0] is queue]:
            self._borrowers.pop(key).close()
        for selecting in [key for key in self._selecting if key[0] is queue]:
            self._selecting.pop(selecting).close()
        for other in [key for key in self._seekers if key[0] is queue]:
            self._seekers.pop(other).close()
        for watched in [key for key in self._watchers if key[0] is queue]:
            self._watchers.pop(watched).close()

    def close(self) -> None:
        """The connection is lost: nothing more is lent, and its sessions are free."""
        for borrower in (*self._borrowers.values(), *self._selecting.values()):
            borrower.close()
        for seeker in self._seekers.values():
            seeker.close()
        for watcher in self._watchers.values():
            watcher.close()
        for session in list(self._sessions.values()):
            self.forget(session.lock)
            session.host.submit(ReleaseSession(session.lock), ignore)
