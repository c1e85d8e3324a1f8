"""An event loop for protocols without sockets, and the transport that they write to.

Time stands still: timers are never due, so an input costs no waiting and leaves nothing behind. Whatever
goes wrong in a callback, or is logged as an error, is raised at the end of the input.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import cache
from typing import Any, TypeVar

from starlette.types import ASGIApp

from bendybus.server.http_protocol import HttpHost

__all__ = ["StillLoop", "Wire", "answers_to"]

T = TypeVar("T")

# Turns of the loop that a peer's bytes and their answers may take. Bounded, because a protocol could go on
# forever.
TURNS_MAX = 2000


class StillLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._failures: list[BaseException | str] = []
        self.set_exception_handler(self._note)
        # uvicorn logs what an application raises, and answers 500.
        handler = logging.Handler(logging.ERROR)
        handler.emit = self._note_record  # type: ignore[method-assign]
        for name in ("bendybus", "uvicorn.error"):
            logging.getLogger(name).addHandler(handler)
            logging.getLogger(name).propagate = False

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(when, callback, args, self, context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end; raise what went wrong on the way."""
        asyncio.set_event_loop(self)
        result = self.run_until_complete(work)
        if self._failures:
            failures, self._failures = self._failures, []
            first = failures[0]
            raise first if isinstance(first, BaseException) else AssertionError(first)
        return result

    async def settle(self) -> None:
        """Let everything happen that the bytes so far lead to."""
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if not self._ready:  # type: ignore[attr-defined]  # asyncio's own; this task is not in it
                return
        raise AssertionError(f"the protocol is not done after {TURNS_MAX} turns of the loop")

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(context.get("exception") or str(context["message"]))

    def _note_record(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._failures.append(error or record.getMessage())


class Wire(asyncio.Transport):
    """A transport whose peer reads everything at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5), "sockname": ("192.0.2.2", 80)})
        self.protocol: asyncio.BaseProtocol
        self.written = bytearray()
        self.reading = True
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # As asyncio's: what is written after the close is dropped.
        if not self._closing:
            self.written += data

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...


@cache
def _loop() -> StillLoop:
    return StillLoop()


@cache
def _host(app: ASGIApp) -> HttpHost:
    return HttpHost(app)


def answers_to(app: ASGIApp, data: bytes, *, upgrade: bytes = b"") -> bytes:
    """All that a peer of this application reads when it writes `data`, which arrives in two pieces.

    With `upgrade`, a request that comes before, the data is for the protocol that takes over the connection.
    """
    return _loop().run(_serve(app, data, upgrade))


async def _serve(app: ASGIApp, data: bytes, upgrade: bytes) -> bytes:
    loop, wire = _loop(), Wire()
    protocol: asyncio.Protocol = _host(app).protocol()
    wire.set_protocol(protocol)
    protocol.connection_made(wire)
    if upgrade:
        protocol.data_received(upgrade)
        await loop.settle()
        assert wire.protocol is not protocol
        assert isinstance(wire.protocol, asyncio.Protocol)
        protocol = wire.protocol
    half = len(data) // 2
    for piece in (data[:half], data[half:]):
        if piece and not wire.is_closing() and wire.protocol is protocol:
            protocol.data_received(piece)
            await loop.settle()
    wire.close()
    protocol.connection_lost(None)
    await loop.settle()
    return bytes(wire.written)
