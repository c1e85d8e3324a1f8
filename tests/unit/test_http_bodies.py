"""A body is bounded in size and in time before it takes any memory."""

from __future__ import annotations

import asyncio

import pytest

from bendybus import http_bodies
from bendybus.errors import ArgumentError, MessageSizeExceeded, OperationTimeout
from bendybus.http_bodies import RequestBody


class Wire:
    """Gives chunks of a body one by one; after the last it is as silent as a waiting client."""

    def __init__(self, *chunks: bytes, ends: bool = True) -> None:
        self._chunks = list(chunks)
        self._ends = ends
        self.hung_up = asyncio.Event()
        self.given = 0

    async def receive(self):
        if not self._chunks:
            await self.hung_up.wait()
            return {"type": "http.disconnect"}
        self.given += 1
        chunk = self._chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks) or not self._ends}


async def test_a_body_is_all_its_chunks():
    body = RequestBody(Wire(b"a", b"b", b"").receive, None)
    assert await body.read(2, "too large") == b"ab"
    assert await body.discard()


async def test_a_body_announced_too_large_is_refused_unread():
    wire = Wire(b"x" * 11)
    body = RequestBody(wire.receive, "11")
    with pytest.raises(MessageSizeExceeded, match="too large"):
        await body.read(10, "too large")
    assert wire.given == 0
    assert await body.discard()


async def test_a_body_that_grows_too_large_is_refused_as_soon_as_it_does():
    wire = Wire(*[b"x" * 6] * 5)
    body = RequestBody(wire.receive, None)
    with pytest.raises(MessageSizeExceeded):
        await body.read(10, "too large")
    assert wire.given == 2
    assert await body.discard()
    assert wire.given == 5


async def test_a_refused_body_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(http_bodies, "DISCARD_BYTES_MAX", 20)

    wire = Wire(*[b"x" * 6] * 50)
    assert not await RequestBody(wire.receive, "300").discard()
    assert wire.given == 4


async def test_a_body_that_stops_arriving_is_given_up(monkeypatch):
    monkeypatch.setattr(http_bodies, "GRACE_S", 0.01)

    body = RequestBody(Wire(b"x", ends=False).receive, None)
    with pytest.raises(OperationTimeout):
        await body.read(10, "too large")
    assert not await body.discard(), "what may still come would be taken for the next request"


async def test_a_client_that_goes_away_inside_its_body_is_noticed():
    wire = Wire(b"x", ends=False)
    wire.hung_up.set()
    body = RequestBody(wire.receive, None)
    with pytest.raises(ArgumentError, match="went away"):
        await body.read(10, "too large")
    assert not await body.discard()


async def test_a_client_that_goes_away_later_is_noticed_too():
    wire = Wire(b"")
    body = RequestBody(wire.receive, None)
    await body.read(0, "too large")
    gone = body.gone()
    assert not body.client_is_gone
    wire.hung_up.set()
    await gone
    assert body.client_is_gone
    body.close()
