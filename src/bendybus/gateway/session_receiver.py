"""A client's link to one session: the attach accepts the session, and the link holds it.

The attach is answered when the session is locked: the session that it names, or the next
free session with messages in any partition. A receiver that finds none waits, and is refused
when its timeout expires. A session that can be handed over goes to the receiver that presents
its token, and the link of its former holder is closed. Delivering and settling work as for
other receivers (receiver.py), but from one session instead of all partitions, and together with
the other session links of the connection (ready_sessions.py). Messages that
would be kept for a later credit are released at once, so that the session stays in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Final

from bendybus.amqp.dotnet import ticks_of_instant
from bendybus.amqp.types import Symbol
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue, with_free_sessions
from bendybus.domain.commands import ENTROPY_PER_LOCK, Reply
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import AcceptSession, ReleaseSession, SessionAccepted, SessionLock
from bendybus.engine.deliveries import Outgoing
from bendybus.errors import BrokerError, OperationTimeout
from bendybus.gateway.link_ports import OutboundLink
from bendybus.gateway.receiver import PAGE_BYTES_MAX, PAGE_MAX, Receiver
from bendybus.gateway.session_filters import WantedSession, answer_source
from bendybus.gateway.settlement import session_lost
from bendybus.names import Instant, LockToken, PartitionNumber

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["SessionReceiver"]

LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
TIMEOUT: Final = "com.microsoft:timeout"

# A receiver that deletes loses nothing with its session, so it is told this long after the lock has ended.
# The reason is a live test of the SDK for Python (`..._receive_handler_receiveanddelete` in test_sessions.py,
# and its twin in test_sessions_async.py): after ten messages it waits for another as long as the lock lasts.
# The lock begins with the attach and this wait with the last message, so the lock ends first. A receiver that
# is told at once raises SessionLockLostError; on Azure its wait ends without an error. Two seconds are ample
# for ten messages.
LOST_AFTER_S: Final = 2.0

# The timeout of Service Bus if the client names none, and the longest timeout that we accept.
ACCEPT_TIMEOUT_S: Final = 60.0
ACCEPT_TIMEOUT_MAX_S: Final = 24 * 3600.0


class SessionReceiver(Receiver):
    """`Waiter` of its queue until it has a session, then that session's `SessionHolder`."""

    def __init__(
        self, connection: AmqpConnection, link: OutboundLink, queue: Queue, wanted: WantedSession
    ) -> None:
        super().__init__(connection, link, queue, SubQueue.MAIN)
        self._wanted_session = wanted
        self._partition: PartitionNumber | None = None
        """The partition that has the session. Its owner may change."""
        self._session: SessionLock | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- accepting ----------------------------------------------------------------

    def accept(self) -> None:
        """Ask for the session. The client is answered when it is locked, or cannot be."""
        wanted = self._wanted_session
        if wanted.session_id is None:
            self._look()
            if self._session is None:
                self._begin_timer()
            return
        self._begin_timer()
        host = self._queue.host_for(self._queue.session_key(wanted.session_id))
        entropy = urandom(ENTROPY_PER_LOCK)
        host.submit(
            AcceptSession(wanted.session_id, entropy, wanted.exclusive, wanted.handover),
            partial(self._accept_answered, host),
        )

    def _begin_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_timeout_s(self._link.properties), self._time_out)

    def _look(self) -> None:
        for host in with_free_sessions(self._queue):
            accepted = host.accept_next_session(exclusive=self._wanted_session.exclusive)
            if accepted is not None:
                self._begin(host, accepted)
                return
        self._queue.wait(self, self.subqueue)

    def _accept_answered(self, host: ReceivingPort, reply: Reply | BrokerError) -> None:
        if isinstance(reply, BrokerError):
            self._connection.links.end(self._link, reply)
            return
        assert isinstance(reply, SessionAccepted)
        assert reply.lock is not None, "a session that is named is accepted or refused"
        if self._closed:
            host.submit(ReleaseSession(reply.lock), _ignore)
        else:
            self._begin(host, reply)

    def _begin(self, host: ReceivingPort, accepted: SessionAccepted) -> None:
        assert accepted.lock is not None
        self._cancel_timer()
        self._partition, self._session = host.number, accepted.lock
        self._queue.hosts[host.number].hold_session(accepted.lock, self)
        self._connection.session_locks[self._queue, accepted.lock.key] = accepted.lock
        self._connection.session_links[self._queue, self._link.name] = accepted.lock.session_id
        self._link.accept(
            source=answer_source(self._link.source, accepted.lock),
            properties={Symbol(LOCKED_UNTIL): ticks_of_instant(accepted.locked_until)},
        )
        self.flow()
        self._connection.flush_soon()

    def _time_out(self) -> None:
        self._timer = None
        session_id = self._wanted_session.session_id
        if session_id is None:
            reason = f"No session of '{self._queue.path}' became free that has messages."
        else:
            reason = f"The session '{session_id}' of '{self._queue.path}' could not be reached in time."
        self._connection.links.end(self._link, OperationTimeout(reason))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- receiving ----------------------------------------------------------------

    def flow(self) -> None:
        # Credit that arrives before the session is locked is used afterwards.
        if self._session is not None:
            self._connection.ready_sessions.add(self)

    def wake(self) -> None:
        if self._session is not None:
            self._connection.ready_sessions.add(self)
            self._connection.flush_soon()
        elif not self._closed:
            self._look()

    def asks(self) -> tuple[ReceivingPort, SessionLock, int] | None:
        """What to ask for, together with other links; None if there is nothing, or if it was served alone."""
        if self._closed or self._session is None or self._partition is None:
            return None
        wanted = self._wanted()
        if wanted <= 0:
            self._crowded = self._link.crowded
            return None
        if self._kept or self._reading or self._deletes:
            self.take()
            return None
        return self._queue.hosts[self._partition], self._session, min(wanted, PAGE_MAX)

    def fetch(self, host: ReceivingPort, messages: list[Message], payloads: list[bytes]) -> None:
        """These messages were locked for the link, and some have to be read. `payloads`: those in memory."""
        self._fetch(host, messages, payloads)

    def send_rendered(self, rendered: Sequence[Outgoing]) -> int:
        """Send messages that were locked for the link. Returns how many there was room for."""
        return self._link.send(rendered, settled=False, overrun=False)

    def served(self) -> None:
        """Nothing more can be sent to the link now."""
        if self._link.drain and not self._closed:
            self._answer_drain()

    def lost(self) -> None:
        """The session is no longer ours."""
        if self._deletes:
            asyncio.get_running_loop().call_later(LOST_AFTER_S, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self._session is not None and not self._closed:
            self._connection.links.end(self._link, session_lost(self._session.session_id, self._queue.path))

    def _partitions(self) -> Iterable[ReceivingPort]:
        return () if self._partition is None else (self._queue.hosts[self._partition],)

    def _lock(self, host: ReceivingPort, count: int) -> list[Message]:
        return [] if self._session is None else host.lock_in_session(self._session, count, PAGE_BYTES_MAX)

    def _has_more(self, host: ReceivingPort) -> bool:
        return self._session is not None and host.waiting_in_session(self._session)

    def _wait(self, wanted: int) -> None:
        """Nothing to do: the partition informs the holder of a session about every message."""

    def _stop_waiting(self) -> None:
        if self._session is None:
            super()._stop_waiting()

    def _loading(self) -> bool:
        """Whether the owner of the partition has not said yet what is in the session."""
        lock = self._session
        return lock is not None and any(host.session_is_unknown(lock) for host in self._partitions())

    def _page_read(
        self,
        host: ReceivingPort,
        messages: list[Message],
        tokens: list[LockToken],
        payloads: list[bytes | None] | BrokerError,
    ) -> None:
        super()._page_read(host, messages, tokens, payloads)
        for page in self._unkeep():
            host.release(page.tokens)

    # -- the end ------------------------------------------------------------------

    def tick(self, at: Instant) -> None:
        self._go_on()

    def close(self) -> None:
        """The link is gone: release the session. Unsettled messages are returned uncounted (P-28)."""
        if self._closed:
            return
        super().close()
        self._cancel_timer()
        if self._session is not None and self._partition is not None:
            host = self._queue.hosts[self._partition]
            host.let_go_session(self._session)
            key = self._queue, self._session.key
            if self._connection.session_locks.get(key) == self._session:
                del self._connection.session_locks[key]
            self._connection.session_links.pop((self._queue, self._link.name), None)
            host.submit(ReleaseSession(self._session), _ignore)


def _timeout_s(properties: Mapping[str, object]) -> float:
    asked = properties.get(TIMEOUT)
    if not isinstance(asked, int | float) or isinstance(asked, bool) or not asked > 0:
        return ACCEPT_TIMEOUT_S
    return min(asked / 1000, ACCEPT_TIMEOUT_MAX_S)


def _ignore(_: object) -> None:
    """For commands whose reply is not needed."""
