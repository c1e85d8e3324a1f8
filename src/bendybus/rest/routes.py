"""REST messages: the routes, and the path from a request to its answer.

Every request takes the same path: find the operation (calls.py), check the caller's rights
(auth/http.py), check that the entity exists and allows it, then perform the operation. A
refusal is a `BrokerError`, and its answer has an Error body (errors.py). Receiving: receiving.py. Locked and
deferred messages: settling.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qs, quote
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from bendybus.auth.http import authorise
from bendybus.auth.key_ring import KeyRing
from bendybus.broker.broker import Broker
from bendybus.broker.clock import now
from bendybus.broker.queue import Queue
from bendybus.broker.topic import SendTarget
from bendybus.domain.commands import Enqueue
from bendybus.domain.messages import SubQueue
from bendybus.domain.session_commands import SessionAccepted
from bendybus.errors import (
    ArgumentError,
    BrokerError,
    OperationTimeout,
    Unavailable,
)
from bendybus.http_bodies import RequestBody
from bendybus.rest.calls import Operation, RestCall
from bendybus.rest.errors import error_response, fault_response
from bendybus.rest.headers import HEADER_SPELLINGS
from bendybus.rest.messages import Admitted, admit_request
from bendybus.rest.receiving import Received, Reception
from bendybus.rest.sessions import HeldSession, SessionReception, told_of
from bendybus.rest.settling import receive_deferred, settle

__all__ = ["RestMessages"]

logger = logging.getLogger(__name__)

# What old clients send and the documentation shows; who asks for more gets an hour.
TIMEOUT_DEFAULT_S: Final = 60.0
TIMEOUT_MAX_S: Final = 3600.0

# Nothing but a send needs a body; a few clients send an empty document.
BODY_MAX: Final = 64 * 1024

SESSION_OPERATIONS: Final = (
    *(Operation.ACCEPT_SESSION, Operation.RENEW_SESSION, Operation.RELEASE_SESSION),
    *(Operation.GET_STATE, Operation.SET_STATE, Operation.CLEAR_STATE),
)

_HOST: Final = re.compile(r"[A-Za-z0-9.\-_:\[\]]{1,255}")


class RestMessages(BaseRoute):
    """A route for all of the REST API. `stop` before the server closes its connections."""

    def __init__(self, broker: Broker, keys: KeyRing) -> None:
        self._broker = broker
        self._keys = keys
        self._reception = Reception()
        self._sessions = SessionReception(self._reception.stopped)

    def stop(self) -> None:
        """Answer all requests that wait for a message."""
        self._reception.stop()

    # -- routing ------------------------------------------------------------------

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        call = RestCall.parse(scope["method"], scope["raw_path"].decode("ascii", "replace"))
        if call is None:
            return Match.NONE, {}
        return Match.FULL, {"bendybus.call": call}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: RestCall = scope["bendybus.call"]
        request = Request(scope)
        body = RequestBody(receive, request.headers.get("content-length"))
        try:
            response = await self._answer(call, request, body)
        except BrokerError as error:
            response = error_response(error, call.path)
        except Exception:
            logger.exception("%s of '%s' failed", call.operation.value, call.entity)
            response = fault_response(call.path)
        finally:
            body.close()
        if not await body.discard():
            response.headers["connection"] = "close"
        await response(scope, receive, send)

    async def _answer(self, call: RestCall, request: Request, body: RequestBody) -> Response:
        # Whoever signs for a URL must hold a rule over its entity: `q/messages` may be a queue too.
        keys = self._keys.reaching(call.entity)
        authorise(request.headers, keys, call.path, call.operation.right, now())
        if call.operation is Operation.SEND:
            return await self._send(call, self._broker.find_target(call.entity), request, body)
        queue = self._broker.find(call.entity)
        await _suffer(queue)
        in_session = bool(call.session_lock) or call.operation is Operation.ACCEPT_SESSION
        queue.refuse_receiver(call.subqueue, sessionful=in_session)
        if call.operation in SESSION_OPERATIONS:
            return await self._of_session(call, queue, request, body)
        await body.read(BODY_MAX, f"A request of this kind has a body of at most {BODY_MAX} bytes.")
        if call.operation in (Operation.PEEK_LOCK, Operation.RECEIVE_AND_DELETE):
            return await self._receive(call, queue, request, body)
        if call.operation in (Operation.LOCK_DEFERRED, Operation.TAKE_DEFERRED):
            deletes = call.operation is Operation.TAKE_DEFERRED
            return _answer(request, call, queue, await receive_deferred(call, queue), deletes=deletes)
        await settle(call, queue, parse_qs(request.url.query))
        return Response(status_code=200)

    # -- operations ---------------------------------------------------------------

    async def _send(
        self, call: RestCall, entity: SendTarget, request: Request, body: RequestBody
    ) -> Response:
        try:
            return await self._enqueue(call, entity, request, body)
        except BrokerError as refusal:
            entity.count_refused(refusal)
            raise

    async def _enqueue(
        self, call: RestCall, entity: SendTarget, request: Request, body: RequestBody
    ) -> Response:
        entity.refuse_sending(call.subqueue)
        await _suffer(entity)
        timeout_s = _timeout_s(request) or TIMEOUT_DEFAULT_S
        description = entity.description
        limit = description.max_message_bytes
        payload = await body.read(
            limit, f"The message exceeds the limit of {limit} bytes that '{entity.path}' accepts."
        )
        admitted = admit_request(
            _spelled_headers(request.scope),
            payload,
            entity.now(),
            description,
            partitioned=len(entity.hosts) > 1,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await _enqueue(entity, admitted)
        except TimeoutError:
            raise OperationTimeout(
                f"'{entity.path}' did not take the message in {timeout_s:g} s. It may still do so."
            ) from None
        response = Response(status_code=201)
        content_type = request.headers.get("content-type")
        if content_type is not None:
            response.headers["content-type"] = content_type
        return response

    async def _receive(self, call: RestCall, queue: Queue, request: Request, body: RequestBody) -> Response:
        deletes, timeout_s = call.operation is Operation.RECEIVE_AND_DELETE, _timeout_s(request)
        if call.session_lock:
            held = HeldSession(queue, call)
            received = await self._sessions.receive(held, timeout_s, body, deletes=deletes)
        else:
            received = await self._reception.receive(queue, call.subqueue, timeout_s, body, deletes=deletes)
        if received is None:
            return Response(status_code=204)
        return _answer(request, call, queue, received, deletes=deletes)

    # -- sessions -----------------------------------------------------------------

    async def _of_session(
        self, call: RestCall, queue: Queue, request: Request, body: RequestBody
    ) -> Response:
        limit = queue.description.max_message_bytes if call.operation is Operation.SET_STATE else BODY_MAX
        given = await body.read(limit, f"A request of this kind has a body of at most {limit} bytes.")
        if call.operation is Operation.ACCEPT_SESSION:
            accepted = await self._sessions.accept(queue, call.session_id, _timeout_s(request), body)
            return Response(status_code=204) if accepted is None else _held(request, queue, accepted, 201)
        held = HeldSession(queue, call)
        match call.operation:
            case Operation.RENEW_SESSION:
                return _held(request, queue, await held.renew(), 200)
            case Operation.RELEASE_SESSION:
                await held.release()
            case Operation.SET_STATE:
                await held.set_state(given)
            case Operation.CLEAR_STATE:
                await held.set_state(None)
            case _:
                state = await held.state()
                if state is None:
                    return Response(status_code=204)
                return Response(state, media_type="application/octet-stream")
        return Response(status_code=200)


async def _enqueue(entity: SendTarget, admitted: Admitted) -> None:
    """Enqueue in the partition of the key; without a key, in any that is available (P-16)."""
    key = admitted.key if len(entity.hosts) > 1 else None
    messages = admitted.messages
    for attempts_left in reversed(range(len(entity.hosts))):
        try:
            host = entity.host_for(key)
            if entity.faults is not None:
                entity.faults.refuse_partition(entity.path, host.number)
            await host.ask(Enqueue(messages, admitted.identities))
        except Unavailable:
            if key is not None or not attempts_left:
                raise
            messages = [message.unsent() for message in messages]
        else:
            return


# -- requests and answers ---------------------------------------------------------


def _answer(request: Request, call: RestCall, queue: Queue, received: Received, *, deletes: bool) -> Response:
    """A message that was received."""
    response = Response(received.shown.body, status_code=200 if deletes else 201)
    response.raw_headers.extend(received.shown.headers)
    if not deletes:
        response.raw_headers.append((b"Location", _location(request, call, queue, received).encode()))
    return response


def _timeout_s(request: Request) -> float:
    given = parse_qs(request.url.query).get("timeout")
    if not given:
        return TIMEOUT_DEFAULT_S
    try:
        timeout_s = float(given[-1])
    except ValueError:
        timeout_s = math.nan
    if not timeout_s >= 0:
        raise ArgumentError(f"The timeout must be a number of seconds, not '{given[-1][:60]}'.")
    return min(timeout_s, TIMEOUT_MAX_S)


def _spelled_headers(scope: Scope) -> Iterable[tuple[bytes, bytes]]:
    """The headers under the names that the client wrote, where the HTTP host kept them."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    spellings = scope.get("extensions", {}).get(HEADER_SPELLINGS)
    if spellings is None:
        return headers
    return [(spelling, value) for spelling, (_, value) in zip(spellings, headers, strict=True)]


def _location(request: Request, call: RestCall, queue: Queue, received: Received) -> str:
    """Where the locked message is now; `/subscriptions/` and `/messages/` as an old client looks for them."""
    subqueue = {
        SubQueue.MAIN: "",
        SubQueue.DEAD_LETTER: "/$DeadLetterQueue",
        SubQueue.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue",
    }[call.subqueue]
    token = UUID(bytes_le=received.lock_token)
    session = f"/sessions/{quote(call.session_id, safe='')}/{call.session_lock}" if call.session_lock else ""
    below = f"{subqueue}{session}/messages/{received.sequence_number}/{token}"
    return _address(request, queue) + below


def _held(request: Request, queue: Queue, accepted: SessionAccepted, status: int) -> Response:
    """A session that the client holds, and where it is."""
    assert accepted.lock is not None
    token, session_id = UUID(bytes_le=accepted.lock.token), quote(accepted.lock.session_id, safe="")
    response = Response(status_code=status)
    response.raw_headers.append((b"BrokerProperties", told_of(accepted)))
    location = f"{_address(request, queue)}/sessions/{session_id}/{token}"
    response.raw_headers.append((b"Location", location.encode()))
    return response


def _address(request: Request, queue: Queue) -> str:
    """The entity as this client reaches it."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        address = request.scope.get("server") or ("localhost", None)
        host = f"{address[0]}:{address[1]}" if address[1] else address[0]
    return f"{request.url.scheme}://{host}/" + quote(queue.path).replace("/Subscriptions/", "/subscriptions/")


async def _suffer(entity: SendTarget) -> None:
    """Be as late and as busy as a test has asked for."""
    if entity.faults is not None:
        entity.faults.refuse_operation(entity.path)
        await entity.faults.delay()
