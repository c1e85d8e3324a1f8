"""What befalls a server and its stores, all of it real: signals, a full disk, a damaged page, no database.

A disaster begins, lasts for a while and is over; what it broke is whole again then, and nobody tells the
server. `FaultTarget` is what they befall: a server over five stores, of which one is on a small disk of its
own, one has a file to damage, and one is a PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import random
import re
import signal
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from fix_postgres import Postgres, cluster
from fix_server import Properties, ServerProcess

__all__ = ["DISASTERS", "Disaster", "Disk", "FaultTarget"]

LASTS_S: Final = (2.0, 6.0)
DISK_BYTES: Final = 96 << 20
# Large ones until there is no room for another, then the smallest that the file system has.
BLOCKS: Final = (1 << 16, 1 << 12)

# What a page of a table or an index begins with [SQLite file format, 1.6].
BTREE_PAGES: Final = frozenset((2, 5, 10, 13))
PAGE_SIZE: Final = slice(16, 18)
GARBAGE: Final = b"\xa5"

AVAILABILITY: Final = re.compile(
    r'bendybus_(?:partition|store)_available\{.*\bstore="(?P<store>[^"]+)".*\} (?P<value>\S+)'
)
HTTP_TIMEOUT_S: Final = 20


class Disk:
    """A small one, in memory."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._filler = folder / "filler"
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "bendybus-faults", str(folder)]
        subprocess.run(command, check=True, capture_output=True)

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler:
            for block in BLOCKS:
                with contextlib.suppress(OSError):
                    while filler.write(bytes(block)):
                        pass

    def clear(self) -> None:
        self._filler.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@dataclass(slots=True)
class FaultTarget:
    server: ServerProcess
    choice: random.Random
    disk: Disk | None
    pages: Path
    """The SQLite file that may be damaged."""
    postgres: Postgres | None

    @classmethod
    @contextlib.contextmanager
    def made(cls, folder: Path, config: Properties, seed: int, *, small_disk: bool = False) -> Iterator[Self]:
        """`small_disk`: if one can be had, which only root can mount."""
        with contextlib.ExitStack() as stack:
            disk = None
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                if small_disk:
                    disk = Disk(folder / "disk")
                    stack.callback(disk.unmount)
            postgres = stack.enter_context(cluster(fsync=True))
            pages = folder / "pages.db"
            stores = [
                f"sqlite://{folder}/first.db",
                f"sqlite://{folder}/second.db",
                f"sqlite://{pages}",
                f"sqlite://{disk.folder if disk else folder}/disk.db",
                postgres.url(postgres.new_database(), name="postgres"),
            ]
            options = [option for url in stores for option in ("--store", url)]
            server = ServerProcess(folder, config, options)
            server.start()
            stack.callback(lambda: server.running and server.kill())
            yield cls(server, random.Random(seed), disk, pages, postgres)

    async def while_it_lasts(self) -> None:
        await asyncio.sleep(self.choice.uniform(*LASTS_S))

    def stores_away(self) -> set[str]:
        """Those that the server says are away, or have a partition that is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request("GET", "/metrics?partitions=1")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        found = filter(None, map(AVAILABILITY.fullmatch, lines))
        return {each["store"] for each in found if float(each["value"]) < 1}


class Disaster(ABC):
    name: ClassVar[str]
    hits: ClassVar[str | None] = None
    """The store that is to be away meanwhile; None: the server itself is hit."""

    def __init__(self, target: FaultTarget) -> None:
        self.target = target

    @abstractmethod
    async def befall(self) -> None:
        """Begin, last, be over."""


class Killed(Disaster):
    name = "kill -9 of the server"

    async def befall(self) -> None:
        self.target.server.kill()
        if self.target.choice.random() < 0.3:
            await asyncio.sleep(1)  # messages become due, locks end
        await asyncio.to_thread(self.target.server.start)


class Frozen(Disaster):
    name = "SIGSTOP of the server"

    async def befall(self) -> None:
        with frozen([self.target.server.pid]):
            await self.target.while_it_lasts()


class DiskFull(Disaster):
    name = "a full disk"
    hits = "disk"

    async def befall(self) -> None:
        disk = self.target.disk
        assert disk is not None
        await asyncio.to_thread(disk.fill)
        try:
            await self.target.while_it_lasts()
        finally:
            disk.clear()


class PageDamaged(Disaster):
    """Under a server that runs: it meets the page when it next reads it."""

    name = "a damaged page"
    hits = "pages"

    async def befall(self) -> None:
        with frozen([self.target.server.pid]):
            repair = damage(self.target.pages, self._page())
        await self.target.while_it_lasts()
        with frozen([self.target.server.pid]):
            repair()

    def _page(self) -> int:
        """Any that belongs to a table or an index."""
        file = self.target.pages.read_bytes()
        size = page_size(file)
        # The first has the header, the second is the map of the others.
        found = [
            number for number in range(3, len(file) // size + 1) if file[(number - 1) * size] in BTREE_PAGES
        ]
        return self.target.choice.choice(found) if found else 3


class PageDamagedWhileDown(PageDamaged):
    """The server finds it when it starts, and starts all the same."""

    name = "a damaged page at the start"

    async def befall(self) -> None:
        server = self.target.server
        await asyncio.to_thread(server.stop)
        repair = damage(self.target.pages, self._page())
        await asyncio.to_thread(server.start)
        await self.target.while_it_lasts()
        with frozen([server.pid]):
            repair()

    def _page(self) -> int:
        """The root of all messages, which nobody gets around."""
        with contextlib.closing(sqlite3.connect(f"file:{self.target.pages}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message'").fetchone()
        return int(found[0])


class PostgresStopped(Disaster):
    name = "PostgreSQL stopped"
    hits = "postgres"
    mode: ClassVar[str] = "fast"

    async def befall(self) -> None:
        await asyncio.to_thread(self._postgres.stop, self.mode)
        await self.target.while_it_lasts()
        await asyncio.to_thread(self._postgres.start)

    @property
    def _postgres(self) -> Postgres:
        assert self.target.postgres is not None
        return self.target.postgres


class PostgresKilled(PostgresStopped):
    name = "kill -9 of PostgreSQL"

    async def befall(self) -> None:
        self._postgres.kill()
        await self.target.while_it_lasts()
        await asyncio.to_thread(self._postgres.start)


class PostgresFrozen(PostgresStopped):
    """It answers nobody, and then goes on where it was: what had been given up is done late."""

    name = "SIGSTOP of PostgreSQL"

    async def befall(self) -> None:
        with frozen([self._postgres.pid, *children(self._postgres.pid)]):
            await self.target.while_it_lasts()


class KilledWithoutPostgres(PostgresStopped):
    """The server is killed while a store is away, and starts without it."""

    name = "kill -9 of the server, PostgreSQL away"
    mode = "immediate"

    async def befall(self) -> None:
        await asyncio.to_thread(self._postgres.stop, self.mode)
        await self.target.while_it_lasts()
        self.target.server.kill()
        await asyncio.to_thread(self.target.server.start)
        await self.target.while_it_lasts()
        await asyncio.to_thread(self._postgres.start)


DISASTERS: Final[Sequence[type[Disaster]]] = (
    Killed,
    Frozen,
    DiskFull,
    PageDamaged,
    PageDamagedWhileDown,
    PostgresStopped,
    PostgresKilled,
    PostgresFrozen,
    KilledWithoutPostgres,
)


# -- means ---------------------------------------------------------------------------------


@contextlib.contextmanager
def frozen(processes: Sequence[int]) -> Iterator[None]:
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def children(parent: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def page_size(file: bytes) -> int:
    return int.from_bytes(file[PAGE_SIZE], "big")


def damage(path: Path, page: int) -> Callable[[], None]:
    """Overwrite this page; the result puts it back, unless a newer one was written over it meanwhile."""
    with path.open("r+b") as file:
        size = page_size(file.read(100))
        file.seek((page - 1) * size)
        before = file.read(size)
        file.seek((page - 1) * size)
        file.write(GARBAGE * size)

    def repair() -> None:
        with path.open("r+b") as file:
            file.seek((page - 1) * size)
            if file.read(size) == GARBAGE * size:
                file.seek((page - 1) * size)
                file.write(before)

    return repair
