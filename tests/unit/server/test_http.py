"""HTTP on the one port: routes, and the bounds that uvicorn leaves to its host."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from unittest.mock import ANY

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bendybus.gateway.memory_budget import MemoryBudget
from bendybus.rest.headers import HEADER_SPELLINGS
from bendybus.server.http import RESERVED_NAMES, Health, http_app
from bendybus.server.http_protocol import (
    HEAD_BYTES_MAX,
    PIECE_BYTES,
    PIECE_WORK_MAX_S,
    HttpHost,
    TurnsOfSentAhead,
)

READY = Health(True)


# -- whose turn it is --------------------------------------------------------------------


@pytest.mark.parametrize("connections", [1, 4])
def test_requests_that_were_sent_ahead_get_half_of_the_time_together(connections):
    turns, at, busy = TurnsOfSentAhead(), 0.0, 0.0
    due = dict.fromkeys(range(connections), 0.0)
    while at < 10:
        each = min(due, key=due.__getitem__)
        at = max(at, due[each]) + 0.01
        busy += 0.01
        due[each] = turns.next(at, 0.01)
    assert 0.45 <= busy / at <= 0.55


def test_a_request_that_waits_for_a_message_does_not_hold_up_those_behind_it_as_long_again():
    turns = TurnsOfSentAhead()
    assert turns.next(60.0, 60.0) == 60.0 + PIECE_WORK_MAX_S


# -- requests ----------------------------------------------------------------------------


async def no_metrics(request) -> PlainTextResponse:
    return PlainTextResponse("none")


@pytest.fixture
def web(run_listener):
    """A listener with the real HTTP application in it."""

    @asynccontextmanager
    async def opened(health=READY, routes=(), head_timeout_s=20.0, metrics=no_metrics, budget=None):
        app = http_app(amqp=asyncio.Protocol, health=lambda: health, metrics=metrics, routes=routes)
        host = HttpHost(app, budget, head_timeout_s=head_timeout_s)
        async with run_listener(http=host.protocol) as running:
            running.host = host
            yield running
            await host.close(grace_s=1)

    return opened


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def _get(running, path: str, tls=None) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await running.call(tls)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return await _answer(reader)


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_health_is_200_only_when_ready(web, client_tls, ready, status) -> None:
    async with web(health=Health(ready, {"stores": 4})) as running:
        for tls in (None, client_tls):
            answered, headers, body = await _get(running, "/health", tls)
            assert answered == status
            assert json.loads(body) == {
                "status": "healthy" if ready else "unhealthy",
                "message": ANY,
                "stores": 4,
            }
            assert "date" in headers


@pytest.mark.parametrize("path", ["/", "/orders", "/health/", "/$servicebus/websocket"])
async def test_what_nobody_serves_is_a_404_with_an_error_document(web, path) -> None:
    async with web() as running:
        status, _, body = await _get(running, path)
        assert status == 404
        detail = f"SubCode=40400. Nothing is served at '{path}'."
        assert f"<Error><Code>404</Code><Detail>{detail}</Detail></Error>" in body.decode()


async def test_routes_handed_in_are_served(web) -> None:
    async with web(routes=[Route("/orders", lambda request: PlainTextResponse("mine"))]) as running:
        assert (await _get(running, "/orders"))[2] == b"mine"


@pytest.mark.parametrize(
    ("request_bytes", "complaint"),
    [
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "more than one Host header"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "more than one Host header"),
        (b"GET /health\r\n", "HTTP/0.9"),
        (b"GET /health\r\n\r\n", "HTTP/0.9"),
        (b"GET /health HTTP/0.9\r\nHost: a\r\n\r\n", "HTTP/0.9"),
        (b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/2.0"),
        (b"GET /heal\0th HTTP/1.1\r\nHost: a\r\n\r\n", ""),
        (b"GET /heal%00th HTTP/1.1\r\nHost: a\r\n\r\n", "NUL"),
        (b"GET /health?x=%00 HTTP/1.1\r\nHost: a\r\n\r\n", "NUL"),
        (b"POST /heal%00th HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "NUL"),
        (
            b"GET /$servicebus/websocket?%00 HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n"
            b"Connection: upgrade\r\n\r\n",
            "NUL",
        ),
    ],
)
async def test_a_head_that_can_be_read_in_two_ways_is_a_400(web, request_bytes, complaint) -> None:
    async with web() as running:
        reader, writer = await running.call()
        writer.write(request_bytes)
        status, headers, body = await _answer(reader)
        assert (status, headers["connection"]) == (400, "close")
        assert complaint in body.decode()
        assert await running.farewell(reader, writer) == b""
        assert (await _get(running, "/health"))[0] == 200


async def test_a_second_request_with_two_hosts_is_refused_too(web) -> None:
    async with web() as running:
        reader, writer = await running.call()
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await _answer(reader))[0] == 200
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        assert (await _answer(reader))[0] == 400


def test_no_entity_is_called_like_a_route() -> None:
    """Every path that the server itself answers is reserved, or no name of an entity."""
    app = http_app(amqp=asyncio.Protocol, health=lambda: READY, metrics=no_metrics)
    paths = {route.path for route in app.routes if "{" not in route.path}
    assert paths
    for path in paths:
        assert path.strip("/").lower() in RESERVED_NAMES


async def test_a_connection_serves_one_request_after_another(web) -> None:
    async with web(head_timeout_s=5) as running:
        reader, writer = await running.call()
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await _answer(reader))[0] == 200
        assert running.listener.counts.accepted == 1


async def test_a_head_without_end_is_cut_off(web) -> None:
    async with web() as running:
        reader, writer = await running.call()
        writer.write(b"GET / HTTP/1.1\r\n")
        answer = asyncio.create_task(running.farewell(reader, writer))
        sent = 0
        while not writer.is_closing() and sent < 50 * HEAD_BYTES_MAX:
            writer.write(b"x-more: " + b"x" * 8000 + b"\r\n")
            sent += 8000
            await asyncio.sleep(0)
        assert sent < 50 * HEAD_BYTES_MAX
        await answer
        assert (await _get(running, "/health"))[0] == 200


CHUNKED = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def _echo(request) -> PlainTextResponse:
    """The names of the headers, as an application sees them after the body, and as they were spelled."""
    assert request.headers["host"] == "localhost"
    await request.body()
    seen = [name.decode() for name, _ in request.scope["headers"]]
    spelled = [name.decode() for name in request.scope["extensions"][HEADER_SPELLINGS]]
    return PlainTextResponse(" ".join(seen + spelled))


@pytest.mark.parametrize("in_one_piece", [True, False])
async def test_trailers_behind_a_body_are_no_headers(web, in_one_piece) -> None:
    # "a recipient MUST NOT merge a field from the trailer section into the header section" [RFC 9110 6.5.1]
    trailers = b"5\r\nhello\r\n0\r\nAuthorization: mine\r\nBrokerProperties: {}\r\n\r\n"

    async with web(routes=[Route("/echo", _echo, methods=["POST"])]) as running:
        reader, writer = await running.call()
        writer.write(CHUNKED + (trailers if in_one_piece else b""))
        if not in_one_piece:
            writer.write(trailers[:12])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(trailers[12:])
        status, _, body = await _answer(reader)
        assert (status, body) == (200, b"host transfer-encoding Host Transfer-Encoding")


@pytest.mark.parametrize(
    "endless", [b"0\r\nx: ", b"0\r\n", b"5;x="], ids=["a trailer", "trailers", "a chunk's extension"]
)
async def test_what_is_neither_head_nor_body_is_bounded_too(web, endless) -> None:
    async with web(routes=[Route("/echo", _echo, methods=["POST"])]) as running:
        reader, writer = await running.call()
        writer.write(CHUNKED + endless)
        more = b"a: b\r\n" if endless.endswith(b"\n") else b"x" * 6
        writer.write(more * (HEAD_BYTES_MAX // 6 + PIECE_BYTES))
        status, _, body = await _answer(reader)
        assert status == 400
        assert b"more than 131072 bytes" in body


@pytest.mark.parametrize("start", [b"GET /hea", b"GET /health HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_never_ends_in_time_is_dropped(web, start) -> None:
    async with web(head_timeout_s=0.05) as running:
        reader, writer = await running.call()
        writer.write(start)
        assert await running.farewell(reader, writer) == b""
        assert (await _get(running, "/health"))[0] == 200


async def test_a_second_head_is_bounded_in_time_as_well(web) -> None:
    async with web(head_timeout_s=0.05) as running:
        reader, writer = await running.call()
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await _answer(reader))[0] == 200
        writer.write(b"GET /hea")
        assert await running.farewell(reader, writer) == b""


async def test_a_request_that_is_not_http_is_answered_400(web) -> None:
    async with web() as running:
        reader, writer = await running.call()
        writer.write(b"GET \x00\x01\x02\r\n\r\n")
        assert (await running.farewell(reader, writer)).startswith(b"HTTP/1.1 400 ")


async def test_closing_lets_the_request_under_way_finish(web) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def slow(request):
        started.set()
        await finish.wait()
        return PlainTextResponse("done")

    async with web(routes=[Route("/slow", slow)]) as running:
        request = asyncio.create_task(_get(running, "/slow"))
        await started.wait()
        closing = asyncio.create_task(running.host.close())
        await asyncio.sleep(0)
        finish.set()
        assert (await request)[2] == b"done"
        await closing


def _echo_routes(answer_after: asyncio.Event | None = None):
    """Answers with the path and the length of the body, if told so when the event has come."""

    async def echo(request):
        body = await request.body()
        if answer_after is not None:
            await answer_after.wait()
        return PlainTextResponse(f"{request.url.path} {len(body)}")

    return [Route("/echo/{number}", echo, methods=["GET", "POST"])]


async def test_requests_sent_ahead_are_answered_in_their_order(web) -> None:
    async with web(routes=_echo_routes()) as running:
        reader, writer = await running.call()
        requests = [
            b"POST /echo/%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (number, size, b"x" * size)
            for number, size in enumerate((0, 5, 20_000, 1, 4096, 100_000, 0) * 20)
        ]
        writer.write(b"".join(requests))
        for number, request in enumerate(requests):
            status, _, body = await _answer(reader)
            assert status == 200
            sent = len(request.partition(b"\r\n\r\n")[2])
            assert body == b"/echo/%d %d" % (number, sent)


async def test_requests_sent_ahead_are_not_parsed_before_the_one_under_way_is_answered(web) -> None:
    answer = asyncio.Event()
    async with web(routes=_echo_routes(answer), head_timeout_s=0.05) as running:
        reader, writer = await running.call()
        count = 5_000
        writer.write(b"".join(b"GET /echo/%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(count)))
        connections = running.host._state.connections
        while not connections or next(iter(connections))._held is None:
            await asyncio.sleep(0)
        (connection,) = connections
        # One piece of what was read; a half-parsed head in it does not count as a slow sender.
        assert len(connection.pipeline) <= PIECE_BYTES // 30
        assert not connection.transport.is_reading()
        await asyncio.sleep(0.1)
        answer.set()
        for number in range(count):
            assert (await _answer(reader))[2] == b"/echo/%d 0" % number
        assert connection.transport.is_reading()


async def test_a_body_beyond_the_memory_budget_is_answered_with_503(web) -> None:
    async def read_all(request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    budget = MemoryBudget(10_000)
    async with web(routes=[Route("/all", read_all, methods=["POST"])], budget=budget) as running:
        reader, writer = await running.call()
        head = b"POST /all HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % 5_000 + b"x" * 5_000)
        assert (await _answer(reader))[0] == 200
        assert budget.used_bytes == 0
        writer.write(head % 50_000 + b"x" * 20_000)
        status, _, body = await _answer(reader)
        assert status == 503 and b"memory" in body
        assert await reader.read() == b""
        assert budget.used_bytes == 0
