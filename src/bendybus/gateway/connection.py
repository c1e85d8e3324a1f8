"""One client connection: bytes to the engine, its events to the links' nodes, bytes back.

An `asyncio.Protocol`, fed by TCP, TLS or a WebSocket alike. What a socket read
brings is handled in turns (turns.py): usually all of it before anything is written,
else slice by slice, and no more is read meanwhile. What several commits bring in one
turn of the loop is written once. Nothing a peer sends can raise here: the
engine turns bad bytes into an event, and a refused request is an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from bendybus.amqp.conditions import CONNECTION_FORCED
from bendybus.auth.claims import Claim, Claims, log_in
from bendybus.auth.rules import KeyRing
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.entity import Entity
from bendybus.broker.queue import Queue
from bendybus.domain.session_commands import SessionLock
from bendybus.engine.connection import PERFORMATIVE_WORK, Connection
from bendybus.engine.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    DeliveriesReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    OutcomesReceived,
    SaslInitReceived,
)
from bendybus.engine.link import Link
from bendybus.engine.session import Session
from bendybus.errors import BrokerError, ProtocolError, Unauthorized
from bendybus.gateway.addresses import Address, with_host
from bendybus.gateway.attaching import Attachment, InboundNode, OutboundNode, attach
from bendybus.gateway.browser import Browser
from bendybus.gateway.holdings import Holdings
from bendybus.gateway.probation import Probation
from bendybus.gateway.receiver import Receiver
from bendybus.gateway.requests import Replier, Requester, choose_replier
from bendybus.gateway.sender import Sender
from bendybus.gateway.session_receiver import SessionReceiver
from bendybus.gateway.transactions import Transactions
from bendybus.names import SessionId, SessionKey
from bendybus.namespaces import CALLED_HOST, Namespace

if TYPE_CHECKING:
    from bendybus.gateway.gateway import Gateway

__all__ = ["AmqpConnection"]

logger = logging.getLogger(__name__)

# How long what was written last, such as the reason for closing, may take to leave.
CLOSE_GRACE_S: Final = 5.0

# What is gathered for one write: worth a system call, and little next to a socket's own buffer.
WRITE_CHUNK_BYTES: Final = 256 * 1024

# Requests to `$cbs` or `$management` in one slice of a turn: each is decoded and answered by itself.
REQUESTS_PER_SLICE: Final = 8
REQUEST_WORK: Final = 2 * PERFORMATIVE_WORK


class AmqpConnection(asyncio.Protocol):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.namespace = gateway.namespaces.only
        """None until a host name or a key has said which of several is meant; then only `$cbs` is there."""
        self.claims = Claims()
        self.transactions = Transactions()
        self._engine = Connection.server(gateway.engine_config)
        self.holdings = Holdings(self._engine, gateway.budget.open(self))
        self.session_locks: dict[tuple[Queue, SessionKey], SessionLock] = {}
        """The sessions that this client's links hold."""
        self.session_links: dict[tuple[Queue, str], SessionId] = {}
        """The same by the names of the links."""
        self._attachments: dict[Link, Attachment] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._made_at = self._loop.time()
        self._probation = Probation(self._engine, self._made_at)
        self._unread: deque[bytes] = deque()
        """Read from the socket, and not yet given to the engine."""
        self._unhandled: list[Event] = []
        """Events that the last slice left for the next."""
        self._opened = False
        self._host = ""
        """As the client called this server."""
        self._flushing = False
        self._hung_up_at: float | None = None
        self._unwritten_bytes = 0

    # -- the transport's side -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.holdings.transport = cast(asyncio.Transport, transport)
        self._gateway.joined(self)

    def data_received(self, data: bytes) -> None:
        idle = not self.busy
        self._unread.append(data)
        self.holdings.input_bytes += len(data)
        # Otherwise its turn will come, and these bytes are for a later one.
        if idle:
            self._gateway.turns.take(self)

    def pause_writing(self) -> None:
        self.holdings.unread = True

    def resume_writing(self) -> None:
        self.holdings.unread = False
        self._go_on()

    def _go_on(self) -> None:
        """The client takes more, or may have more again."""
        self.holdings.read_or_wait()
        for attachment in list(self._attachments.values()):
            if isinstance(attachment.node, Receiver | Browser | Replier):
                attachment.node.flow()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self.holdings.transport = None
        self._let_go()
        self._gateway.left(self)

    def tick(self) -> None:
        """Once a second or so: heartbeats, silence, tokens that ran out."""
        at = self._loop.time()
        if self._hung_up_at is not None:
            if at - self._hung_up_at > CLOSE_GRACE_S and self._transport is not None:
                self._transport.abort()
            return
        limit_s = self._gateway.handshake_timeout_s
        if not self._opened and at - self._made_at > limit_s:
            self.shut_down(f"The connection was not opened within {limit_s:g} seconds.")
            return
        try:
            self._probation.check_time(at)
        except ProtocolError as refusal:
            self._refuse(refusal)
            return
        for event in self._engine.tick(at):
            self._handle(event)
        self.transactions.tick(now())
        for link, attachment in list(self._attachments.items()):
            self._check_claim(link, attachment)
            if isinstance(attachment.node, Receiver) and attachment.entity is not None:
                attachment.node.tick(attachment.entity.now())
        self._flush()
        self.holdings.account()

    def entity_changed(self, entity: Entity[Any, Any]) -> None:
        """An entity was updated or deleted: close the links that it no longer allows."""
        for link, attachment in list(self._attachments.items()):
            if attachment.entity is entity:
                try:
                    attachment.refuse_changed()
                except BrokerError as reason:
                    self._end(link, attachment, with_host(reason, self._host))
                    self.flush_soon()

    def shut_down(self, reason: str) -> None:
        """What the client came for is going away: say so, and hang up."""
        self._fail(ProtocolError(CONNECTION_FORCED, reason))

    def _refuse(self, refusal: ProtocolError) -> None:
        """The client has no token, and what it does instead is too much."""
        logger.info("connection from %s refused: %s", self.peer, refusal.description)
        self._fail(refusal)

    def _fail(self, reason: BrokerError) -> None:
        self._engine.close(reason)
        self._hang_up()

    # -- the memory budget's side -------------------------------------------------

    def hold_back(self, held_back: bool) -> None:
        self.holdings.held_back = held_back
        if held_back:
            self.holdings.read_or_wait()
        else:
            self._loop.call_soon(self._go_on)

    def evict(self, reason: BrokerError) -> None:
        logger.warning("connection from %s disconnected: %s", self.peer, reason.description)
        self._loop.call_soon(self._fail, reason)

    # -- turns --------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether input waits to be handled."""
        return bool(self._unread) or bool(self._unhandled) or self._engine.has_unread

    @property
    def slowed(self) -> bool:
        return self._probation.slowed

    def work(self, work_max: int) -> int:
        """Handle a slice of the input; how much work it was."""
        before = self._engine.work
        events, self._unhandled = self._unhandled, []
        if not events:
            events = self._read(work_max)
        requests = self._handle_slice(events)
        self._flush()
        if not self.busy:
            self.holdings.input_bytes = 0
        self.holdings.account()
        work = self._engine.work - before + requests * REQUEST_WORK
        if not self._probation.over and self._hung_up_at is None:
            try:
                self._probation.charge(work)
            except ProtocolError as refusal:
                self._refuse(refusal)
        return work

    def wait_for_turn(self, waits: bool) -> None:
        if waits is not self.holdings.waits_for_turn:
            self.holdings.waits_for_turn = waits
            self.holdings.read_or_wait()

    def _read(self, work_max: int) -> list[Event]:
        if self._engine.has_unread:
            return self._engine.read_on(work_max)
        if self._unread:
            return self._engine.receive_data(self._unread.popleft(), self._loop.time(), work_max)
        return []

    def _handle_slice(self, events: list[Event]) -> int:
        """Handle events in their order, a long series of requests only in part. How many requests it was."""
        requests = 0
        for position, event in enumerate(events):
            if type(event) is DeliveriesReceived and not self._takes_batches(event.link):
                link, first = event.link, event.deliveries[:REQUESTS_PER_SLICE]
                requests += len(first)
                if len(first) < len(event.deliveries):
                    rest = event.deliveries[REQUESTS_PER_SLICE:]
                    self._unhandled = [DeliveriesReceived(link, rest), *events[position + 1 :]]
                    self._handle(DeliveriesReceived(link, first))
                    break
            self._handle(event)
        return requests

    def _takes_batches(self, link: Link) -> bool:
        """Whether messages come on this link, which are handled together, and not requests."""
        attachment = self._attachments.get(link)
        return attachment is None or isinstance(attachment.node, Sender)

    # -- who the client is --------------------------------------------------------

    @property
    def authenticated(self) -> bool:
        """Whether the client has proved who it is; until then the limits of probation.py hold."""
        return self._probation.over

    def accept_claim(self, claim: Claim) -> None:
        """A login or a token was good. Only here does a stranger become a client."""
        self.claims.add(claim, now())
        self._probation.end()

    def check_cbs_link(self, kind: type[Requester | Replier]) -> None:
        """Raise `QuotaExceeded` if a stranger has its link of this kind to `$cbs` already."""
        nodes = (each.node for each in self._attachments.values() if each.entity is None)
        self._probation.check_cbs_link(sum(isinstance(node, kind) for node in nodes))

    # -- the namespace ------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        if self.namespace is None:
            raise Unauthorized("No token has been put that says which namespace is meant.")
        return self.namespace.broker

    def keys_for(self, token: str) -> KeyRing:
        """The keys of this connection's namespace; while that is not known, the token's signature tells."""
        if self.namespace is None:
            self.namespace = self._gateway.namespaces.signed_by(token)
        return KeyRing() if self.namespace is None else self.namespace.keys

    def _named(self, hostname: str | None) -> Namespace | None:
        """The namespace that the client called by its name: in AMQP, in TLS or in HTTP."""
        namespaces, transport = self._gateway.namespaces, self._transport
        if namespaces.only is not None or transport is None:
            return namespaces.only
        over_tls = getattr(transport.get_extra_info("ssl_object"), CALLED_HOST, None)
        return namespaces.named_by(hostname, transport.get_extra_info(CALLED_HOST), over_tls)

    def _enter(self, hostname: str | None) -> None:
        """The client has opened: its host name stands, unless its login was another namespace's."""
        named = self._named(hostname)
        self._host = hostname or ("" if named is None else named.name)
        if self.namespace is None:
            self.namespace = named
        elif named is not None and named is not self.namespace:
            self.shut_down(f"The login is not one of the namespace '{named.name}'.")

    # -- the nodes' side ----------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether the client is to be sent more."""
        return self.holdings.writable

    def sent(self, size: int) -> None:
        """This much has been sent: past a chunk it is written at once, so that `writable` is up to date."""
        self._unwritten_bytes += size
        if self._unwritten_bytes >= WRITE_CHUNK_BYTES:
            self._flush()

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop, together with what else happens in it."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def end_link(self, link: Link, reason: BrokerError) -> None:
        """Close a link, accepted or not yet, and say why."""
        attachment = self._attachments.get(link)
        if attachment is not None:
            logger.info("link '%.100s' from %s ended: %s", link.name, self.peer, reason.description)
            self._end(link, attachment, reason)
            self.flush_soon()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something that takes its time; it ends with the connection."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def find_replier(self, node: Address, session: Session, reply_to: str | None) -> Replier | None:
        """The link on which this client awaits the node's replies."""
        nodes = (attachment.node for attachment in self._attachments.values())
        repliers = [each for each in nodes if isinstance(each, Replier) and each.node == node]
        return choose_replier(repliers, session, reply_to)

    # -- events -------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case DeliveriesReceived(link, deliveries):
                attachment = self._attachments.get(link)
                if attachment is not None:
                    cast(InboundNode, attachment.node).deliveries(deliveries)
            case OutcomesReceived(link):
                attachment = self._attachments.get(link)
                if attachment is not None:
                    cast(OutboundNode, attachment.node).outcomes(event)
            case LinkFlow(link):
                attachment = self._attachments.get(link)
                if attachment is not None:
                    cast(OutboundNode, attachment.node).flow()
            case LinkAttached(link):
                self._attach(link)
            case LinkDetached(link):
                attachment = self._attachments.pop(link, None)
                if attachment is not None:
                    attachment.node.close()
            case SaslInitReceived():
                # Who did not wait for the outcome has frames that are read only now.
                for held in self._engine.sasl_outcome(self._authenticate(event)):
                    self._handle(held)
                if self._engine.closed:
                    self._hang_up()
            case ConnectionOpened(remote):
                self._opened = True
                self._enter(remote.hostname)
            case ConnectionFailed(error):
                logger.info("connection from %s broken off: %s", self.peer, error.description)
                self._hang_up()
            case ConnectionClosed():
                self._hang_up()

    def _attach(self, link: Link) -> None:
        try:
            attachment = self._attachments[link] = attach(self, link)
        except BrokerError as refusal:
            logger.info("link '%.100s' from %s refused: %s", link.name, self.peer, refusal.description)
            link.refuse(with_host(refusal, self._host))
        else:
            if isinstance(attachment.node, SessionReceiver):
                attachment.node.accept()

    def _authenticate(self, init: SaslInitReceived) -> bool:
        """PLAIN proves a rule's key at once; all others prove nothing yet and put tokens later."""
        if init.mechanism != "PLAIN":
            return True
        try:
            _, rule_name, key = init.response.decode().split("\0")
            namespace = self._named(init.hostname) or self._gateway.namespaces.opened_by(rule_name, key)
            for claim in log_in(KeyRing() if namespace is None else namespace.keys, rule_name, key):
                self.accept_claim(claim)
            self.namespace = namespace
        except (Unauthorized, ValueError) as refusal:
            logger.info("login from %s refused: %s", self.peer, refusal)
            return False
        return True

    def _check_claim(self, link: Link, attachment: Attachment) -> None:
        """Close a link whose token has run out."""
        if attachment.right is None:
            return
        try:
            self.claims.require(attachment.resource, attachment.right, now())
        except Unauthorized as ended:
            self._end(link, attachment, ended)

    def _end(self, link: Link, attachment: Attachment, reason: BrokerError) -> None:
        self._attachments.pop(link)
        attachment.node.close()
        link.detach(reason)

    # -- the end ------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return "?" if self._transport is None else str(self._transport.get_extra_info("peername"))

    def _flush(self) -> None:
        self._flushing = False
        self._unwritten_bytes = 0
        data = self._engine.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
            if self.holdings.unread:
                self.holdings.read_or_wait()
                self.holdings.account()

    def _hang_up(self) -> None:
        self._flush()
        self._let_go()
        self._hung_up_at = self._loop.time()
        if self._transport is not None:
            self._transport.close()

    def _let_go(self) -> None:
        self._unread.clear()
        self._unhandled.clear()
        attachments, self._attachments = self._attachments, {}
        for attachment in attachments.values():
            attachment.node.close()
        for task in tuple(self._tasks):
            task.cancel()
        self.holdings.leave()
