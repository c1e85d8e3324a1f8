"""Kill the server under load, again and again, and account for every message.

    python tests/faults/crash_check.py --kills 50 --seed 7

Real clients on real sockets put several loads (load.py) on entities of 16
partitions and on unpartitioned ones, while the process is killed (SIGKILL) at
random moments and started again on the same folder, sometimes killed once more
before it is up, sometimes left dead for a while. After the last kill everything
is emptied. What must hold is said in history.py; exit code 1 when it does not.
SIGKILL leaves the kernel's cache intact, so this is about the order of events,
not about what a disk forgets.

The seed decides when the server is killed and what clients choose to do. Two runs with one seed
are alike and not identical, since the machine decides how far everybody gets meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.history import Verdict, Violation
from faults.load import Life, Load
from faults.queue_loads import ForwardingLoad, OnceLoad, QueueLoad, ScheduleLoad
from faults.session_load import SessionLoad
from faults.topic_load import TopicLoad
from faults.transaction_load import TransactionLoad
from fix_client import Endpoint
from fix_server import ServerProcess, namespace

__all__ = ["CrashCheck", "LOADS", "main"]

LOADS: Final[Sequence[type[Load]]] = (
    QueueLoad,
    SessionLoad,
    ScheduleLoad,
    OnceLoad,
    ForwardingLoad,
    TopicLoad,
    TransactionLoad,
)

# How long the server lives under load, and how long one lives that is killed while it starts. On a slow
# machine nobody would get far in that time: of most lives it counts from when every load has got somewhere.
LIFE_S: Final = (0.05, 0.7)
LIVED: Final = 0.7
GETTING_SOMEWHERE_MAX_S: Final = 5.0
START_LIFE_S: Final = (0.02, 0.4)
KILLED_WHILE_STARTING: Final = 0.2

# Some time without a server, in which messages become due.
LEFT_DEAD: Final = 0.15
DEAD_S: Final = 1.0

TABLE_WIDTH: Final = 108


class CrashCheck:
    """One run: its server, its loads."""

    def __init__(self, folder: Path, seed: int, loads: Sequence[type[Load]] = LOADS) -> None:
        self.kills = 0
        self.kills_while_starting = 0
        self._random = random.Random(seed)
        self._life = Life()
        self.loads = [load(self._life, seed) for load in loads]
        queues = {name: described for load in loads for name, described in load.queues.items()}
        topics = [topic for load in loads for topic in load.topics]
        self._server = ServerProcess(folder, namespace(queues, topics=topics))

    async def run(self, kills: int) -> Mapping[str, Verdict]:
        """The verdict on each load."""
        try:
            self._start()
            clients = [asyncio.ensure_future(work) for load in self.loads for work in load.clients()]
            try:
                await self._kill_again_and_again(kills, clients)
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
            await self._empty_everything()
        finally:
            if self._server.running:
                self._server.kill()
        return {load.name: load.history.verdict() for load in self.loads}

    @property
    def log(self) -> Path:
        return self._server.log

    # -- the server's lives ------------------------------------------------------------

    def _start(self) -> None:
        self._server.start()
        self._life.generation += 1
        self._life.endpoint = Endpoint.parse(self._server.connection_string)
        self._life.up.set()

    def _kill(self) -> None:
        self._life.up.clear()
        self._server.kill()
        self.kills += 1

    async def _kill_again_and_again(self, kills: int, clients: Sequence[asyncio.Future[None]]) -> None:
        for _ in range(kills):
            if self._random.random() < LIVED:
                await self._everybody_gets_somewhere()
            # A client that fails ends the run: its failure is the news.
            done, _ = await asyncio.wait(
                clients, timeout=self._random.uniform(*LIFE_S), return_when=asyncio.FIRST_COMPLETED
            )
            for client in done:
                client.result()
            self._kill()
            if self._random.random() < KILLED_WHILE_STARTING:
                self._kill_while_starting()
            if self._random.random() < LEFT_DEAD:
                await asyncio.sleep(DEAD_S)
            self._start()

    async def _everybody_gets_somewhere(self) -> None:
        """Until something was acknowledged and something completed in each load, or it takes too long."""
        before = [load.history.progress for load in self.loads]
        deadline = time.monotonic() + GETTING_SOMEWHERE_MAX_S
        while time.monotonic() < deadline and any(
            now == then
            for load, count in zip(self.loads, before, strict=True)
            for now, then in zip(load.history.progress, count, strict=True)
        ):
            await asyncio.sleep(0.02)

    def _kill_while_starting(self) -> None:
        """Whatever it does first on the folder of a dead one, it may be killed in the middle of."""
        with self._server.log.open("a") as log:
            process = subprocess.Popen(self._server.command(), stdout=subprocess.DEVNULL, stderr=log)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._random.uniform(*START_LIFE_S))
        process.kill()
        process.wait()
        self.kills_while_starting += 1

    # -- the end -----------------------------------------------------------------------

    async def _empty_everything(self) -> None:
        """Nothing runs any more; a last kill frees all locks, and each load takes what there is."""
        self._kill()
        self._start()
        await asyncio.gather(*(self._empty(load) for load in self.loads))

    async def _empty(self, load: Load) -> None:
        client, generation = await self._life.connect()
        async with client:
            await load.empty(client, generation)


# -- the command ---------------------------------------------------------------------------


def show(check: CrashCheck, verdicts: Mapping[str, Verdict], seed: int, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{check.kills} kills, {check.kills_while_starting} more while starting; seed {seed}")
    table.add_column("messages")
    for name in verdicts:
        table.add_column(name, justify="right")
    for count in ("attempted", "acknowledged", "recovered", "completed", "in_doubt", "redelivered"):
        numbers = [f"{getattr(verdict, count):,}" for verdict in verdicts.values()]
        table.add_row(count.replace("_", " "), *numbers)
    table.add_section()
    for violation in Violation:
        found = [verdict.count(violation) for verdict in verdicts.values()]
        table.add_row(violation.value, *(f"[{'red' if each else 'green'}]{each:,}" for each in found))
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)  # wider than a pipe is thought to be
    console.print(table)
    for name, verdict in verdicts.items():
        for violation, what in verdict.violations[:20]:
            console.print(f"[red]{name}, {violation.value}[/]: {what[:300]}")
    holds = all(verdict.holds for verdict in verdicts.values())
    outcome = "[green]everything holds" if holds else f"[red]violated; the server's log: {check.log}"
    console.print(f"{outcome}[/] ({seconds:.0f} s, seed {seed})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="what to kill when; random by default")
    parser.add_argument("--load", action="append", choices=[load.name for load in LOADS], help="only these")
    arguments = parser.parse_args()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="bendybus-crash-check-"))
    started = time.monotonic()
    check = CrashCheck(folder, seed, [load for load in LOADS if load.name in (arguments.load or [load.name])])
    verdicts = asyncio.run(check.run(arguments.kills))
    show(check, verdicts, seed, time.monotonic() - started)
    if not all(verdict.holds for verdict in verdicts.values()):
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
