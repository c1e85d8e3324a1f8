"""Let everything fail that can, under load through the Azure SDK, and account for every message.

    python tests/faults/fault_check.py --seconds 300 --faults 20 --seed 7

A server over five stores (SQLite, one of them on a small disk of its own, and PostgreSQL), unmodified SDK
clients on partitioned and plain queues, sessions, duplicate detection and a topic (sdk_load.py), and one
disaster after the other (disasters.py), in an order that the seed decides. After each, the server is to be
whole again by itself. At the end all is emptied and counted (tally.py). Exit code 1 if anything was lost, was
there twice, was unexpected or out of order, or a store did not come back.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.disasters import DISASTERS, Disaster, DiskFull, FaultTarget
from faults.sdk_load import LOADS, SdkLoad
from faults.tally import Counts
from fix_server import namespace

__all__ = ["FaultCheck", "described", "main"]

BEFORE_THE_FIRST_S: Final = 3.0
BETWEEN_S: Final = (1.0, 4.0)
# A store is tried again every second, and after failing often every thirty.
BACK_WITHIN_S: Final = 90.0
POLL_S: Final = 0.1

TABLE_WIDTH: Final = 108


@dataclass(frozen=True, slots=True)
class Fault:
    """One that is over."""

    name: str
    lasted_s: float
    noticed: bool
    """Whether the server said that the store was away; of itself it cannot say that."""
    back_after_s: float | None
    """Until every store was available again, from when it was over; None: never."""


class FaultCheck:
    """One run of faults on a target."""

    def __init__(
        self, target: FaultTarget, seed: int, disasters: Sequence[type[Disaster]] = DISASTERS
    ) -> None:
        self.faults: list[Fault] = []
        self.loads: list[SdkLoad] = [load(target.server.connection_string, seed) for load in LOADS]
        self._stand = target
        self._random = random.Random(seed)
        self._possible = [each for each in disasters if each is not DiskFull or target.disk is not None]

    async def run(self, seconds: float, faults: int) -> Mapping[str, Counts]:
        clients = [asyncio.ensure_future(work) for load in self.loads for work in load.clients()]
        try:
            await asyncio.sleep(BEFORE_THE_FIRST_S)
            until = time.monotonic() + seconds
            for kind in self._kinds():
                if time.monotonic() > until and len(self.faults) >= faults:
                    break
                await self._let_befall(kind(self._stand), clients)
        finally:
            await self._end(clients)
        # A last kill frees all locks.
        self._stand.server.kill()
        self._stand.server.start()
        await asyncio.gather(*(load.empty() for load in self.loads))
        return {load.name: load.tally.counts() for load in self.loads}

    @staticmethod
    async def _end(clients: Sequence[asyncio.Future[None]]) -> None:
        """Some of the SDK's calls swallow a cancellation: until the last has heard it."""
        running = set(clients)
        while running:
            for client in running:
                client.cancel()
            _, running = await asyncio.wait(running, timeout=1)

    @property
    def never_back(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.back_after_s is None]

    def _kinds(self) -> Iterator[type[Disaster]]:
        """All of them, in one order and then in another, without end."""
        while True:
            yield from self._random.sample(self._possible, len(self._possible))

    async def _let_befall(self, disaster: Disaster, clients: Sequence[asyncio.Future[None]]) -> None:
        began_at = time.monotonic()
        watch = asyncio.ensure_future(self._watch(disaster.hits))
        try:
            await disaster.befall()
        finally:
            noticed = watch.done()
            watch.cancel()
        over_at = time.monotonic()
        back_after_s = await self._all_back()
        self.faults.append(Fault(disaster.name, over_at - began_at, noticed, back_after_s))
        done, _ = await asyncio.wait(
            clients, timeout=self._random.uniform(*BETWEEN_S), return_when=asyncio.FIRST_COMPLETED
        )
        for client in done:
            client.result()  # it never ends but by failing: that is the news

    async def _watch(self, store: str | None) -> None:
        """Until this store is said to be away."""
        while store is None or store not in await self._away():
            await asyncio.sleep(POLL_S)

    async def _all_back(self) -> float | None:
        began_at = time.monotonic()
        while await self._away():
            if time.monotonic() - began_at > BACK_WITHIN_S:
                return None
            await asyncio.sleep(POLL_S)
        return time.monotonic() - began_at

    async def _away(self) -> set[str]:
        try:
            return await asyncio.to_thread(self._stand.stores_away)
        except OSError:
            return set()  # the server itself is


def described() -> Mapping[str, object]:
    """The namespace that all loads together need."""
    queues = {name: queue for load in LOADS for name, queue in load.queues.items()}
    return namespace(queues, topics=[topic for load in LOADS for topic in load.topics])


# -- the command ---------------------------------------------------------------------------


def show(check: FaultCheck, counted: Mapping[str, Counts], seed: int, seconds: float) -> bool:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = max(console.width, TABLE_WIDTH)  # wider than a pipe is thought to be
    faults = Table(title=f"{len(check.faults)} faults in {seconds:.0f} s; seed {seed}")
    for column in ("", "times", "store seen away", "lasted s", "back after s, at most"):
        faults.add_column(column, justify="right" if column else "left")
    by_name: dict[str, list[Fault]] = {}
    for fault in check.faults:
        by_name.setdefault(fault.name, []).append(fault)
    for name, some in by_name.items():
        lasted, back = sum(each.lasted_s for each in some), [each.back_after_s for each in some]
        slowest = "never" if None in back else f"{max(each or 0.0 for each in back):.1f}"
        noticed = sum(each.noticed for each in some)
        faults.add_row(name, str(len(some)), str(noticed or ""), f"{lasted:.0f}", slowest)
    console.print(faults)

    table = Table(title="messages")
    table.add_column("")
    for name in counted:
        table.add_column(name, justify="right")
    for count in ("attempted", "acknowledged", "recovered", "completed", "in_doubt", "repeated"):
        table.add_row(count.replace("_", " "), *(f"{getattr(each, count):,}" for each in counted.values()))
    table.add_section()
    for kind in next(iter(counted.values())).violations:
        found = [len(each.violations[kind]) for each in counted.values()]
        table.add_row(kind, *(f"[{'red' if each else 'green'}]{each:,}" for each in found))
    console.print(table)

    for load in check.loads:
        errors: Counter[str] = load.errors
        console.print(f"{load.name}, told to clients: {dict(errors.most_common())}")
    for name, counts in counted.items():
        for kind, some_found in counts.violations.items():
            for what in some_found[:10]:
                console.print(f"[red]{name}, {kind}[/]: {what[:300]}")
    for fault in check.never_back:
        console.print(f"[red]not back after {BACK_WITHIN_S:.0f} s[/]: {fault.name}")
    holds = all(counts.holds for counts in counted.values()) and not check.never_back
    console.print("[green]everything holds" if holds else "[red]violated")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long, at least")
    parser.add_argument("--faults", type=int, default=20, help="how many, at least")
    parser.add_argument("--seed", type=int, default=None, help="what fails when; random by default")
    arguments = parser.parse_args()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # it has much to say about faults
    folder = Path(tempfile.mkdtemp(prefix="bendybus-fault-check-"))
    started = time.monotonic()
    with FaultTarget.made(folder, described(), seed, small_disk=True) as target:
        if target.disk is None:
            sys.stderr.write("skipped: a full disk, since a small one cannot be mounted here\n")
        check = FaultCheck(target, seed)
        counted = asyncio.run(check.run(arguments.seconds, arguments.faults))
    holds = show(check, counted, seed, time.monotonic() - started)
    log = target.server.log.read_text()
    if "Traceback (most recent" in log:
        sys.stderr.write("the server logged a traceback\n")
        holds = False
    if not holds:
        sys.stderr.write(f"the server's log: {target.server.log}\n")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
