"""A running queue: its partitions, and the receivers that wait for messages.

Nothing here knows a protocol. A sender chooses its partition with `host_for`
(entity.py). A receiver takes what the partitions have and, if that is not
enough, waits to be woken. Receivers are served in the order in which they began
to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from bendybus.broker.clock import Clock
from bendybus.broker.entity import Entity
from bendybus.broker.entropy import EntropyPool
from bendybus.broker.host import Host
from bendybus.broker.lifecycle import Availability
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.partition_port import PartitionStatus, ReceivingPort
from bendybus.broker.writer import StoreWriter
from bendybus.domain.entities import QueueDescription
from bendybus.domain.leases import ConsumerLeases, LeaseRequest
from bendybus.domain.messages import SubQueue
from bendybus.errors import EntityDisabled, InvalidOperation
from bendybus.names import LockToken, SessionId, SessionKey
from bendybus.session_ids import session_key

__all__ = ["Queue", "QueueSupplier", "Waiter", "with_free_sessions"]

# When a partition enters one of these states, all waiters ask again: it may have something for them, or they
# no longer need to wait for it.
_NEWS: Final = (Availability.AVAILABLE, Availability.UNAVAILABLE)


class Waiter(Protocol):
    """A receiver that wants more messages than there were."""

    def wake(self) -> None:
        """Messages may be available. Take them, and wait again if they are not enough."""


class QueueWatch(Protocol):
    """Tells about messages of partitions elsewhere."""

    def watch(self, waiter: Waiter, subqueue: SubQueue) -> None:
        """Wake the waiter once, when there are new messages. It takes none of them."""

    def stop(self, waiter: Waiter, subqueue: SubQueue) -> None: ...


class QueueSupplier(Protocol):
    """Gives messages of partitions elsewhere to the receivers here."""

    def wanted(self, subqueue: SubQueue, count: int) -> None:
        """A receiver lacks this many messages of this sub-queue, and waits for them."""

    def unwanted(self, subqueue: SubQueue) -> None:
        """No receiver waits any more for messages of this sub-queue."""

    def unawaited(self, subqueue: SubQueue) -> None:
        """No receiver waits for messages of this sub-queue just now."""

    @property
    def watching(self) -> QueueWatch: ...


class Queue(Entity[ReceivingPort, PartitionHost, QueueDescription]):
    def __init__(
        self,
        description: QueueDescription,
        partition_count: int,
        keep_time: Callable[[Host[Any]], None],
        clock: Clock | None = None,
        entropy: EntropyPool | None = None,
    ) -> None:
        super().__init__(description, partition_count, keep_time, clock)
        self.consumer_leases = ConsumerLeases()
        """Empty, unless the first partition is here: see `lease`."""
        self.leaving = False
        """The queue is being deleted: nothing more can be sent through it (departure.py)."""
        self.suppliers: list[QueueSupplier] = []
        """One for each other broker that owns partitions of the queue."""
        self._waiting: dict[SubQueue, dict[Waiter, None]] = {subqueue: {} for subqueue in SubQueue}
        self._borrowing: dict[SubQueue, dict[Waiter, None]] = {subqueue: {} for subqueue in SubQueue}
        """Those that wait for the receivers of other brokers. They are woken after the receivers here, so a
        message crosses to another broker only if no receiver here wants it."""
        self.forwarder: Waiter | None = None
        """It waits like a receiver, but for no client."""
        self._next_to_ask = 0
        self._stocked: dict[SubQueue, dict[ReceivingPort, None]] = {subqueue: {} for subqueue in SubQueue}
        """The partitions that may have something for a receiver. The others have nothing."""
        self.entropy = entropy or EntropyPool()
        """For lock tokens."""
        self._waking: set[SubQueue] = set()
        """The sub-queues whose receivers are woken at the end of the commit that is being answered."""

    def refuse_sending(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        if subqueue is not SubQueue.MAIN:
            raise InvalidOperation(
                f"Nobody can send to a sub-queue of '{self.path}'; send to the queue itself."
            )
        if not self.description.status.can_send:
            raise EntityDisabled(f"'{self.path}' is {self.description.status} and takes no messages.")

    def refuse_receiving(self, subqueue: SubQueue = SubQueue.MAIN) -> None:
        if subqueue is SubQueue.MAIN and self.description.forward_to is not None:
            raise InvalidOperation(
                f"'{self.path}' forwards its messages to '{self.description.forward_to}'; receive them there."
            )
        if not self.description.status.can_receive:
            raise EntityDisabled(f"'{self.path}' is {self.description.status} and gives no messages.")

    def has_sessions(self, subqueue: SubQueue) -> bool:
        """Whether messages are received by session here. Dead letters never are."""
        return self.description.requires_session and subqueue is SubQueue.MAIN

    def session_key(self, session_id: SessionId) -> SessionKey:
        """The key of a session of this queue."""
        return session_key(session_id, exact=self.description.exact_keys)

    def refuse_receiver(self, subqueue: SubQueue, *, sessionful: bool) -> None:
        """Raise if this kind of receiver is not allowed here."""
        self.refuse_receiving(subqueue)
        if subqueue is SubQueue.COMPLETED:
            raise InvalidOperation(
                f"The completed messages of '{self.path}' cannot be received: peek at them, or put them back."
            )
        if self.has_sessions(subqueue) and not sessionful:
            raise InvalidOperation(
                "It is not possible for an entity that requires sessions to create a non-sessionful message "
                f"receiver. Entity: '{self.path}'."
            )
        if sessionful and not self.has_sessions(subqueue):
            raise InvalidOperation(
                "A sessionful message receiver cannot be created on an entity that does not require "
                f"sessions. Entity: '{self.path}'."
            )

    async def lease(self, request: LeaseRequest) -> None:
        """Take, extend, check or give up the lease of a consumer, at the owner of the first partition."""
        await self.hosts[0].lease(request)

    def exchange(self, port: ReceivingPort, own: PartitionHost | None) -> ReceivingPort:
        former = super().exchange(port, own)
        if port.number == 0:
            self.consumer_leases = ConsumerLeases()
        for stocked in self._stocked.values():
            stocked.pop(former, None)
        return former

    def availability_changed(self, host: PartitionStatus) -> None:
        if host.availability in _NEWS:
            for stocked in self._stocked.values():
                stocked.update(dict.fromkeys(self.hosts))
            self.wake_all()

    def host_of_token(self, token: LockToken) -> ReceivingPort | None:
        number = int.from_bytes(token[:2], "big")
        return self.hosts[number] if number < len(self.hosts) else None

    # -- receiving ----------------------------------------------------------------

    @property
    def departing(self) -> bool:
        """Whether messages for other entities are in an outbox, as far as partitions are available."""
        partitions = [host.partition for host in self.own.values()]
        return any(partition is not None and partition.departing for partition in partitions)

    def is_unknown(self, subqueue: SubQueue) -> bool:
        """Whether another broker is being asked what some partition has."""
        return any(host.is_unknown(subqueue) for host in self.hosts)

    async def known(self, subqueue: SubQueue) -> None:
        """Return once all other brokers have said what they have for the receivers that wait."""
        for host in tuple(self.hosts):
            await host.known(subqueue)

    def in_turn(self) -> Iterator[ReceivingPort]:
        """All partitions. Each call begins with a different one, so that none is favoured."""
        count = len(self.hosts)
        first = self._next_to_ask
        self._next_to_ask += 1
        for offset in range(count):
            yield self.hosts[(first + offset) % count]

    def stock(self, host: ReceivingPort, subqueue: SubQueue) -> None:
        """The partition may have something for a receiver."""
        self._stocked[subqueue][host] = None

    def stocked(self, subqueue: SubQueue) -> list[ReceivingPort]:
        """The partitions that have something for a receiver. Each call begins with a different one."""
        stocked = self._stocked[subqueue]
        hosts = [host for host in stocked if host.available(subqueue)]
        if len(hosts) < len(stocked):
            self._stocked[subqueue] = dict.fromkeys(hosts)
        if len(hosts) > 1:
            first = self._next_to_ask % len(hosts)
            self._next_to_ask += 1
            return hosts[first:] + hosts[:first]
        return hosts

    def wait(self, waiter: Waiter, subqueue: SubQueue, wanted: int = 0) -> None:
        """`wanted`: how many messages it would lock. Owners elsewhere are asked for as many."""
        self._waiting[subqueue][waiter] = None
        if wanted:
            for supplier in self.suppliers:
                supplier.wanted(subqueue, wanted)

    def watch(self, waiter: Waiter, subqueue: SubQueue) -> None:
        """`wait`, for one that looks at messages and takes none: other brokers need not send them."""
        if self.suppliers:
            self.wait_to_borrow(waiter, subqueue)
            for supplier in self.suppliers:
                supplier.watching.watch(waiter, subqueue)
        else:
            self.wait(waiter, subqueue)

    def stop_watching(self, waiter: Waiter, subqueue: SubQueue) -> None:
        self.stop_waiting(waiter, subqueue)
        self.stop_borrowing(waiter, subqueue)
        for supplier in self.suppliers:
            supplier.watching.stop(waiter, subqueue)

    def wait_to_borrow(self, waiter: Waiter, subqueue: SubQueue) -> None:
        """`wait`, for waiters that want nothing from other brokers: above all, the receivers of another
        broker."""
        self._borrowing[subqueue][waiter] = None

    def stop_borrowing(self, waiter: Waiter, subqueue: SubQueue) -> None:
        self._borrowing[subqueue].pop(waiter, None)

    def waiting_count(self, subqueue: SubQueue) -> int:
        """How many receivers of this broker wait."""
        return len(self._waiting[subqueue])

    def stop_waiting(self, waiter: Waiter, subqueue: SubQueue) -> None:
        waiting = self._waiting[subqueue]
        waiting.pop(waiter, None)
        if not waiting:
            for supplier in self.suppliers:
                supplier.unwanted(subqueue)

    @property
    def awaited_here(self) -> bool:
        return bool(self._waiting[SubQueue.MAIN])

    @property
    def awaited(self) -> bool:
        """Whether a receiver of any broker waits for messages of the queue itself or its dead letters."""
        return any(
            waiter is not self.forwarder
            for line in (self._waiting, self._borrowing)
            for subqueue in (SubQueue.MAIN, SubQueue.DEAD_LETTER)
            for waiter in line[subqueue]
        )

    def wake_all(self, *subqueues: SubQueue) -> None:
        """Make all waiters ask again, even though there may be nothing; of these sub-queues, or of all."""
        for subqueue in subqueues or SubQueue:
            for waiting in (self._waiting[subqueue], self._borrowing[subqueue]):
                for waiter in list(waiting):
                    waiting.pop(waiter, None)
                    waiter.wake()
            if self.suppliers:
                self._tell_suppliers(subqueue)

    def _tell_suppliers(self, subqueue: SubQueue) -> None:
        if not self._waiting[subqueue]:
            for supplier in self.suppliers:
                supplier.unawaited(subqueue)

    def wake_after(self, writer: StoreWriter, subqueue: SubQueue) -> None:
        """`wake`, once for all partitions whose messages became durable in one commit of this store."""
        if subqueue not in self._waking and (self._waiting[subqueue] or self._borrowing[subqueue]):
            self._waking.add(subqueue)
            writer.after_answers(partial(self._wake_now, subqueue))

    def _wake_now(self, subqueue: SubQueue, _: Exception | None) -> None:
        self._waking.discard(subqueue)
        self.wake(subqueue)

    def wake(self, subqueue: SubQueue) -> None:
        """Messages became available. Wake the waiters, first come, first served."""
        waiting, borrowing = self._waiting[subqueue], self._borrowing[subqueue]
        if not waiting and not borrowing:
            return
        # A waiter that wants more joins the end of the list again, so iterate over a copy.
        for waiter in list(waiting):
            if not any(host.available(subqueue) for host in self._stocked[subqueue]):
                return
            waiting.pop(waiter, None)
            waiter.wake()
        for waiter in list(borrowing):
            if not any(host.available(subqueue) for host in self.own.values()):
                break
            borrowing.pop(waiter, None)
            waiter.wake()
        if self.suppliers:
            self._tell_suppliers(subqueue)


def with_free_sessions(queue: Queue) -> Iterator[ReceivingPort]:
    """The partitions that have a session for a receiver. Each call begins with a different one.

    Those of other brokers are always among them: the question tells the owner that a session is wanted.
    """
    stocked = queue._stocked[SubQueue.MAIN]
    if not stocked and not queue.suppliers:
        return
    for host in queue.in_turn():
        if host in stocked:
            if host.available(SubQueue.MAIN):
                yield host
                continue
            if not queue.suppliers:
                stocked.pop(host, None)
        if queue.suppliers:
            yield host
