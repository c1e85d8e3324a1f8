"""What a broker says of others that it cannot reach."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from bendybus.cluster.identity import Identity
from bendybus.cluster.peers import Peer, Peers
from bendybus.server.tls import self_made_certificate


async def test_nothing_is_said_of_an_owner_that_owns_no_partition_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a planned move: the store had no owner for a moment."""
    nobody = Peer("", "no broker owns its messaging store 's1' now")
    nobody.await_owner()
    nobody._give_up()
    assert not caplog.records
    nobody.close()


@pytest.mark.parametrize("says", [b"", b"not TLS"], ids=["nothing", "something else"])
async def test_a_caller_that_does_not_speak_tls_leaves_nothing_behind(tmp_path: Path, says: bytes) -> None:
    """As a port scanner or a health check does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_made_certificate(tmp_path, ("localhost",)))
    peers = Peers(Identity("c", "b", b"secret"), ())
    server = await asyncio.get_running_loop().create_server(peers.accept, "127.0.0.1", 0, ssl=context)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

    writer.write(says)
    writer.write_eof()
    await reader.read()

    assert not peers._links
    writer.close()
    server.close()
    await peers.stop()
