"""Request and response over a pair of links, as `$cbs` and `$management` use them. Several requests may be
open; the correlation id assigns each answer to its request. The callers interpret the status of an answer:
cbs.py, management.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final, cast

from bendybus.amqp.message import DecodedMessage, Properties, decode_message, encode_message
from bendybus.amqp.performatives import (
    RCV_FIRST,
    RECEIVER,
    SENDER,
    SND_SETTLED,
    SND_UNSETTLED,
    Source,
    Target,
)
from bendybus.client.channel import Channel, ended, was_accepted
from bendybus.client.refusals import connection_lost, refusal_in
from bendybus.engine.events import DeliveriesReceived, Event, LinkDetached, OutcomesReceived
from bendybus.engine.receiving import ReceivingLink
from bendybus.engine.sending import SendingLink
from bendybus.errors import BrokerError

__all__ = ["Requests"]

REPLY_CREDIT: Final = 100


class Requests:
    """Both links to one node, on one channel."""

    def __init__(self, channel: Channel, node: str) -> None:
        self._channel = channel
        self._node = node
        self._numbers = itertools.count(1)
        self._replies: dict[str, DecodedMessage] = {}
        self._asked: set[str] = set()
        self._by_tag: dict[bytes, str] = {}
        self._refused: dict[str, BrokerError] = {}
        self._gone: BrokerError | None = None
        session = channel.begin()
        self._reply_to = channel.new_name("replies")
        receiving = session.attach(
            channel.new_name(f"from-{node}"),
            RECEIVER,
            source=Source(address=node),
            target=Target(address=self._reply_to),
            snd_settle_mode=SND_SETTLED,
            rcv_settle_mode=RCV_FIRST,
        )
        sending = session.attach(
            channel.new_name(f"to-{node}"),
            SENDER,
            source=Source(address=self._reply_to),
            target=Target(address=node),
            snd_settle_mode=SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
        )
        self._receiving = cast(ReceivingLink, receiving)
        self._sending = cast(SendingLink, sending)
        receiving.context = sending.context = self
        channel.wait(self._is_ready, f"attaching to '{node}'")
        self.refuse_gone()
        self._receiving.grant(REPLY_CREDIT)

    @property
    def usable(self) -> bool:
        return self._gone is None and self._channel.failure is None

    def ask(self, properties: Mapping[str, object], body: object) -> str:
        """Send a request; `answer` with what this returns waits for the reply."""
        name = f"{self._reply_to}-{next(self._numbers)}"
        request = encode_message(
            properties=Properties(message_id=name, reply_to=self._reply_to),
            application_properties=properties,
            value=body,
        )
        what = f"asking '{self._node}'"
        self._channel.wait(lambda: self._gone is not None or self._sending.credit > 0, what)
        self.refuse_gone()
        tag = name.encode()[-32:]
        self._by_tag[tag] = name
        self._asked.add(name)
        self._sending.send([(tag, b"", request)], settled=False)
        self._channel.serve(0)
        return name

    def answer(self, name: str, timeout_s: float | None = None) -> DecodedMessage:
        """The reply to one request."""
        what = f"the answer of '{self._node}'"
        try:
            self._channel.wait(
                lambda: name in self._replies or name in self._refused or self._gone is not None,
                what,
                timeout_s,
            )
        finally:
            self._asked.discard(name)
        if name in self._refused:
            raise self._refused.pop(name)
        if name not in self._replies:
            self.refuse_gone()
        return self._replies.pop(name)

    def refuse_gone(self) -> None:
        if self._gone is not None:
            raise self._gone

    def heard(self, event: Event) -> None:
        match event:
            case DeliveriesReceived(deliveries=deliveries):
                for delivery in deliveries:
                    reply = decode_message(delivery.payload)
                    name = str(reply.properties.correlation_id)
                    # It came too late: nobody waits for it any more.
                    if name in self._asked:
                        self._replies[name] = reply
                self._receiving.top_up(REPLY_CREDIT)
            case OutcomesReceived(deliveries=sent, state=state, settled=settled):
                for request in sent:
                    name = self._by_tag.pop(request.tag, "")
                    error = refusal_in(state, f"a request to '{self._node}'")
                    if error is not None:
                        self._refused[name] = error
                if not settled:
                    self._sending.settle(sent, state)
            case LinkDetached(link=link, error=error):
                self._gone = self._gone or ended(link, error, f"the link to '{self._node}'")

    def _is_ready(self) -> bool:
        return self._gone is not None or all(
            link.attached and was_accepted(link) for link in (self._receiving, self._sending)
        )

    def close(self) -> None:
        self._gone = self._gone or connection_lost(f"the link to '{self._node}' is closed.")
        self._sending.detach()
        self._receiving.detach()
