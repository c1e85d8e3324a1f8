"""AMQP over WebSocket: a real client end to end, and the transport against a scripted WebSocket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import websockets
from starlette.responses import Response

from bendybus.server import websocket as websocket_module
from bendybus.server.http import Health, http_app
from bendybus.server.http_protocol import HttpHost
from bendybus.server.websocket import MESSAGE_BYTES_MAX, WebSocketTransport

HEADER = b"AMQP\x03\x01\x00\x00"


class Bytes(asyncio.Protocol):
    """Echoes, keeps everything it is told, and can be asked to wait for it."""

    def __init__(self) -> None:
        self.received = b""
        self.calls: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert data
        if data == b"close, please":
            self.transport.write(b"bye")
            self.transport.close()
            return
        if data == b"fail, please":
            raise RuntimeError("as asked")
        self.received += data
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@pytest.fixture
def bridge(run_listener):
    """A listener whose WebSockets lead to `Bytes` protocols, collected in `bridged`."""

    @asynccontextmanager
    async def opened():
        bridged: list[Bytes] = []

        def amqp() -> Bytes:
            bridged.append(Bytes())
            return bridged[-1]

        async def metrics(request) -> Response:
            return Response()

        app = http_app(amqp=amqp, health=lambda: Health(True), metrics=metrics)
        host = HttpHost(app)
        async with run_listener(http=host.protocol) as running:
            running.bridged = bridged
            yield running
            await host.close(grace_s=1)

    return opened


def _connect(running, path="/$servicebus/websocket", tls=None, subprotocols=("AMQPWSB10",)):
    scheme = "wss" if tls else "ws"
    host = "localhost" if tls else "127.0.0.1"
    return websockets.connect(
        f"{scheme}://{host}:{running.port}{path}",
        ssl=tls,
        host="127.0.0.1",
        subprotocols=list(subprotocols) or None,
        max_size=None,
    )


async def _read(client, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await client.recv()
    return data


@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("start", ["/$servicebus", "/%24servicebus"])
async def test_the_stream_flows_both_ways_with_and_without_tls(bridge, client_tls, start, ending) -> None:
    async with bridge() as running:
        for tls in (None, client_tls):
            async with _connect(running, f"{start}/websocket{ending}", tls) as client:
                assert client.subprotocol == "AMQPWSB10"
                await client.send(HEADER)
                assert await _read(client, 8) == HEADER
            assert await running.bridged[-1].lost is None


@pytest.mark.parametrize(
    ("offered", "answered"),
    [
        (("AMQPWSB10",), "AMQPWSB10"),
        # As .NET and go do.
        (("amqp",), "amqp"),
        (("amqp", "AMQPWSB10"), "AMQPWSB10"),
        (("mqtt", "amqp"), "amqp"),
    ],
)
async def test_the_subprotocol_that_was_offered_comes_back(bridge, offered, answered) -> None:
    async with bridge() as running, _connect(running, subprotocols=offered) as client:
        assert client.subprotocol == answered
        await client.send(HEADER)
        assert await _read(client, 8) == HEADER


async def test_a_client_may_name_the_whole_address(bridge) -> None:
    # As the Java SDK does. "A server MUST accept the absolute-form in requests" [RFC 9112 3.2.2]
    async with bridge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(
            b"GET https://127.0.0.1/$servicebus/websocket HTTP/1.1\r\nConnection: Upgrade,Keep-Alive\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Protocol: AMQPWSB10\r\nHost: 127.0.0.1\r\n\r\n"
        )
        status = await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert b" 101 " in status


async def test_messages_are_pieces_of_one_stream(bridge) -> None:
    async with bridge() as running, _connect(running) as client:
        sent = b"".join(bytes([number % 251]) * 1000 for number in range(300))
        for start in range(0, len(sent), 4096):
            await client.send(sent[start : start + 4096])
        await client.send(b"")
        await client.send([b"frag", b"", b"mented"])
        expected = sent + b"fragmented"
        assert await _read(client, len(expected)) == expected
        assert running.bridged[0].received == expected


async def test_no_message_is_longer_than_clients_read_by_default(bridge) -> None:
    async with bridge() as running, _connect(running) as client:
        await client.send(b"x" * 1_000_000)
        lengths = []
        while sum(lengths) < 1_000_000:
            lengths.append(len(await client.recv()))
        assert max(lengths) <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize("subprotocols", [(), ("mqtt",), ("AMQP",)])
async def test_any_other_subprotocol_is_refused(bridge, subprotocols) -> None:
    async with bridge() as running:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await _connect(running, subprotocols=subprotocols)
        assert refused.value.response.status_code == 400
        assert b"AMQPWSB10 or amqp" in refused.value.response.body
        assert running.bridged == []


async def test_a_websocket_anywhere_else_is_a_404(bridge) -> None:
    async with bridge() as running:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await _connect(running, "/somewhere/else")
        assert refused.value.response.status_code == 404


async def test_the_protocols_last_words_reach_the_client(bridge) -> None:
    async with bridge() as running, _connect(running) as client:
        await client.send(b"close, please")
        assert await client.recv() == b"bye"
        with pytest.raises(websockets.ConnectionClosedOK):
            await client.recv()
        assert await running.bridged[0].lost is None


async def test_text_is_not_accepted(bridge) -> None:
    async with bridge() as running, _connect(running) as client:
        await client.send("text")
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await client.recv()
        assert closed.value.rcvd.code == 1003
        await running.bridged[0].lost


async def test_a_failing_protocol_loses_its_own_connection_and_no_other(bridge) -> None:
    async with bridge() as running, _connect(running) as other, _connect(running) as client:
        await client.send(b"fail, please")
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await client.recv()
        assert closed.value.rcvd.code == 1011
        assert isinstance(await running.bridged[1].lost, RuntimeError)
        await other.send(b"well")
        assert await other.recv() == b"well"


async def test_a_client_that_vanishes_is_noticed(bridge) -> None:
    async with bridge() as running:
        client = await _connect(running)
        await client.send(HEADER)
        await client.recv()
        client.transport.abort()
        await running.bridged[0].lost
        await client.wait_closed()


class ScriptedWebSocket:
    """A WebSocket whose peer reads only when told to."""

    def __init__(self) -> None:
        self.scope = {"client": ("10.0.0.1", 1234), "server": ("10.0.0.2", 5672)}
        self.incoming: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.room = asyncio.Semaphore(0)
        self.closed_with: int | None = None

    async def receive(self) -> dict[str, object]:
        return await self.incoming.get()

    async def send_bytes(self, data: bytes) -> None:
        await self.room.acquire()
        self.sent.append(data)

    async def close(self, code: int) -> None:
        self.closed_with = code

    def deliver(self, data: bytes) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "bytes": data})

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def _transport():
    websocket, protocol = ScriptedWebSocket(), Bytes()
    transport = WebSocketTransport(websocket, protocol)
    running = asyncio.create_task(transport.run())
    await _settle()
    yield websocket, protocol, transport
    websocket.leave()
    await running
    assert protocol.lost.done()


async def test_a_slow_peer_pauses_and_resumes_the_protocol() -> None:
    async with _transport() as (websocket, protocol, transport):
        transport.set_write_buffer_limits(high=100_000, low=40_000)
        assert transport.get_write_buffer_limits() == (40_000, 100_000)
        transport.write(b"x" * 100_000)
        assert protocol.calls == []
        transport.write(b"x")
        transport.write(b"x")
        assert protocol.calls == ["pause"]
        websocket.room.release()
        await _settle()
        assert protocol.calls == ["pause"]
        websocket.room.release()
        await _settle()
        assert protocol.calls == ["pause", "resume"]
        assert transport.get_write_buffer_size() == 100_002 - 2 * MESSAGE_BYTES_MAX


async def test_what_is_written_while_a_piece_is_on_its_way_is_not_lost() -> None:
    async with _transport() as (websocket, _, transport):
        transport.write(b"first")
        await _settle()
        transport.write(memoryview(b" second"))
        transport.close()
        transport.write(b" never")
        websocket.room.release()
        websocket.room.release()
        await _settle()
        assert b"".join(websocket.sent) == b"first second"
        assert websocket.closed_with == 1000


async def test_a_paused_reader_leaves_messages_where_they_are() -> None:
    async with _transport() as (websocket, protocol, transport):
        websocket.deliver(b"one")
        await _settle()
        transport.pause_reading()
        # The read that was already under way may still come through; the one after it may not.
        websocket.deliver(b"two")
        websocket.deliver(b"three")
        await _settle()
        assert not transport.is_reading()
        assert b"three" not in protocol.received
        transport.resume_reading()
        await _settle()
        assert protocol.received == b"onetwothree"


async def test_abort_drops_what_was_not_sent() -> None:
    async with _transport() as (websocket, protocol, transport):
        transport.write(b"x" * 100)
        transport.abort()
        assert transport.is_closing()
        await protocol.lost
        assert websocket.sent == []


async def test_abort_ends_a_connection_whose_peer_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_module, "CLOSE_GRACE_S", 0.01)
    async with _transport() as (_, protocol, transport):
        transport.write(b"never read")
        await _settle()
        transport.abort()
        assert await asyncio.wait_for(asyncio.shield(protocol.lost), 5) is None


async def test_the_peers_address_is_known() -> None:
    async with _transport() as (_, __, transport):
        assert transport.get_extra_info("peername") == ("10.0.0.1", 1234)
        assert transport.get_extra_info("socket") is None


async def test_limits_that_cannot_be_are_refused() -> None:
    async with _transport() as (_, __, transport):
        with pytest.raises(ValueError, match="at least low"):
            transport.set_write_buffer_limits(high=1, low=2)
