"""Kill Spark's driver, its executors and the broker while a stream captures a queue, and count.

    python tests/faults/spark_check.py --kills 20 --seed 7

A producer sends to a queue of 16 partitions with duplicate detection, so that what
it sends again after a crash counts once. A stream on a small cluster of its own
(driver, two executors) writes what it reads to Parquet. Whoever is killed (SIGKILL,
at random moments) is started again. In the end: rows = distinct = produced; having
consumed, the queue is empty, and having browsed, it has all of them still. Exit
code 1 when that does not hold. The broker alone, under other clients: crash_check.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bendybus.client import BusClient, ClientSettings, encode
from fix_server import ServerProcess, namespace

QUEUE: Final = "captured"
KEYS: Final = 40
BATCH: Final = 10
# Some 300 a second: the stream is to keep up with it, so that batches are cut short anywhere.
PAUSE_S: Final = 0.03

# How long somebody lives after the stream was seen to move.
LIFE_S: Final = (0.1, 3.0)
# A driver that has not moved by then is stuck.
STUCK_S: Final = 240.0
VICTIMS: Final = ("driver", "executor", "broker")


# -- the producer -----------------------------------------------------------------------


class Producer(threading.Thread):
    """Sends numbered messages, each under an id of its own, until it is told to stop."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        settings = ClientSettings.from_connection_string(server.connection_string, entity=QUEUE)
        self._settings = replace(settings, retries=60)
        self._stopping = threading.Event()
        self.produced = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with BusClient(self._settings) as client:
                sender = client.sender()
                while not self._stopping.wait(PAUSE_S):
                    key = f"key-{random.randrange(KEYS)}"
                    numbers = range(self.produced, self.produced + BATCH)
                    sender.send(
                        [encode(b"%d" % n, message_id=f"m{n}", partition_key=key) for n in numbers], key
                    )
                    self.produced += BATCH
        except Exception as failure:
            self.failure = failure

    def stop(self) -> int:
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        return self.produced


# -- the driver: a process of its own ---------------------------------------------------


def drive(mode: str, folder: Path, *, to_the_end: bool) -> None:
    """Run the stream for ever, or until it has caught up and then say what is in the sink."""
    from pyspark_servicebus import spark_session

    spark = spark_session(
        "spark-check",
        "local[2]" if to_the_end else "local-cluster[2,1,700]",
        {
            "spark.ui.enabled": "false",
            "spark.executor.memory": "600m",
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "20",
            "spark.executor.maxNumFailures": "1000",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = {"connectionStringEnv": "BUS", "entity": QUEUE, "retries": "30"}
    rows = (
        spark.readStream.format("servicebus")
        .options(**options, mode=mode, maxMessagesPerTrigger="2000", minPartitions="4")
        .load()
    )
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    if not to_the_end:
        query = writing.trigger(processingTime="0 seconds").start(str(folder / "sink"))
        while query.isActive:
            print("batch", len(query.recentProgress), flush=True)  # noqa: T201 - the parent reads it
            time.sleep(0.2)
        query.awaitTermination()
        return
    writing.trigger(availableNow=True).start(str(folder / "sink")).awaitTermination()
    sink = spark.read.parquet(str(folder / "sink"))
    counted = {
        "rows": sink.count(),
        "sequence_numbers": sink.select("sequence_number").distinct().count(),
        "bodies": sink.select("body").distinct().count(),
        "left": spark.read.format("servicebus").options(**options).load().count(),
    }
    print("counted", json.dumps(counted), flush=True)  # noqa: T201 - the parent reads it
    spark.stop()


class Driver:
    """That process, its Java and its executors."""

    def __init__(
        self, mode: str, folder: Path, connection_string: str, log: Path, *, to_the_end: bool
    ) -> None:
        command = [sys.executable, __file__, "--drive", mode, "--folder", str(folder)]
        environment = {**os.environ, "BUS": connection_string}
        self._log = log.open("a")
        self._process = subprocess.Popen(
            [*command, *(["--to-the-end"] if to_the_end else [])],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self._batches = -1

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for_line(self, word: str) -> str | None:
        """The rest of the next line that begins so; None when the driver has ended."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + STUCK_S
        while time.monotonic() < deadline:
            if not select.select([self._process.stdout], [], [], 1.0)[0]:
                continue
            line = self._process.stdout.readline()
            if not line:
                self._process.wait()
                return None
            if line.startswith(f"{word} "):
                return line.removeprefix(f"{word} ").strip()
        raise TimeoutError(f"the driver said nothing of '{word}' for {STUCK_S} s")

    def wait_until_moving(self) -> bool:
        """Until another batch is done; False when the driver has ended instead."""
        while (told := self.wait_for_line("batch")) is not None:
            if int(told) > max(0, self._batches):
                self._batches = int(told)
                return True
        return False

    def executors(self) -> list[int]:
        return [
            pid
            for pid in processes_below(self._process.pid)
            if "CoarseGrainedExecutorBackend" in command_of(pid)
        ]

    def kill(self) -> None:
        for pid in [self._process.pid, *processes_below(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self.close()

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def processes_below(parent: int) -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may hold anything; what follows it does not.
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, open_ones = [], [parent]
    while open_ones:
        children = parents.get(open_ones.pop(), [])
        found += children
        open_ones += children
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


# -- the check --------------------------------------------------------------------------


@dataclass
class Check:
    mode: str
    folder: Path
    seed: int
    killed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    ended_by_itself: int = 0

    def run(self, kills: int) -> bool:
        chance = random.Random(self.seed)
        properties = {"EnablePartitioning": True, "RequiresDuplicateDetection": True}
        server = ServerProcess(self.folder, namespace({QUEUE: properties}))
        server.start()
        producer = Producer(server)
        producer.start()
        log = self.folder / "driver.log"
        driver = Driver(self.mode, self.folder, server.connection_string, log, to_the_end=False)
        try:
            for number in range(kills):
                victim = VICTIMS[number % len(VICTIMS)]
                if not driver.wait_until_moving():
                    driver.close()
                    self.ended_by_itself += 1
                    driver = Driver(self.mode, self.folder, server.connection_string, log, to_the_end=False)
                    assert driver.wait_until_moving(), f"the driver does not start; see {log}"
                time.sleep(chance.uniform(*LIFE_S))
                self._kill(victim, driver, server, chance)
                if victim == "driver":
                    driver = Driver(self.mode, self.folder, server.connection_string, log, to_the_end=False)
                print(f"{self.mode}: {number + 1} of {kills}, {victim}; {producer.produced} sent", flush=True)  # noqa: T201
        finally:
            if not driver.ended:
                driver.kill()
        produced = producer.stop()
        last = Driver(self.mode, self.folder, server.connection_string, log, to_the_end=True)
        told = last.wait_for_line("counted")
        last.kill()
        server.kill()
        assert told is not None, f"the last run failed; see {log}"
        return self._judge(produced, json.loads(told))

    def _kill(self, victim: str, driver: Driver, server: ServerProcess, chance: random.Random) -> None:
        self.killed[victim] += 1
        if victim == "driver":
            driver.kill()
        elif victim == "broker":
            server.kill()
            time.sleep(chance.uniform(0, 1.0))
            server.start()
        else:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(driver.executors()), signal.SIGKILL)

    def _judge(self, produced: int, counted: dict[str, int]) -> bool:
        left = 0 if self.mode == "consume" else produced
        wanted = {"rows": produced, "sequence_numbers": produced, "bodies": produced, "left": left}
        verdict = "as it must be" if counted == wanted else f"WRONG, it must be {wanted}"
        print(  # noqa: T201
            f"{self.mode}: killed {self.killed}, ended by itself {self.ended_by_itself}; "
            f"produced {produced}, {counted}: {verdict}"
        )
        return counted == wanted


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="for each mode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=("browse", "consume", "both"), default="both")
    parser.add_argument("--drive", choices=("browse", "consume"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--to-the-end", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive, given.folder, to_the_end=given.to_the_end)
        return 0
    good = True
    for mode in ("browse", "consume") if given.mode == "both" else (given.mode,):
        folder = Path(tempfile.mkdtemp(prefix=f"spark-check-{mode}-"))
        good = Check(mode, folder, given.seed).run(given.kills) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
