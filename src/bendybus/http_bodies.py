"""Request bodies, bounded in size and in time before they take any memory.

What is said to be too long is refused on its Content-Length alone; what turns
out to be too long, as soon as it does. A refused body is read on for a little
while and thrown away, since a client that is still writing sees no answer; after
that the connection is closed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from bendybus.errors import ArgumentError, BrokerError, MessageSizeExceeded, OperationTimeout

__all__ = ["RequestBody", "json_body"]

# How long a body may take: as long as a request's head, and besides at a modem's pace.
GRACE_S: Final = 20.0
RATE_MIN: Final = 8 * 1024

# Thrown away for the sake of the answer: what a client has likely sent before it looks for one.
DISCARD_BYTES_MAX: Final = 4 * 1024 * 1024
DISCARD_S: Final = 5.0

# A command to the server's own API is one small object.
JSON_BYTES_MAX: Final = 4096


class RequestBody:
    """The body of one request, and after its end the client's going away."""

    def __init__(self, receive: Receive, content_length: str | None) -> None:
        self._receive = receive
        self._announced = content_length
        self._received = 0
        self._ended = False
        self._broken = False
        """The rest of it will not come, or not in time: nothing can follow it on its connection."""
        self._gone: asyncio.Task[None] | None = None

    # -- the body -----------------------------------------------------------------

    async def read(self, size_max: int, too_large: str) -> bytes:
        """All of it; refuses what is longer than `size_max` with this text."""
        announced = self._announced
        if (
            announced is not None
            and announced.isascii()
            and announced.isdigit()
            and int(announced[:19]) > size_max
        ):
            raise MessageSizeExceeded(too_large)
        chunks: list[bytes] = []
        started = asyncio.get_running_loop().time()
        while not self._ended:
            deadline = started + GRACE_S + self._received / RATE_MIN
            chunk = await self._next(deadline)
            if self._received > size_max:
                raise MessageSizeExceeded(too_large)
            chunks.append(chunk)
        return b"".join(chunks)

    async def read_document(self, size_max: int) -> bytes:
        """All of a description; one that is too long is a wrong argument, and no message beyond a quota."""
        try:
            return await self.read(size_max, f"The body has more than {size_max} bytes.")
        except MessageSizeExceeded as refusal:
            raise ArgumentError(str(refusal)) from None

    async def discard(self) -> bool:
        """Throw the rest away; False when it is too much and the connection must not be used again."""
        deadline = asyncio.get_running_loop().time() + DISCARD_S
        try:
            while not self._ended and not self._broken:
                await self._next(deadline)
                if self._received > DISCARD_BYTES_MAX:
                    return False
        except BrokerError:
            return False
        return not self._broken

    async def _next(self, deadline: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                event = await self._receive()
        except TimeoutError:
            self._broken = True
            raise OperationTimeout("The request's body did not arrive in time.") from None
        if event["type"] == "http.disconnect":
            self._broken = True
            raise ArgumentError("The client went away before its request was complete.")
        chunk: bytes = event.get("body", b"")
        self._received += len(chunk)
        self._ended = not event.get("more_body", False)
        return chunk

    # -- the client ---------------------------------------------------------------

    def gone(self) -> asyncio.Task[None]:
        """Done when the client has gone away; call `close` in the end. For after the body's end."""
        assert self._ended
        if self._gone is None:
            self._gone = asyncio.create_task(self._until_gone())
        return self._gone

    @property
    def client_is_gone(self) -> bool:
        """As far as anybody asked (`gone`)."""
        return self._gone is not None and self._gone.done()

    def close(self) -> None:
        if self._gone is not None:
            self._gone.cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def json_body(request: Request) -> object:
    """The body of a small request; `ArgumentError` when it is none."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > JSON_BYTES_MAX:
                raise ArgumentError(f"The body has more than {JSON_BYTES_MAX} bytes.")
        return json.loads(body)
    except ClientDisconnect:
        # Nobody will read this; it only must not look like a fault of ours.
        raise ArgumentError("The body ended before its end.") from None
    except (ValueError, RecursionError):
        raise ArgumentError("The body must be JSON.") from None
