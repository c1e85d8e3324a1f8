"""The one-port listener: every kind of guest, honest, silent and hostile, on real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

import pytest

from bendybus.errors import ConfigError
from bendybus.server import listener as listener_module
from fix_async import until

HEADER = b"AMQP\x03\x01\x00\x00"


@pytest.mark.row("B-10")
async def test_one_port_serves_amqp_and_http_with_and_without_tls(run_listener, client_tls) -> None:
    async with run_listener() as running:
        for tls in (None, client_tls):
            for opening, greeting in ((HEADER, b"amqp"), (b"GET / HTTP/1.1\r\n", b"http")):
                reader, writer = await running.call(tls)
                writer.write(opening)
                assert await reader.readexactly(4 + len(opening)) == greeting + opening
                writer.close()
        assert running.listener.counts.tls == 2


async def test_a_second_address_serves_the_same(run_listener) -> None:
    async with run_listener() as running:
        first = running.port
        running.port = await running.listener.listen("127.0.0.1", 0)
        assert running.port != first
        await running.echo()


async def test_an_opening_may_come_byte_by_byte(run_listener, client_tls) -> None:
    async with run_listener() as running:
        for tls in (None, client_tls):
            reader, writer = await running.call(tls)
            for byte in HEADER + b"rest":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert await reader.readexactly(16) == b"amqp" + HEADER + b"rest"
            writer.close()


@pytest.mark.parametrize("garbage", [b"\x00" * 100, b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n", b"GETX / "])
async def test_garbage_is_shown_the_door_at_once(run_listener, client_tls, garbage) -> None:
    async with run_listener() as running:
        for tls in (None, client_tls):
            reader, writer = await running.call(tls)
            writer.write(garbage)
            assert await running.farewell(reader, writer) == b""
        assert running.protocols == []
        assert running.listener.counts.refused == 2
        await running.echo()


@pytest.mark.parametrize("header", [b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01"])
async def test_another_amqp_is_answered_with_the_supported_header(run_listener, header) -> None:  # AMQP 2.2
    async with run_listener() as running:
        reader, writer = await running.call()
        writer.write(header)
        assert await running.farewell(reader, writer) == HEADER


async def test_a_broken_client_hello_harms_nobody(run_listener, client_tls) -> None:
    async with run_listener() as running:
        for junk in (b"\x16\x03\x01\x00\x05junk!", b"\x16" + b"\xff" * 500):
            reader, writer = await running.call()
            writer.write(junk)
            await running.farewell(reader, writer)
        await running.echo(client_tls)
        assert running.listener.half_open == 0
        assert running.listener.counts.refused == 2


async def test_a_client_that_distrusts_the_certificate_harms_nobody(run_listener, client_tls) -> None:
    async with run_listener() as running:
        with pytest.raises(ssl.SSLError):
            await running.call(ssl.create_default_context())
        await running.echo(client_tls)


async def test_without_a_certificate_tls_is_refused(run_listener) -> None:
    async with run_listener(tls=None) as running:
        reader, writer = await running.call()
        writer.write(b"\x16\x03\x01")
        assert await running.farewell(reader, writer) == b""


@pytest.mark.parametrize("said", [b"", b"A", b"AMQP\x03", b"DELET", b"\x16", b"\x16\x03\x01\x02\x00"])
async def test_who_does_not_finish_the_opening_in_time_is_dropped(run_listener, said) -> None:
    async with run_listener(handshake_timeout_s=0.08) as running:
        reader, writer = await running.call()
        writer.write(said)
        await running.farewell(reader, writer)
        assert running.listener.counts.timed_out == 1
        assert running.listener.half_open == 0


async def test_who_speaks_in_time_stays_beyond_it(run_listener) -> None:
    async with run_listener(handshake_timeout_s=0.08) as running:
        reader, writer = await running.call()
        writer.write(HEADER)
        await reader.readexactly(12)
        silent = await running.call()
        await running.farewell(*silent)
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        writer.close()


async def test_who_leaves_without_a_word_is_forgotten(run_listener) -> None:
    async with run_listener() as running:
        for said in (b"", b"AM"):
            _, writer = await running.call()
            writer.write(said)
            writer.close()
            await writer.wait_closed()
        await running.echo()
        # The echo came later through the same door, so the others' ends have been seen.
        await until(lambda: not running.listener.half_open)


async def test_a_crowd_of_silent_connections_leaves_others_untouched(run_listener, client_tls) -> None:
    async with run_listener() as running:
        crowd = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(1500)]
        try:
            await running.echo()
            await running.echo(client_tls)
            assert running.listener.half_open == 1500
            # Silent guests cost no task: there is this one, and the transports' own are done.
            assert len(asyncio.all_tasks()) <= 2
        finally:
            for silent in crowd:
                silent.close()


async def test_when_it_is_full_the_silent_make_room(run_listener) -> None:
    async with run_listener(connections_max=3) as running:
        crowd = [await running.call() for _ in range(3)]
        await running.echo()
        assert running.listener.counts.crowded_out == 1
        assert await running.farewell(*crowd[0]) == b""
        for _, writer in crowd[1:]:
            writer.close()


async def test_when_it_is_full_of_talkers_newcomers_wait_for_a_place(run_listener, monkeypatch) -> None:
    monkeypatch.setattr(listener_module, "ACCEPT_PAUSE_S", 0.01)

    async with run_listener(connections_max=2) as running:
        talkers = []
        for _ in range(2):
            reader, writer = await running.call()
            writer.write(HEADER)
            await reader.readexactly(12)
            talkers.append(writer)
        waiting = asyncio.create_task(running.echo())
        await until(lambda: running.listener.counts.pauses > 0)
        assert running.listener.open_connections == 2
        talkers[0].close()
        await waiting
        talkers[1].close()


async def test_running_out_of_descriptors_pauses_and_recovers(run_listener, monkeypatch) -> None:
    monkeypatch.setattr(listener_module, "ACCEPT_PAUSE_S", 0.01)
    accept, refusals = socket.socket.accept, [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]

    def without_descriptors(listening: socket.socket) -> tuple[socket.socket, object]:
        if refusals:
            raise OSError(refusals.pop(0), "no room")
        return accept(listening)

    async with run_listener() as running:
        monkeypatch.setattr(socket.socket, "accept", without_descriptors)
        await running.echo()
        # An aborted connection is no shortage: only the first two made it pause.
        assert running.listener.counts.pauses == 2


async def test_connections_never_take_the_last_descriptors(run_listener, monkeypatch) -> None:
    monkeypatch.setattr(listener_module, "descriptor_limit", lambda: 6)

    async with run_listener(connections_max=1000) as running:
        for _ in range(4):
            await running.call()
        await running.echo()
        assert running.listener.counts.crowded_out == 2


async def test_closed_connections_are_not_counted(run_listener, client_tls) -> None:
    async with run_listener() as running:
        for tls in (None, client_tls):
            await running.echo(tls)
        for protocol in running.protocols:
            await protocol.lost
        await until(lambda: not running.listener.open_connections)


async def test_draining_shuts_the_door_and_keeps_the_guests(run_listener) -> None:
    async with run_listener() as running:
        reader, writer = await running.call()
        writer.write(HEADER)
        await reader.readexactly(12)
        silent = await running.call()
        await until(lambda: running.listener.half_open == 1)
        running.listener.stop_accepting()
        assert await running.farewell(*silent) == b""
        with pytest.raises(ConnectionError):
            await running.call()
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        closing = asyncio.create_task(running.listener.close())
        assert await running.farewell(reader, writer) == b""
        await closing
        assert await running.protocols[0].lost is None


@pytest.mark.parametrize("turns", range(4))
async def test_who_has_just_spoken_when_the_door_is_shut_is_not_let_in(run_listener, turns) -> None:
    async with run_listener() as running:
        listener = running.listener
        streams = await running.call()
        streams[1].write(HEADER)
        while not any(arrival.task for arrival in listener._arrivals.values()):
            await asyncio.sleep(0)
        # Its transport is being made, however far that has come.
        for _ in range(turns):
            await asyncio.sleep(0)
        inside = len(running.protocols)
        listener.stop_accepting()
        if not inside:
            assert await running.farewell(*streams) == b""
        assert len(running.protocols) == inside


async def test_closing_lets_the_last_bytes_leave(run_listener) -> None:
    async with run_listener() as running:
        reader, writer = await running.call()
        writer.write(HEADER)
        await reader.readexactly(12)
        running.protocols[0].transport.write(b"x" * 5_000_000)
        closing = asyncio.create_task(running.listener.close())
        assert len(await running.farewell(reader, writer)) == 5_000_000
        await closing


async def test_closing_does_not_wait_for_a_peer_that_never_reads(run_listener) -> None:
    async with run_listener() as running:
        with socket.create_connection(("127.0.0.1", running.port)) as deaf:
            deaf.sendall(HEADER)
            await until(lambda: bool(running.protocols))
            running.protocols[0].transport.write(b"x" * 20_000_000)
            await running.listener.close(grace_s=0.05)
            await running.protocols[0].lost


async def test_a_taken_port_is_told_to_the_operator(run_listener) -> None:
    async with run_listener() as running:
        with pytest.raises(ConfigError, match=f"cannot listen on .*:{running.port}: .*in use"):
            await running.listener.listen("127.0.0.1", running.port)
        await running.echo()


async def test_small_writes_are_not_held_back(run_listener) -> None:
    async with run_listener() as running:
        reader, writer = await running.call()
        writer.write(HEADER)
        await reader.readexactly(12)
        served = running.protocols[0].transport.get_extra_info("socket")
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
