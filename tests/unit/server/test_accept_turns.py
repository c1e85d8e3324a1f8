"""Processes that share a port: each gets its share of the connections."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bendybus.server.accept_turns import AcceptTurns
from bendybus.server.sockets import bind
from fix_async import until

HEADER = b"AMQP\x03\x01\x00\x00"


def test_the_next_connection_belongs_to_the_process_with_the_fewest(tmp_path: Path) -> None:
    first, second = (AcceptTurns(tmp_path, 2, own) for own in range(2))
    assert not first.is_anothers and not second.is_anothers
    first.note(1)
    assert first.is_anothers and not second.is_anothers
    second.note(2)
    assert not first.is_anothers and second.is_anothers


def test_nobody_waits_for_a_process_that_accepts_nothing(tmp_path: Path) -> None:
    first, second = (AcceptTurns(tmp_path, 2, own) for own in range(2))
    first.note(5)
    second.leave()
    assert not first.is_anothers


def test_a_process_that_is_started_again_has_no_connections(tmp_path: Path) -> None:
    first, second = (AcceptTurns(tmp_path, 2, own) for own in range(2))
    first.note(5)
    second.note(5)
    AcceptTurns(tmp_path, 2, own=1)
    assert first.is_anothers


@pytest.mark.row("N-02")
async def test_a_burst_of_connections_is_spread_over_the_processes(run_listener, tmp_path: Path) -> None:
    async with AsyncExitStack() as exits:
        sharing = [await exits.enter_async_context(run_listener()) for _ in range(4)]
        (shared,) = bind("127.0.0.1", 0)
        with shared:
            port = shared.getsockname()[1]
            # They wait already when the first process looks.
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
            for own, running in enumerate(sharing):
                running.listener.listen_on([shared.dup()], AcceptTurns(tmp_path, 4, own))
            for client in clients:
                exits.callback(client.close)
                client.sendall(HEADER)
            await until(lambda: sum(running.listener.open_connections for running in sharing) == 16)
        assert [running.listener.open_connections for running in sharing] == [4, 4, 4, 4]


async def test_connections_that_no_other_process_takes_are_taken(run_listener, tmp_path: Path) -> None:
    # A process with fewer connections, which is busy or stopped.
    AcceptTurns(tmp_path, 2, own=1)
    async with run_listener() as running:
        (shared,) = bind("127.0.0.1", 0)
        running.port = running.listener.listen_on([shared], AcceptTurns(tmp_path, 2, own=0))
        await asyncio.gather(*(running.echo() for _ in range(40)))


async def test_closed_connections_do_not_count(run_listener, tmp_path: Path) -> None:
    other = AcceptTurns(tmp_path, 2, own=1)
    async with run_listener() as running:
        (shared,) = bind("127.0.0.1", 0)
        turns = AcceptTurns(tmp_path, 2, own=0)
        running.port = running.listener.listen_on([shared], turns)
        calls = [await running.call() for _ in range(5)]
        for _, writer in calls:
            writer.write(HEADER)
        await until(lambda: running.listener.open_connections == 5)
        for _, writer in calls:
            writer.close()
        await until(lambda: not running.listener.open_connections)
        other.note(1)
        await running.echo()
        assert not turns.is_anothers
