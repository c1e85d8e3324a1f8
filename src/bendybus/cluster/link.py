"""The connection between two brokers: one for each pair, used by both sides alike.

Both greet, and both prove that they know the cluster's secret, before anything else is read. Then items flow.
All items of one turn of the event loop are sent as one frame, so the commands of a socket read are one frame,
and so are the answers of a commit. A request has a number; answers come in any order.

Neither side can fill the other's memory. The bytes of commands count until they are answered, and beyond
`UNANSWERED_MAX` further ones are refused here. Messages are given only within the demand of the other side
(supply.py). A side that has sent nothing for some seconds is presumed dead.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable
from enum import Enum
from os import urandom
from typing import Any, Final, Protocol, TypeVar, cast

from bendybus.cluster.frames import HEAD_MAX, TAIL_MAX, Frame, FrameError, FrameReader, FrameWriter, error_of
from bendybus.cluster.identity import Identity
from bendybus.cluster.items import (
    Answer,
    Figures,
    Hello,
    Item,
    Payloads,
    Ping,
    Proof,
    Refusal,
    Returned,
    Stored,
    StoredApart,
)
from bendybus.domain.commands import Enqueued
from bendybus.errors import BrokerError, ServerBusy, StoreUnavailable

__all__ = ["LinkUser", "PeerLink"]

logger = logging.getLogger(__name__)

# The versions of what items mean that this broker speaks, the oldest and the newest. This is not `Final`, and
# neither are two numbers below, so that tests can change them: compiled code has copies of what is final.
VERSIONS = (1, 2)
# `NewMessages` and `Stored`.
JOINED_ITEMS_SINCE: Final = 2

CHALLENGE_SIZE: Final = 16
# Until a broker has proved itself, only its greeting is read.
GREETING_MAX: Final = 4096

PING_S = 1.0
# A broker that is busy for this long is of no use either. The time is counted in our own turns, so that a
# broker that was suspended itself does not presume others dead.
SILENT_TURNS_MAX: Final = 5
# Bytes that clients have sent for partitions of the other broker and that it has not answered.
UNANSWERED_MAX = 64 * 1024 * 1024
# A frame leaves at the end of the turn, or when what it carries is as large as this.
FRAME_BYTES: Final = 1024 * 1024

# What a Unix socket may hold for a broker that is busy: a few frames. With Linux's default of 208 KB, a large
# frame needs a turn of both brokers for each part. The system may allow less.
BUFFER_BYTES: Final = 4 * FRAME_BYTES

_ANSWERS: Final = (Answer, Refusal, Payloads, Figures, Returned, StoredApart)
_GREETINGS: Final = (Hello, Proof)

T = TypeVar("T")


class LinkState(Enum):
    GREETING = "waiting for the other's greeting"
    PROVING = "waiting for the other's proof"
    OPEN = "open"
    CLOSED = "closed"


class LinkEvent(Enum):
    HELLO = "a greeting that we can accept"
    PROOF = "a proof that is right"
    CLOSE = "the end"


LINK: Final[dict[tuple[LinkState, LinkEvent], LinkState]] = {
    (LinkState.GREETING, LinkEvent.HELLO): LinkState.PROVING,
    (LinkState.PROVING, LinkEvent.PROOF): LinkState.OPEN,
    **{(state, LinkEvent.CLOSE): LinkState.CLOSED for state in LinkState},
}


class LinkUser(Protocol):
    """What a link tells its broker."""

    def opened(self, link: PeerLink) -> None:
        """The other side has proved who it is."""

    def received(self, link: PeerLink, frame: Frame, item: Item) -> None:
        """The other side asks or tells something."""

    def frame_ended(self, link: PeerLink) -> None:
        """All items of a frame have been received."""

    def lost(self, link: PeerLink) -> None:
        """A link that was open is closed. Everything that waited for it has been answered."""


class PeerLink:
    def __init__(self, me: Identity, user: LinkUser, expected: str | None = None) -> None:
        """`expected`: the broker that was called; None on the side that is called."""
        self._me = me
        self._user = user
        self._expected = expected
        self.state = LinkState.GREETING
        self.peer = expected or ""
        """The name of the other broker, once it is known."""
        self.instance = ""
        self.joins_items = False
        """Whether the other broker knows items that have many requests or answers."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writer = FrameWriter()
        """The frame that leaves next. Add to it with `send`."""
        self._reader = FrameReader(GREETING_MAX, 0)
        self._transport: asyncio.Transport | None = None
        self._is_encrypted = False
        self._challenge = urandom(CHALLENGE_SIZE)
        self._their_challenge = b""
        self._waiting: dict[int, tuple[Callable[[Frame, Item], Any], Callable[[Any], None], int]] = {}
        """By the number of each request: who reads its answer, who gets it, and the request's bytes."""
        self._last_id = 0
        self._unanswered_bytes = 0
        self._flushing: asyncio.Handle | None = None
        self._pinging: asyncio.TimerHandle | None = None
        self._silent_turns = 0

    def __repr__(self) -> str:
        return f"<link {self._me.broker} to {self.peer or 'a stranger'}: {self.state.value}>"

    @property
    def is_open(self) -> bool:
        return self.state is LinkState.OPEN

    # -- the transport's calls (link_protocol.py) ---------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # `Transport` on asyncio, a type of its own on uvloop.
        self._transport = cast(asyncio.Transport, transport)
        _enlarge_buffer(transport)
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        me = self._me
        self._pinging = asyncio.get_running_loop().call_later(PING_S, self._ping)
        self.send(Hello(VERSIONS, me.cluster, me.broker, me.instance, self._challenge))

    def room(self) -> memoryview:
        """Where the bytes that arrive next are to be written."""
        return self._reader.room()

    def arrived(self, count: int) -> None:
        """This many bytes were written into the room."""
        self._silent_turns = 0
        try:
            for frame in self._reader.arrived(count):
                for item in frame.items:
                    self._handle(frame, item)
                if self.is_open:
                    self._user.frame_ended(self)
        except FrameError as refusal:
            logger.error("%r: %s", self, refusal)
            self.close("what it sends cannot be read")
        except Exception:
            logger.exception("%r: an item could not be handled", self)
            self.close("an item could not be handled")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("the other side has closed it" if exc is None else str(exc))
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self, reason: str) -> None:
        """End the connection, and answer everything that waits for it."""
        if self.state is LinkState.CLOSED:
            return
        was_open = self.is_open
        logger.info("%r ends: %s", self, reason)
        self.state = LINK[self.state, LinkEvent.CLOSE]
        for timer in (self._pinging, self._flushing):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        self._unanswered_bytes = 0
        for _, done, _ in waiting.values():
            done(self._unanswered())
        if was_open:
            self._user.lost(self)

    def _unanswered(self) -> StoreUnavailable:
        return StoreUnavailable(f"The broker '{self.peer}' does not answer. Please retry the operation.")

    # -- greeting -----------------------------------------------------------------

    def _handle(self, frame: Frame, item: Item) -> None:
        if self.state is LinkState.CLOSED:
            return
        if not self.is_open:
            self._greet(item)
        elif isinstance(item, _ANSWERS):
            self._answered(frame, item)
        elif isinstance(item, Stored):
            self._stored(item)
        elif isinstance(item, _GREETINGS):
            raise FrameError("a greeting on a connection that is open")
        elif not isinstance(item, Ping):
            self._user.received(self, frame, item)

    def _greet(self, item: Item) -> None:
        if self.state is LinkState.GREETING and isinstance(item, Hello):
            self._refuse_stranger(item)
            self.peer, self.instance, self._their_challenge = item.broker, item.instance, item.challenge
            self.joins_items = item.versions[1] >= JOINED_ITEMS_SINCE
            self.state = LINK[self.state, LinkEvent.HELLO]
            self.send(Proof(self._me.mac(self._me.broker, self._their_challenge, self._challenge)))
            # In a separate frame: until it is read, the other side accepts no larger frame.
            self._flush()
        elif self.state is LinkState.PROVING and isinstance(item, Proof):
            wanted = self._me.mac(self.peer, self._challenge, self._their_challenge)
            if not hmac.compare_digest(wanted, item.mac):
                raise FrameError(f"'{self.peer}' is not a member of the cluster: its proof is wrong")
            self.state = LINK[self.state, LinkEvent.PROOF]
            self._reader.head_max, self._reader.tail_max = HEAD_MAX, TAIL_MAX
            self._user.opened(self)
        else:
            raise FrameError(f"a {type(item).__name__} where a greeting was expected")

    def _refuse_stranger(self, hello: Hello) -> None:
        me = self._me
        oldest, newest = hello.versions
        if hello.cluster != me.cluster:
            raise FrameError(f"'{hello.broker}' is a broker of another cluster, '{hello.cluster}'")
        if newest < VERSIONS[0] or oldest > VERSIONS[1]:
            raise FrameError(
                f"'{hello.broker}' speaks versions {oldest} to {newest} of the protocol between brokers, and "
                f"this broker {VERSIONS[0]} to {VERSIONS[1]}"
            )
        if hello.broker == me.broker or self._expected not in (None, hello.broker):
            raise FrameError(f"'{hello.broker}' is not the broker that was expected")
        if len(hello.challenge) != CHALLENGE_SIZE:
            raise FrameError("a challenge of the wrong size")

    # -- sending ------------------------------------------------------------------

    def send(self, item: Item) -> None:
        """Send an item at the end of this turn. Earlier items arrive first."""
        if self.state is LinkState.CLOSED:
            return
        self.writer.add(item)
        self._flush_soon()

    def send_stored(self, request: int, reply: Enqueued) -> None:
        """Answer a request with this reply."""
        if self.state is not LinkState.CLOSED:
            self.writer.add_stored(request, reply)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self.writer.size + self.writer.encoded_size >= FRAME_BYTES:
            self._flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self.writer.is_empty or self.state is LinkState.CLOSED:
            return
        assert self._transport is not None
        pieces = self.writer.take()
        if self._is_encrypted:
            # Each piece would be a record of its own.
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    def _ping(self) -> None:
        self._pinging = asyncio.get_running_loop().call_later(PING_S, self._ping)
        self._silent_turns += 1
        if self._silent_turns > SILENT_TURNS_MAX:
            self.close(f"nothing was heard for {SILENT_TURNS_MAX * PING_S:g} s")
        elif self.is_open:
            self.send(Ping())

    # -- requests -----------------------------------------------------------------

    def request(
        self,
        make: Callable[[int], Item | None],
        parse: Callable[[Frame, Item], T],
        done: Callable[[T | BrokerError], None],
    ) -> None:
        """Ask something. `make` gets the request's number, and returns the item unless it has added it to the
        frame itself; `parse` reads the answer; `done` gets it."""
        if not self.is_open:
            done(self._unanswered())
            return
        if self._unanswered_bytes > UNANSWERED_MAX:
            done(ServerBusy(f"The broker '{self.peer}' has not answered {UNANSWERED_MAX} bytes of requests."))
            return
        self._last_id += 1
        before = self.writer.size + self.writer.encoded_size
        item = make(self._last_id)
        size = self.writer.size + self.writer.encoded_size - before
        self._unanswered_bytes += size
        self._waiting[self._last_id] = parse, done, size
        if item is not None:
            self.writer.add(item)
        self._flush_soon()

    def _answered(
        self, frame: Frame, item: Answer | Refusal | Payloads | Figures | Returned | StoredApart
    ) -> None:
        parse, done = self._take_waiting(item.id)
        if isinstance(item, Refusal):
            done(error_of(item))
            return
        try:
            answer = parse(frame, item)
        except Exception:
            # The connection ends now, and this request does not wait for its end any more.
            done(self._unanswered())
            raise
        done(answer)

    def _stored(self, item: Stored) -> None:
        for request, first, count, scheduled in item.answers:
            _, done = self._take_waiting(request)
            done(Enqueued(first, count, scheduled))

    def _take_waiting(self, request: int) -> tuple[Callable[[Frame, Item], Any], Callable[[Any], None]]:
        """Who reads the answer to a request, and who gets it."""
        waiting = self._waiting.pop(request, None)
        if waiting is None:
            raise FrameError(f"an answer to a request that was not made: {request}")
        parse, done, size = waiting
        self._unanswered_bytes -= size
        return parse, done


def _enlarge_buffer(transport: asyncio.BaseTransport) -> None:
    """Let the system buffer whole frames. It finds the right size for TCP itself."""
    connected: socket.socket | None = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
