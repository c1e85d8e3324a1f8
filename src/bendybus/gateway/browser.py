"""A link that browses: a source with the distribution mode `copy`, such as that of a JMS queue browser.

It shows the active messages of all partitions in the order of their sequence numbers, each
once, locked or not. Nothing is locked, counted or removed, and dispositions change nothing.
At the end it answers a drain. A client that leaves credit is shown messages that arrive
later. Receiving: receiver.py. Peek requests: management/messages.py.
"""

from __future__ import annotations

import asyncio
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import SND_UNSETTLED, TransactionalState
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.selection import Selection
from bendybus.domain.commands import Reply
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.range_commands import Browse, Browsed
from bendybus.engine.events import OutcomesReceived
from bendybus.engine.sending import SendingLink
from bendybus.envelope import render_peeked
from bendybus.errors import BrokerError, InvalidOperation
from bendybus.gateway.settlement import echo, rejection
from bendybus.names import PARTITION_SHIFT, SequenceNumber, SessionId

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["COPY", "MOVE", "Browser"]

# The distribution modes of a source [AMQP 3.5.7].
COPY: Final = "copy"
MOVE: Final = "move"

# One read from a partition.
PAGE_MAX: Final = 100
PAGE_BYTES_MAX: Final = 1024 * 1024

# Messages that can be received now or soon: not scheduled or deferred ones.
_SHOWN: Final = frozenset({MessageState.ACTIVE})


class Browser:
    """`Waiter` of its queue; the application side of one `SendingLink`."""

    def __init__(
        self,
        connection: AmqpConnection,
        link: SendingLink,
        queue: Queue,
        subqueue: SubQueue,
        selection: Selection | None = None,
        session_id: SessionId | None = None,
    ) -> None:
        self._connection = connection
        self._link = link
        self._queue = queue
        self.subqueue = subqueue
        self._selection = selection
        self._session_id = session_id
        self._settled = link.snd_settle_mode != SND_UNSETTLED
        self._tags = count()
        self._generation = queue.generation
        self._next_numbers = dict.fromkeys(self._hosts(), SequenceNumber(0))
        """For each partition, the number to continue from."""
        self._behind = list(self._next_numbers)
        """The partitions that may have more to show, in the order of their numbers."""
        self._is_looking = False
        self._news = False
        """Whether a partition that was finished may have more to show."""
        self._closed = False

    def _hosts(self) -> list[ReceivingPort]:
        """The id of a session decides its partition."""
        if self._session_id is None:
            return list(self._queue.hosts)
        return [self._queue.host_for(self._queue.session_key(self._session_id))]

    # -- looking ------------------------------------------------------------------

    def flow(self) -> None:
        """The credit has changed, or the client can be sent more."""
        if self._link.credit > 0:
            self._go_on()
        self._answer_drain()

    def wake(self) -> None:
        """There are new messages."""
        self._news = True
        self._go_on()
        self._answer_drain()
        self._connection.flush_soon()

    def _go_on(self) -> None:
        """Show the next page if there is one, and wait for more."""
        if self._closed or self._link.credit <= 0:
            return
        self._queue.watch(self, self.subqueue)
        if self._is_looking or not self._connection.writable:
            return
        if self._news:
            if self._generation != self._queue.generation:
                # The namespace was emptied, and numbers start again.
                self._generation = self._queue.generation
                self._next_numbers = dict.fromkeys(self._next_numbers, SequenceNumber(0))
            self._behind, self._news = list(self._next_numbers), False
        if not self._behind:
            return
        host = self._behind[0]
        self._is_looking = True
        host.submit(
            Browse(
                first=self._next_numbers[host],
                last=SequenceNumber((host.number + 1 << PARTITION_SHIFT) - 1),
                count=PAGE_MAX if self._selection is not None else min(self._link.credit, PAGE_MAX),
                size_max=PAGE_BYTES_MAX,
                states=_SHOWN,
                subqueue=self.subqueue,
                session_id=self._session_id,
            ),
            partial(self._browsed, host),
        )

    def _browsed(self, host: ReceivingPort, reply: Reply | BrokerError) -> None:
        if isinstance(reply, BrokerError):
            self._passed(host)
            return
        assert isinstance(reply, Browsed)
        # Copies: while payloads are read, a message may get another number or leave.
        messages = list(map(copy, reply.messages))
        size = sum([message.size for message in messages])
        self._connection.holdings.keep(size)
        host.read(messages, partial(self._read, host, messages, size, reply.next))

    def _read(
        self,
        host: ReceivingPort,
        messages: list[Message],
        size: int,
        following: SequenceNumber | None,
        payloads: list[bytes | None] | BrokerError,
    ) -> None:
        self._connection.holdings.keep(-size)
        if self._closed:
            return
        if isinstance(payloads, BrokerError):
            self._passed(host)
            return
        shown = self._show(messages, payloads)
        if shown < len(messages):
            self._next_numbers[host] = messages[shown].sequence_number
        elif following is not None:
            self._next_numbers[host] = following
        else:
            if messages:
                self._next_numbers[host] = SequenceNumber(messages[-1].sequence_number + 1)
            self._behind.remove(host)
        self._look_further()

    def _show(self, messages: list[Message], payloads: list[bytes | None]) -> int:
        """Send matching messages within the credit. Returns how many messages were examined."""
        selection, credit = self._selection, self._link.credit
        outgoing: list[tuple[bytes, bytes, bytes]] = []
        done = 0
        for message, payload in zip(messages, payloads, strict=True):
            if payload is not None and (selection is None or selection.matches(message, payload)):
                if len(outgoing) >= credit:
                    break
                tag = next(self._tags).to_bytes(8, "big")
                outgoing.append((tag, b"", render_peeked(message, payload)))
            done += 1
        if outgoing:
            self._link.send(outgoing, settled=self._settled)
            self._connection.sent(sum(len(rendered) for _, _, rendered in outgoing))
        return done

    def _passed(self, host: ReceivingPort) -> None:
        """Skip an unavailable partition. When it is back, all waiting links are woken (P-27)."""
        self._behind.remove(host)
        self._look_further()

    def _look_further(self) -> None:
        """Continue in another turn of the event loop, so that a long backlog delays no other work."""
        asyncio.get_running_loop().call_soon(self._look_on)

    def _look_on(self) -> None:
        self._is_looking = False
        if not self._closed:
            self._go_on()
            self._answer_drain()
            self._connection.flush_soon()

    def _answer_drain(self) -> None:
        """Answer a drain once every partition has shown all its messages."""
        is_done = not (self._behind or self._news) or (self._link.credit <= 0 and not self._link.crowded)
        if self._link.drain and is_done and not self._is_looking and self._connection.writable:
            self._queue.stop_watching(self, self.subqueue)
            self._link.drained()

    # -- outcomes -----------------------------------------------------------------

    def outcomes(self, event: OutcomesReceived) -> None:
        """Outcomes of browsed messages change nothing."""
        if not event.settled:
            if isinstance(event.state, TransactionalState):
                refusal = InvalidOperation("A message that was only browsed has no part in a transaction.")
                self._link.settle(event.deliveries, rejection(refusal))
            else:
                self._link.settle(event.deliveries, echo(event.state))
        self.flow()

    def close(self) -> None:
        self._closed = True
        self._queue.stop_watching(self, self.subqueue)
