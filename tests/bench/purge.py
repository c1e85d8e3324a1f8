"""How fast a server purges: by state, of one session, dead letters, a subscription, over all partitions.

    python tests/bench/purge.py [--count 200000] [--rounds 3]

Each case fills an entity with messages of 1 KB and purges it as `bendybus purge` does, with one client. In
the same round, as many rows of 1 KB are deleted from a plain table of SQLite on the same disk, in
transactions of 5,000 rows with one sync each. Rates differ from machine to machine; compare the ratios, and
on a machine with other work the processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from process import CACHE
from rich.console import Console

from bendybus.client import BusClient, ClientSettings, encode
from bendybus.operations.peeking import State
from bendybus.operations.purging import Purging
from fix_server import ServerProcess, namespace

console = Console(highlight=False)

BODY = bytes(1024)
ROWS_PER_COMMIT = 5000
SESSIONS = 1000
QUEUES = {
    "partitioned": {"EnablePartitioning": True},
    "unpartitioned": {"EnablePartitioning": False},
    "sessions": {"EnablePartitioning": True, "RequiresSession": True},
}
TOPIC = {"Name": "topic", "Properties": {"EnablePartitioning": True}, "Subscriptions": [{"Name": "all"}]}
SUBSCRIPTION = "topic/Subscriptions/all"
RESULTS = Path(__file__).with_name("results") / "purge.json"


@dataclass(frozen=True)
class Measure:
    rate: float
    """Messages a second."""
    cpu_s: float
    """Processor seconds for 100,000 messages: of the server, or of the process with SQLite."""


class Bench:
    def __init__(self, server: ServerProcess, client: BusClient, count: int) -> None:
        self._server = server
        self._client = client
        self._count = count

    def _cpu_s(self) -> float:
        user, system = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def fill(
        self, entity: str, *, session: bool = False, only: str | None = None, due_ms: int | None = None
    ) -> None:
        sender = self._client.sender(entity)
        for start in range(0, self._count, 200):
            key = only or f"key-{start // 200 % SESSIONS}"
            named = {"session_id": key} if session else {"partition_key": key}
            share = min(200, self._count - start)
            sender.post([encode(BODY, scheduled_enqueue_time_ms=due_ms, **named)] * share, key)
        sender.flush()
        sender.close()

    def purge(
        self, entity: str, *states: State, session_id: str | None = None, dead_letter: bool = False
    ) -> Measure:
        reason = ("Bench", "") if dead_letter else None
        cpu_s, started = self._cpu_s(), time.perf_counter()
        purging = Purging(self._client, entity, states or [State.ACTIVE], session_id, dead_letter=reason)
        removed = sum(purging.run())
        assert removed == self._count, f"{removed} of {self._count} messages of {entity} went"
        elapsed_s = time.perf_counter() - started
        return Measure(removed / elapsed_s, (self._cpu_s() - cpu_s) * 100_000 / removed)

    # -- cases ------------------------------------------------------------------------------

    def partitioned(self) -> Measure:
        self.fill("partitioned")
        return self.purge("partitioned")

    def unpartitioned(self) -> Measure:
        self.fill("unpartitioned")
        return self.purge("unpartitioned")

    def scheduled(self) -> Measure:
        self.fill("partitioned", due_ms=round((time.time() + 86_400) * 1000))
        return self.purge("partitioned", State.SCHEDULED)

    def to_dead_letters(self) -> Measure:
        self.fill("partitioned")
        return self.purge("partitioned", dead_letter=True)

    def dead_letters(self) -> Measure:
        """Those that the case before has made."""
        return self.purge("partitioned/$deadletterqueue")

    def many_sessions(self) -> Measure:
        self.fill("sessions", session=True)
        return self.purge("sessions")

    def one_session(self) -> Measure:
        self.fill("sessions", session=True, only="one")
        return self.purge("sessions", session_id="one")

    def subscription(self) -> Measure:
        self.fill("topic")
        return self.purge(SUBSCRIPTION)


CASES: dict[str, Callable[[Bench], Measure]] = {
    "a queue of 16 partitions": Bench.partitioned,
    "a queue of 1 partition": Bench.unpartitioned,
    "scheduled messages": Bench.scheduled,
    "moved to the dead-letter queue": Bench.to_dead_letters,
    "dead letters": Bench.dead_letters,
    f"a queue with {SESSIONS:,} sessions": Bench.many_sessions,
    "one session": Bench.one_session,
    "a subscription": Bench.subscription,
}


def plain_delete(folder: Path, count: int) -> Measure:
    """Rows deleted from a table of SQLite as durably as a messaging store commits."""
    path = folder / "plain.db"
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")
    database.execute("BEGIN")
    database.executemany("INSERT INTO rows (body) VALUES (?)", ((BODY,) for _ in range(count)))
    database.execute("COMMIT")
    cpu_s, started = time.process_time(), time.perf_counter()
    for first in range(1, count + 1, ROWS_PER_COMMIT):
        # By their numbers, as a broker that knows which messages go.
        numbers = ((number,) for number in range(first, min(first + ROWS_PER_COMMIT, count + 1)))
        database.execute("BEGIN")
        database.executemany("DELETE FROM rows WHERE id = ?", numbers)
        database.execute("COMMIT")
    elapsed_s = time.perf_counter() - started
    found = Measure(count / elapsed_s, (time.process_time() - cpu_s) * 100_000 / count)
    database.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cases", nargs="+", metavar="TEXT", help="only cases whose names contain one of these"
    )
    given = parser.parse_args()
    chosen = [name for name in CASES if not given.cases or any(part in name for part in given.cases)]
    found: dict[str, list[Measure]] = {}
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        server = ServerProcess(Path(folder), namespace(QUEUES, topics=[TOPIC]))
        server.start()
        settings = ClientSettings.from_connection_string(server.connection_string)
        try:
            with BusClient(settings) as client:
                bench = Bench(server, client, given.count)
                for _ in range(given.rounds):
                    plain = plain_delete(Path(folder), given.count)
                    found.setdefault("SQLite alone", []).append(plain)
                    for name in chosen:
                        found.setdefault(name, []).append(CASES[name](bench))
        finally:
            server.kill()
    busy = os.getloadavg()[0]
    plain_rate = statistics.median(each.rate for each in found["SQLite alone"])
    for name, measures in found.items():
        rate = statistics.median(each.rate for each in measures)
        cpu_s = statistics.median(each.cpu_s for each in measures)
        console.print(f"{name:<36}{rate:>10,.0f} /s{rate / plain_rate:>8.2f} x SQLite{cpu_s:>8.2f} CPU s")
    console.print(f"{given.count:,} messages of 1 KB, {given.rounds} rounds; load of the machine {busy:.1f}")
    if not given.cases:
        told = {name: [asdict(each) for each in measures] for name, measures in found.items()}
        RESULTS.write_text(
            json.dumps({"count": given.count, "load": busy, "measures": told}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
