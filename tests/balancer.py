"""A TCP load balancer for the brokers of a cluster: each connection goes to the next broker.

`python balancer.py PORT BROKER_PORT...` listens on 127.0.0.1 and prints its port. It passes bytes on and
looks at none of them. A broker that accepts no connections is left out. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from itertools import count
from typing import Final

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 18


class Balancer:
    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._turns = count()

    async def serve(self, port: int) -> int:
        server = await asyncio.start_server(self._pass_on, HOST, port)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._ports:
            port = self._ports[next(self._turns) % len(self._ports)]
            try:
                from_broker, to_broker = await asyncio.open_connection(HOST, port)
                break
            except OSError:
                continue
        else:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, to_broker), _pump(from_broker, writer))
        for each in (writer, to_broker):
            each.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has ended; then the other one is told."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
    except OSError:
        # A reset stays a reset.
        writer.transport.abort()


async def main() -> None:
    port, *ports = map(int, sys.argv[1:])
    sys.stdout.write(f"{await Balancer(ports).serve(port)}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
