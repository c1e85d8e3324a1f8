"""The ends of links for a client of tests: senders, receivers, requests and coordinators."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bendybus.amqp.message import DecodedMessage, Properties, decode_message, encode_message
from bendybus.amqp.performatives import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
)
from bendybus.engine.deliveries import Delivery
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink

if TYPE_CHECKING:
    from fix_client import Client

T = TypeVar("T")


class ConnectionLost(Exception):
    """The connection was lost before the answer came. `error` is the server's reason, if it gave one."""

    def __init__(self, error: Error | None = None) -> None:
        super().__init__(str(error) if error is not None else "the connection was cut off")
        self.error = error


class LinkRefused(Exception):
    def __init__(self, error: Error | None) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def condition(self) -> str | None:
        return None if self.error is None else self.error.condition


class LinkEnd:
    """What a sender and a receiver have in common: being attached, and being detached."""

    def __init__(self, client: Client, link: SendingLink | ReceivingLink) -> None:
        self.client = client
        link.context = self
        self._link = link
        self._attached = client.future()
        self._detached: asyncio.Future[Error | None] = client.future()
        client.flush()

    async def attached(self) -> None:
        await self.client.wait(self._attached)

    async def detached(self) -> Error | None:
        """Wait until the server detaches the link. Returns its reason."""
        return await self.client.wait(self._detached)

    @property
    def is_gone(self) -> bool:
        return self._detached.done()

    def detach(self) -> None:
        self._link.detach()
        self.client.flush()

    def answered(self) -> None:
        remote = self._link.remote
        assert remote is not None
        if remote.source is not None and remote.target is not None:
            resolve(self._attached, None)

    def gone(self, error: Error | None) -> None:
        resolve(self._detached, error)
        refuse((self._attached,), LinkRefused(error))


class Sender(LinkEnd):
    def __init__(self, client: Client, link: SendingLink) -> None:
        super().__init__(client, link)
        self.link = link
        self._count = 0
        self._flowed = client.future()
        self._outcomes: dict[bytes, asyncio.Future[DeliveryState | None]] = {}

    @property
    def unanswered(self) -> int:
        return len(self._outcomes)

    async def credit(self) -> int:
        """Wait for credit. Returns how much there is."""
        while self.link.credit <= 0:
            if self.client.lost:
                raise ConnectionLost(self.client.last_word)
            if self._flowed.done():
                self._flowed = self.client.future()
            await self.client.wait(self._flowed)
        return self.link.credit

    def post(
        self,
        payload: bytes,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
    ) -> asyncio.Future[DeliveryState | None]:
        """Send now; the future gives the outcome. There must be credit. The caller calls `client.flush`."""
        self._count += 1
        tag = self._count.to_bytes(8, "big")
        outcome = self.client.future()
        taken = self.link.send(
            ((tag, b"", payload),), settled=settled, message_format=message_format, state=state
        )
        assert taken == 1, "no credit"
        if settled:
            outcome.set_result(None)
        else:
            self._outcomes[tag] = outcome
        return outcome

    async def send(
        self, *payloads: bytes, message_format: int = 0, state: DeliveryState | None = None
    ) -> list[DeliveryState | None]:
        """Send all of them, within the credit; their outcomes."""
        posted = []
        for payload in payloads:
            if self.link.credit <= 0:
                self.client.flush()
                await self.credit()
            posted.append(self.post(payload, message_format=message_format, state=state))
        self.client.flush()
        return [await self.client.wait(outcome) for outcome in posted]

    def flowed(self) -> None:
        resolve(self._flowed, None)

    def outcomes(self, tags: Sequence[bytes], state: DeliveryState | None) -> None:
        for tag in tags:
            resolve(self._outcomes.pop(tag), state)

    def gone(self, error: Error | None) -> None:
        super().gone(error)
        refuse((self._flowed, *self._outcomes.values()), LinkRefused(error))


class Coordinator(Sender):
    """Declares and discharges transactions."""

    async def declare(self) -> bytes:
        (declared,) = await self.send(encode_message(value=Declare()))
        assert isinstance(declared, Declared), declared
        return declared.txn_id

    async def commit(self, txn_id: bytes) -> DeliveryState | None:
        return (await self.send(encode_message(value=Discharge(txn_id, False))))[0]

    async def roll_back(self, txn_id: bytes) -> DeliveryState | None:
        return (await self.send(encode_message(value=Discharge(txn_id, True))))[0]


class Receiver(LinkEnd):
    def __init__(self, client: Client, link: ReceivingLink) -> None:
        super().__init__(client, link)
        self.link = link
        self.waiting: deque[Delivery] = deque()
        self.settled_ids: set[int] = set()
        self._arrived = client.future()
        self._drained = client.future()
        self._outcomes: dict[int, asyncio.Future[DeliveryState | None]] = {}

    def grant(self, credit: int, *, drain: bool = False) -> None:
        self.link.grant(credit, drain=drain)
        self.client.flush()

    async def receive(self, count: int = 1) -> list[Delivery]:
        """The next `count` deliveries."""
        while len(self.waiting) < count:
            await self._next_arrival()
        return [self.waiting.popleft() for _ in range(count)]

    async def receive_some(self) -> list[Delivery]:
        """All that has arrived, at least one."""
        while not self.waiting:
            await self._next_arrival()
        arrived, self.waiting = list(self.waiting), deque()
        return arrived

    async def drain(self, credit: int) -> list[Delivery]:
        """What the server has now, up to `credit`."""
        self._drained = self.client.future()
        self.grant(credit, drain=True)
        await self.client.wait(self._drained)
        arrived, self.waiting = list(self.waiting), deque()
        return arrived

    def settle(
        self, deliveries: Sequence[Delivery], state: DeliveryState | None = None
    ) -> list[asyncio.Future[DeliveryState | None]]:
        """Ask for this outcome (accepted, if none is named); the futures give what the server answers."""
        asked = []
        for delivery in deliveries:
            self._outcomes[delivery.delivery_id] = outcome = self.client.future()
            asked.append(outcome)
        self.link.propose(deliveries, Accepted() if state is None else state)
        self.client.flush()
        return asked

    async def settled_as(
        self, deliveries: Sequence[Delivery], state: DeliveryState | None = None
    ) -> list[DeliveryState | None]:
        """`settle`, and wait for the answers."""
        return [await self.client.wait(answer) for answer in self.settle(deliveries, state)]

    async def _next_arrival(self) -> None:
        if self._arrived.done():
            self._arrived = self.client.future()
        if self.client.lost:
            raise ConnectionLost(self.client.last_word)
        await self.client.wait(self._arrived)

    def arrived(self, deliveries: Sequence[Delivery]) -> None:
        self.waiting += deliveries
        resolve(self._arrived, None)

    def settled(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None:
        self.settled_ids.update(delivery.delivery_id for delivery in deliveries)
        self.answered_as(deliveries, state)

    def answered_as(self, deliveries: Sequence[Delivery], state: DeliveryState | None) -> None:
        """In a transaction the answer comes before the settlement, which then answers nothing."""
        for delivery in deliveries:
            outcome = self._outcomes.pop(delivery.delivery_id, None)
            if outcome is not None:
                resolve(outcome, state)

    def is_settled(self, delivery: Delivery) -> bool:
        """Whether the server has settled it."""
        return delivery.delivery_id in self.settled_ids

    def drained(self) -> None:
        resolve(self._drained, None)

    def gone(self, error: Error | None) -> None:
        super().gone(error)
        refuse((self._arrived, self._drained, *self._outcomes.values()), LinkRefused(error))


class Requester:
    """Request and response over a pair of links."""

    def __init__(self, sender: Sender, replies: Receiver) -> None:
        self.sender = sender
        self.replies = replies
        self._numbers = itertools.count(1)

    def encode(self, body: object, properties: Mapping[str, object]) -> bytes:
        return encode_message(
            properties=Properties(message_id=f"request-{next(self._numbers)}", reply_to="replies"),
            application_properties=properties,
            value=body,
        )

    async def ask(self, operation: str, body: object = None, **properties: object) -> DecodedMessage:
        """One request, one answer."""
        request = self.encode({} if body is None else body, {"operation": operation, **properties})
        await self.sender.send(request)
        self.replies.link.top_up(100)
        (reply,) = await self.replies.receive()
        return decode_message(reply.payload)


def wrapper(link: SendingLink | ReceivingLink, kind: type[T]) -> T:
    assert isinstance(link.context, kind), link
    return link.context


def resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def refuse(futures: Iterable[asyncio.Future[Any]], reason: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(reason)
            future.exception()  # asyncio complains of those that nobody asks for
