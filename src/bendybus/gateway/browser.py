"""A link that only looks: a source with the distribution mode `copy`, such as a JMS queue browser's.

It shows the active messages of all partitions in the order of their sequence
numbers, each once, whether somebody has locked them or not. Nothing is locked,
counted or removed, and no disposition changes anything. At the end it answers a
drain; a client that leaves it credit is shown what comes later. Receiving is
receiver.py's; a request to peek: management/messages.py.
"""

from __future__ import annotations

import asyncio
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from bendybus.amqp.performatives import SND_UNSETTLED, TransactionalState
from bendybus.broker.partition_host import PartitionHost
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Reply
from bendybus.domain.messages import Message, MessageState, SubQueue
from bendybus.domain.range_commands import Browse, Browsed
from bendybus.engine.events import OutcomesReceived
from bendybus.engine.sending import SendingLink
from bendybus.envelope import render_peeked
from bendybus.errors import BrokerError, InvalidOperation
from bendybus.gateway.settlement import echo, rejection
from bendybus.gateway.source_filters import Selection
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

# What can be received now or soon: not what is scheduled, nor what was set aside.
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
        self._places = dict.fromkeys(self._hosts(), SequenceNumber(0))
        """Per partition, the number to go on from."""
        self._behind = list(self._places)
        """The partitions that may have more to show, in the order of their numbers."""
        self._is_looking = False
        self._news = False
        """Whether a partition that was done with may have more to show."""
        self._closed = False

    def _hosts(self) -> list[PartitionHost]:
        """A session is in one partition, by its id."""
        if self._session_id is None:
            return list(self._queue.hosts)
        return [self._queue.host_for(self._queue.session_key(self._session_id))]

    # -- looking ------------------------------------------------------------------

    def flow(self) -> None:
        """The client's credit changed, or its socket takes more."""
        if self._link.credit > 0:
            self._go_on()
        self._answer_drain()

    def wake(self) -> None:
        """There are messages that were not there before."""
        self._news = True
        self._go_on()
        self._answer_drain()
        self._connection.flush_soon()

    def _go_on(self) -> None:
        """Show the next page, if anybody wants one; wait for more in any case."""
        if self._closed or self._link.credit <= 0:
            return
        self._queue.wait(self, self.subqueue)
        if self._is_looking or not self._connection.writable:
            return
        if self._news:
            if self._generation != self._queue.generation:
                # The namespace was emptied, and numbers start again.
                self._generation = self._queue.generation
                self._places = dict.fromkeys(self._places, SequenceNumber(0))
            self._behind, self._news = list(self._places), False
        if not self._behind:
            return
        host = self._behind[0]
        self._is_looking = True
        host.submit(
            Browse(
                first=self._places[host],
                last=SequenceNumber((host.number + 1 << PARTITION_SHIFT) - 1),
                count=PAGE_MAX if self._selection is not None else min(self._link.credit, PAGE_MAX),
                size_max=PAGE_BYTES_MAX,
                states=_SHOWN,
                subqueue=self.subqueue,
                session_id=self._session_id,
            ),
            partial(self._browsed, host),
        )

    def _browsed(self, host: PartitionHost, reply: Reply | BrokerError) -> None:
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
        host: PartitionHost,
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
            self._places[host] = messages[shown].sequence_number
        elif following is not None:
            self._places[host] = following
        else:
            if messages:
                self._places[host] = SequenceNumber(messages[-1].sequence_number + 1)
            self._behind.remove(host)
        self._look_further()

    def _show(self, messages: list[Message], payloads: list[bytes | None]) -> int:
        """Send what is wanted, within the credit; how many of the messages are done with."""
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

    def _passed(self, host: PartitionHost) -> None:
        """A partition that is away is passed over; when it is back, all who wait are woken (P-27)."""
        self._behind.remove(host)
        self._look_further()

    def _look_further(self) -> None:
        """In another turn of the loop, so that a long backlog holds up nobody."""
        asyncio.get_running_loop().call_soon(self._look_on)

    def _look_on(self) -> None:
        self._is_looking = False
        if not self._closed:
            self._go_on()
            self._answer_drain()
            self._connection.flush_soon()

    def _answer_drain(self) -> None:
        """Say that there is no more, once every partition has shown what it has."""
        is_done = not (self._behind or self._news) or (self._link.credit <= 0 and not self._link.crowded)
        if self._link.drain and is_done and not self._is_looking and self._connection.writable:
            self._queue.stop_waiting(self, self.subqueue)
            self._link.drained()

    # -- the client's word --------------------------------------------------------

    def outcomes(self, event: OutcomesReceived) -> None:
        """Whatever the client says of a message it was shown changes nothing."""
        if not event.settled:
            if isinstance(event.state, TransactionalState):
                refusal = InvalidOperation("A message that was only browsed has no part in a transaction.")
                self._link.settle(event.deliveries, rejection(refusal))
            else:
                self._link.settle(event.deliveries, echo(event.state))
        self.flow()

    def close(self) -> None:
        self._closed = True
        self._queue.stop_waiting(self, self.subqueue)
