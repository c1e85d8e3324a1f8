"""How long partitions pause when they get another owner: because a broker died, and by plan.

    python tests/bench/moves.py [--quick] [--times 20]

A cluster of two brokers on PostgreSQL; a queue of 16 partitions. A client of the first broker sends to a key
of each partition, fifty times a second each, through the SDK. *Failover*: the second broker is killed, and
the time is from there until a send to every partition has succeeded that began afterwards. *Planned*: the
second broker is drained, or gets its stores back, and the time is the longest that a send took meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from bendybus.domain.routing import key_of, partition_of
from fix_postgres import cluster as postgres_server
from fix_postgres import programs
from fix_processes import BENDYBUS
from interop.test_cluster import Cluster, until

RESULTS: Final = Path(__file__).with_name("results") / "moves.json"
QUEUE: Final = "parts16"
PARTITIONS: Final = 16
PACE_S: Final = 0.02
TIMES, TIMES_QUICK = 20, 3
# A partition that has just got an owner is left alone for so long.
REST_S: Final = 1.0


class Probe:
    """Sends to every partition, in a thread of its own, and remembers how long each send took."""

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        self._ended = threading.Event()
        self.sends: list[tuple[float, float, int]] = []
        """When a send began, how long it took, and its partition."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _run(self) -> None:
        async with ServiceBusClient.from_connection_string(
            self._connection_string, retry_total=20, retry_backoff_factor=0.02, retry_backoff_max=0.1
        ) as client:
            await asyncio.gather(*(self._send(client, number) for number in range(PARTITIONS)))

    async def _send(self, client: ServiceBusClient, number: int) -> None:
        key = key_of_partition(number)
        async with client.get_queue_sender(QUEUE) as sender:
            while not self._ended.is_set():
                began = time.monotonic()
                with contextlib.suppress(ServiceBusError):
                    await sender.send_messages(ServiceBusMessage(b"x" * 1024, partition_key=key))
                    self.sends.append((began, time.monotonic() - began, number))
                await asyncio.sleep(PACE_S)

    def served_since(self, moment: float) -> float | None:
        """When the last partition took a send that began after this moment; None if one has not."""
        first: dict[int, float] = {}
        for began, took, number in reversed(self.sends):
            if began < moment - 60:
                break
            if began >= moment:
                first[number] = min(first.get(number, began + took), began + took)
        return max(first.values()) if len(first) == PARTITIONS else None

    def longest_since(self, moment: float) -> float:
        """The longest send that ended after this moment."""
        return max(took for began, took, _ in self.sends[-5000:] if began + took >= moment)


def key_of_partition(number: int) -> str:
    return next(f"k{n}" for n in range(10_000) if partition_of(key_of(f"k{n}"), PARTITIONS) == number)


def spread(cluster: Cluster) -> bool:
    return set(cluster.owners()) == {"a", "b"}


def measure_failover(cluster: Cluster, probe: Probe) -> float:
    killed_at = time.monotonic()
    cluster["b"].kill()
    until(lambda: probe.served_since(killed_at) is not None)
    served_at = probe.served_since(killed_at)
    assert served_at is not None
    cluster["b"].start()
    until(lambda: spread(cluster))
    time.sleep(REST_S)
    return served_at - killed_at


def measure_move(cluster: Cluster, probe: Probe, options: list[str], moved: Callable[[], bool]) -> float:
    began = time.monotonic()
    command = [BENDYBUS, "broker", "drain", "b", *options]
    command += ["--connection-string", cluster["a"].connection_string]
    subprocess.run(command, check=True, capture_output=True)
    until(moved)
    moved_at = time.monotonic()
    until(lambda: probe.served_since(moved_at) is not None)
    longest = probe.longest_since(began)
    time.sleep(REST_S)
    return longest


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--times", type=int, default=None)
    options = parser.parse_args()
    times = options.times or (TIMES_QUICK if options.quick else TIMES)
    if programs() is None:
        say("SKIPPED: moves, because there is no PostgreSQL: neither PyPI's pgserver nor Debian's postgresql")
        return 0
    failovers: list[float] = []
    moves: list[float] = []
    with postgres_server(fsync=True) as postgres, tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), postgres)
        try:
            cluster.start("a", "b")
            until(lambda: spread(cluster))
            with cluster.administration("a") as admin:
                admin.create_queue(QUEUE, enable_partitioning=True)
            with Probe(cluster["a"].connection_string) as probe:
                ready_at = time.monotonic()
                until(lambda: probe.served_since(ready_at) is not None)
                while len(moves) < times:
                    moves.append(measure_move(cluster, probe, [], lambda: set(cluster.owners()) == {"a"}))
                    moves.append(measure_move(cluster, probe, ["--stop"], lambda: spread(cluster)))
                    say(f"planned: {moves[-2]:.2f} s, and back: {moves[-1]:.2f} s")
                while len(failovers) < times:
                    failovers.append(measure_failover(cluster, probe))
                    say(f"failover: {failovers[-1]:.2f} s")
        finally:
            cluster.close()
    for name, measured in (("planned move", moves), ("failover", failovers)):
        median, worst = statistics.median(measured), max(measured)
        say(f"{name}: median {median:.2f} s, worst {worst:.2f} s of {len(measured)}")
    if not options.quick:
        RESULTS.write_text(json.dumps({"planned_s": moves, "failover_s": failovers}, indent=2) + "\n")
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
