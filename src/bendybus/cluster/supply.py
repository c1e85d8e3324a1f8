"""Messages of another broker for receivers here: what was asked for, and what has arrived.

A receiver asks a partition for messages and gets those that are available at once (broker/partition_port.py).
A remote partition has those that its owner has sent ahead. So the first receiver gets nothing and waits, and
`Queue.wait` raises a demand: the total number of messages that the owner may send. The owner locks messages
and sends them as they arrive, and waiting receivers are woken. There is one demand for each queue and owner,
not for each partition, so a receiver with little credit does not make the owner lock messages in all of them.

Messages that arrive and are not used at once are kept for the next credit, as the gateway keeps messages from
a slow store (P-25). They go back, and no delivery is counted, when the receivers leave or have wanted nothing
for a tenth of a second. The owner's side: lending.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from bendybus.broker.holders import SessionHolder
from bendybus.broker.queue import Queue
from bendybus.cluster.arrivals import KEEP_S, Arrivals, Line, demanded
from bendybus.cluster.held_sessions import HeldSession, HeldSessions
from bendybus.cluster.items import Demand, Item, SessionDemand
from bendybus.cluster.selecting import GiveBack, Selections
from bendybus.cluster.watching import Watching
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import SessionAccepted, SessionLock
from bendybus.names import LockToken, PartitionNumber

if TYPE_CHECKING:
    from bendybus.cluster.link import PeerLink

__all__ = ["Supplier"]


class Supplier:
    """The messages that one broker sends to the receivers of one queue here."""

    def __init__(
        self, queue: Queue, give_back: GiveBack, release: Callable[[int, SessionLock], None]
    ) -> None:
        self._queue = queue
        self._give_back = give_back
        self._release = release
        self._link: PeerLink | None = None
        self.selections = Selections(queue, give_back)
        """For receivers with selectors."""
        self.watching = Watching(queue)
        self._arrivals = {subqueue: Arrivals() for subqueue in SubQueue}
        self.sessions = HeldSessions()
        self._seekers = {True: Line(), False: Line()}
        """By whether the lock is exclusive."""
        self._found: dict[bool, deque[tuple[PartitionNumber, SessionAccepted]]] = {
            True: deque(),
            False: deque(),
        }
        self._asking: asyncio.Handle | None = None
        self._waking: asyncio.Handle | None = None
        self._news: dict[SubQueue, None] = {}

    # -- the connection -----------------------------------------------------------

    def connected(self, link: PeerLink) -> None:
        """The owner knows of no demand. Receivers that wait are woken afterwards, and ask again."""
        assert self._link is None, "a connection is lost before there is another"
        self._link = link
        self.selections.connected(link)
        self.watching.connected(link)

    def disconnected(self) -> None:
        """None of the requested messages will come. Sessions end with the connection, at both sides."""
        self._link = None
        self.selections.disconnected()
        self.watching.disconnected()
        for arrivals in self._arrivals.values():
            self._return_all(arrivals)
            if arrivals.leaving is not None:
                arrivals.leaving.cancel()
        self._arrivals = {subqueue: Arrivals() for subqueue in SubQueue}
        self._seekers = {True: Line(), False: Line()}
        for found in self._found.values():
            found.clear()
        self.sessions.lose_all()

    def leave_partition(
        self, number: PartitionNumber
    ) -> tuple[list[tuple[SessionLock, SessionHolder]], list[LockToken]]:
        """The owner has given up this partition. Returns the sessions that receivers here hold, and the
        locked messages that have arrived and that nobody has taken."""
        left = self.sessions.leave(number)
        untaken = [
            message
            for arrivals in (*self._arrivals.values(), *left)
            for message in arrivals.by_partition.pop(number, ())
        ]
        untaken += self.selections.leave_partition(number)
        for exclusive, found in self._found.items():
            self._found[exclusive] = deque(each for each in found if each[0] != number)
        sessions = [(session.lock, session.holder) for session in left]
        return sessions, [message.lock_token for message in untaken if message.lock_token is not None]

    def rest(self) -> None:
        """The owner has no partition of the queue any more."""
        self._queue.suppliers.remove(self)
        self.selections.rest()
        for subqueue in SubQueue:
            self.unwanted(subqueue)

    # -- what receivers ask for ---------------------------------------------------

    def available(self, number: PartitionNumber, subqueue: SubQueue) -> int:
        if self._queue.has_sessions(subqueue):
            return sum(where == number for found in self._found.values() for where, _ in found)
        return len(self._arrivals[subqueue].by_partition.get(number, ()))

    def take(self, number: PartitionNumber, count: int, size_max: int, subqueue: SubQueue) -> list[Message]:
        return self._arrivals[subqueue].take(number, count, size_max)

    def wanted(self, subqueue: SubQueue, count: int) -> None:
        """A receiver here waits for this many messages."""
        self._arrivals[subqueue].want(demanded(self._queue, count))
        self._ask_soon()

    def is_unknown(self, subqueue: SubQueue) -> bool:
        if self._link is None:
            return False
        if self._queue.has_sessions(subqueue):
            return any(line.is_unknown for line in self._seekers.values())
        return self._arrivals[subqueue].is_unknown

    async def known(self, subqueue: SubQueue) -> None:
        arrivals = self._arrivals[subqueue]
        while self.is_unknown(subqueue) and arrivals is self._arrivals[subqueue]:
            arrivals.knowing.clear()
            await arrivals.knowing.wait()

    def unwanted(self, subqueue: SubQueue) -> None:
        """No receiver waits any more for messages of this sub-queue."""
        arrivals = self._arrivals[subqueue]
        if arrivals.withdraw():
            self._say(self._demand(subqueue, arrivals))
        self._return_all(arrivals)
        if self._queue.has_sessions(subqueue):
            for exclusive, line in self._seekers.items():
                if line.withdraw():
                    self._say(self._session_demand(exclusive, line))
                self._release_found(exclusive)

    def unawaited(self, subqueue: SubQueue) -> None:
        """No receiver waits just now. If none does for a while, what was asked for is not wanted."""
        arrivals = self._arrivals[subqueue]
        if arrivals.leaving is None and (arrivals.limit > arrivals.arrived or not arrivals.is_empty):
            loop = asyncio.get_running_loop()
            arrivals.leaving = loop.call_later(KEEP_S, self._left, subqueue, arrivals)

    def _left(self, subqueue: SubQueue, arrivals: Arrivals) -> None:
        arrivals.leaving = None
        if arrivals is self._arrivals[subqueue] and not self._queue.waiting_count(subqueue):
            self.unwanted(subqueue)

    def _ask_soon(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        """At the end of the turn: what the receivers that wait lack becomes a demand.

        Without a connection nothing is asked for. Receivers are woken when there is one, and ask again.
        """
        self._asking = None
        if self._link is None:
            return
        for subqueue, arrivals in self._arrivals.items():
            waiting = self._queue.waiting_count(subqueue) > 0
            if arrivals.next_limit(waiting) is not None:
                self._say(self._demand(subqueue, arrivals))
        for session in self.sessions.all():
            if session.next_limit(waiting=True) is not None:
                self._say(self._demand(SubQueue.MAIN, session, session.lock.token))
        for exclusive, line in self._seekers.items():
            waiting = self._queue.waiting_count(SubQueue.MAIN) > 0
            if line.next_limit(waiting) is not None:
                self._say(self._session_demand(exclusive, line))

    def _say(self, item: Item) -> None:
        if self._link is not None:
            self._link.send(item)

    def _demand(self, subqueue: SubQueue, line: Line, session: LockToken | None = None) -> Demand:
        return Demand(self._queue.path, self._queue.generation, subqueue, session, line.limit)

    def _session_demand(self, exclusive: bool, line: Line) -> SessionDemand:
        return SessionDemand(self._queue.path, self._queue.generation, exclusive, line.limit)

    # -- what arrives -------------------------------------------------------------

    def supplied(
        self,
        subqueue: SubQueue,
        session: LockToken | None,
        limit: int,
        number: PartitionNumber,
        messages: list[Message],
    ) -> None:
        """The owner has given messages, or has none. Receivers are woken at the end of the frame."""
        arrivals = self._arrivals[subqueue] if session is None else self.sessions.get(session)
        if arrivals is None:
            # The session was released meanwhile, and its messages with it.
            return
        arrivals.arrive(limit, number, messages)
        if isinstance(arrivals, HeldSession):
            arrivals.holder.wake()
        elif arrivals.unwanted:
            self._return_all(arrivals)
        else:
            if messages:
                self._queue.stock(self._queue.hosts[number], subqueue)
            self._news[subqueue] = None
            if self._waking is None:
                self._waking = asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = None
        news, self._news = self._news, {}
        for subqueue in news:
            arrivals = self._arrivals[subqueue]
            if arrivals.is_empty:
                # What the owner has is known: a drain may be answered.
                self._queue.wake_all(subqueue)
            else:
                self._queue.wake(subqueue)
                if not arrivals.is_empty and arrivals.keeping is None:
                    loop = asyncio.get_running_loop()
                    arrivals.keeping = loop.call_later(KEEP_S, self._kept_too_long, arrivals)
            if self._queue.waiting_count(subqueue) and arrivals.limit <= arrivals.arrived:
                # Other receivers took everything, and some still wait: ask again.
                arrivals.wanted = max(arrivals.wanted, 1)
                self._ask_soon()

    def _kept_too_long(self, arrivals: Arrivals) -> None:
        arrivals.keeping = None
        self._return_all(arrivals)

    def _return_all(self, arrivals: Arrivals) -> None:
        for number, messages in arrivals.clear():
            self._give_back(number, messages)

    # -- sessions -----------------------------------------------------------------

    def next_session(self, number: PartitionNumber, *, exclusive: bool) -> SessionAccepted | None:
        """A session of this partition that the owner has locked for a receiver here."""
        line, found = self._seekers[exclusive], self._found[exclusive]
        line.unwanted = False
        for index, (where, accepted) in enumerate(found):
            if where == number:
                del found[index]
                return accepted
        if not found:
            line.wanted = max(line.wanted, self._queue.waiting_count(SubQueue.MAIN) + 1)
            self._ask_soon()
        return None

    def session_supplied(
        self, exclusive: bool, limit: int, number: PartitionNumber, accepted: SessionAccepted
    ) -> None:
        line = self._seekers[exclusive]
        line.answered = max(line.answered, min(limit, line.limit))
        self._arrivals[SubQueue.MAIN].knowing.set()
        if accepted.lock is None:
            return
        line.arrived += 1
        self._found[exclusive].append((number, accepted))
        self._queue.stock(self._queue.hosts[number], SubQueue.MAIN)
        if not line.unwanted:
            self._queue.wake(SubQueue.MAIN)
        self._release_found(exclusive)
        if self._queue.waiting_count(SubQueue.MAIN) and line.limit <= line.arrived:
            line.wanted = max(line.wanted, 1)
            self._ask_soon()

    def _release_found(self, exclusive: bool) -> None:
        """A session that nobody took is free again at once."""
        found = self._found[exclusive]
        while found:
            number, accepted = found.popleft()
            assert accepted.lock is not None
            self._release(number, accepted.lock)

    def take_in_session(self, lock: SessionLock, count: int, size_max: int) -> list[Message]:
        session = self.sessions.get(lock.token)
        if session is None:
            return []
        taken = session.take(session.number, count, size_max)
        if len(taken) < count and session.is_empty:
            session.want(demanded(self._queue, count - len(taken)))
            self._ask_soon()
        return taken
