"""Request and response over a pair of links, as `$cbs` and `$management` use them.

A client attaches a sender to the node and a receiver from it, sends a message
with an operation and a reply-to, and waits for the message whose correlation-id
equals its message-id, including the type. The handler implements the operation (cbs.py,
management/); this module finds the link for the reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, DeliveryState
from bendybus.engine.deliveries import Delivery
from bendybus.engine.events import OutcomesReceived
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.engine.session import Session
from bendybus.errors import ArgumentError, BrokerError, MessageSizeExceeded, ServerBusy, WireError
from bendybus.gateway.addresses import Address
from bendybus.gateway.settlement import rejection

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["Handler", "Replier", "Request", "Requester", "Response", "choose_replier"]

# Requests are small and answered promptly; SDKs send one at a time.
REQUEST_CREDIT: Final = 100

# Requests under way on one link, each up to the size of a message. Further requests are refused.
REQUESTS_UNDER_WAY_MAX: Final = 100

# A client may send requests without reading the replies. Beyond this the oldest replies are dropped.
REPLIES_WAITING_MAX: Final = 1000
REPLIES_WAITING_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Request:
    message_id: str | UUID | bytes | int | None
    reply_to: str | None
    properties: Mapping[str, object]
    """The application properties: `operation` and others."""
    body: object
    state: DeliveryState | None = None
    """Names the transaction that this request is part of, if any."""

    @property
    def operation(self) -> str:
        operation = self.properties.get("operation")
        if not isinstance(operation, str):
            raise ArgumentError("A request needs the application property 'operation'.")
        return operation


@dataclass(slots=True)
class Response:
    properties: Mapping[str, object]
    """Application properties: the status, under the names this node uses."""
    body: object = field(default_factory=dict)


Handler: TypeAlias = Callable[[Request], Response | Coroutine[None, None, Response]]
"""Answers at once or later. Errors are answers too, so it never raises one of ours."""


class Requester:
    """The link on which a client sends requests."""

    def __init__(
        self, connection: AmqpConnection, link: ReceivingLink, node: Address, handler: Handler
    ) -> None:
        self._connection = connection
        self._link = link
        self._node = node
        self._handler = handler
        self._under_way = 0

    def deliveries(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            try:
                self._refuse_crowd()
                request = _decode(delivery)
            except BrokerError as error:
                self._link.settle((delivery,), rejection(error))
                continue
            self._link.settle((delivery,), Accepted())
            answer = self._handler(request)
            if isinstance(answer, Response):
                self._respond(request, answer)
            else:
                self._under_way += 1
                size = len(delivery.payload)
                self._connection.holdings.admitted(size)
                task = self._connection.spawn(self._respond_later(request, answer))
                task.add_done_callback(partial(self._done, answer, size))
        self._link.top_up(REQUEST_CREDIT)

    def close(self) -> None:
        """A reply that comes too late finds no link and is dropped."""

    def _refuse_crowd(self) -> None:
        if self._under_way >= REQUESTS_UNDER_WAY_MAX:
            raise ServerBusy(
                f"{self._under_way} requests on link '{self._link.name}' are being worked on. Please retry."
            )

    async def _respond_later(self, request: Request, answer: Coroutine[None, None, Response]) -> None:
        self._respond(request, await answer)

    def _done(self, answer: Coroutine[None, None, Response], size: int, _: object) -> None:
        self._under_way -= 1
        self._connection.holdings.answered(size)
        # Matters only if the connection ends before the task starts: then nothing awaits the coroutine.
        answer.close()

    def _respond(self, request: Request, response: Response) -> None:
        replier = self._connection.links.find_replier(self._node, self._link.session, request.reply_to)
        if replier is not None:
            replier.reply(
                encode_message(
                    properties=Properties(correlation_id=request.message_id),
                    application_properties=response.properties,
                    value=response.body,
                )
            )
            self._connection.flush_soon()


class Replier:
    """The link on which a client receives replies."""

    def __init__(self, connection: AmqpConnection, link: SendingLink, node: Address) -> None:
        self._connection = connection
        self.link = link
        self.node = node
        self._settled = link.snd_settle_mode == 1
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._count = 0

    def goes_to(self, reply_to: str | None) -> bool:
        """JavaScript names its receiver link in reply-to, the others their target address."""
        return reply_to is not None and reply_to in (
            self.link.name,
            getattr(self.link.target, "address", None),
        )

    def reply(self, message: bytes) -> None:
        if len(self._waiting) == REPLIES_WAITING_MAX:
            self._next_waiting()
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        self._connection.holdings.keep(len(message))
        self.flow()
        while len(self._waiting) > 1 and self._waiting_bytes > REPLIES_WAITING_BYTES_MAX:
            self._next_waiting()

    def _next_waiting(self) -> bytes:
        message = self._waiting.popleft()
        self._waiting_bytes -= len(message)
        self._connection.holdings.keep(-len(message))
        return message

    def flow(self) -> None:
        while self._waiting and self.link.credit > 0 and self._connection.writable:
            self._count += 1
            tag = self._count.to_bytes(8, "big")
            message = self._next_waiting()
            self.link.send([(tag, b"", message)], settled=self._settled)
            self._connection.sent(len(message))
        if self.link.drain and not self._waiting:
            self.link.drained()

    def outcomes(self, event: OutcomesReceived) -> None:
        if not event.settled:
            self.link.settle(event.deliveries, event.state)

    def close(self) -> None:
        while self._waiting:
            self._next_waiting()


def choose_replier(repliers: Sequence[Replier], session: Session, reply_to: str | None) -> Replier | None:
    """Choose, among the repliers of a node on one connection, the one for a reply.

    By reply-to on the same session, else by reply-to, else any on that session, else any: some clients send
    no reply-to, some put a link's name into it.
    """
    near = [replier for replier in repliers if replier.link.session is session]
    for candidates in (near, repliers):
        for replier in candidates:
            if replier.goes_to(reply_to):
                return replier
    return next(iter(near or repliers), None)


def _decode(delivery: Delivery) -> Request:
    if delivery.oversize:
        raise MessageSizeExceeded("The request is larger than the link's max-message-size.")
    try:
        message = decode_message(delivery.payload)
    except WireError as error:
        raise ArgumentError(f"The request is malformed: {error}") from None
    return Request(
        message_id=message.properties.message_id,
        reply_to=message.properties.reply_to,
        properties=message.application_properties,
        body=message.value,
        state=delivery.state,
    )
