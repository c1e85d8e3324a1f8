"""A standalone Spark cluster from the wheel: capture goes on when a worker is lost, and nothing is.

    python tests/faults/cluster_check.py

Starts a master and two workers with `spark-class`, a broker, and `bendybus pipeline capture
--continuous` with the cluster's master URL and an archived environment for the executors. While a
producer sends, one worker and its executor are killed (SIGKILL). Then the capture is stopped with
SIGTERM, run to the end, and counted: rows = distinct = produced, in Parquet that Spark reads. Exit
code 1 when that does not hold (S-05, S-06).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.spark_check import QUEUE, Producer, command_of, processes_below
from fix_server import ServerProcess, namespace

# A busy machine takes its time to start four Javas.
PATIENCE_S: Final = 240.0


class Cluster:
    """A master and workers on this machine, each with a log of its own."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        from pyspark_servicebus import prepare_environment

        prepare_environment()
        self._folder = folder
        self._spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0")
        self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            self._start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *(
                    "--webui-port",
                    "0",
                    "-c",
                    "1",
                    "-m",
                    "1g",
                    "-d",
                    str(folder / f"worker-{number}"),
                    self.url,
                ),
            )
            self._wait_for(f"worker-{number}", r"Successfully registered with (master)")

    def _start(self, name: str, kind: str, *options: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(self._spark_class), kind, "--host", "127.0.0.1", *options]
            environment = {**os.environ, "SPARK_HOME": str(self._spark_class.parents[1])}
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def _wait_for(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = re.search(pattern, (self._folder / f"{name}.log").read_text(errors="replace"))
            if found is not None:
                return found[1]
            time.sleep(0.2)
        raise TimeoutError(f"the {name} says nothing like '{pattern}'; see {self._folder}")

    def executors(self) -> list[list[int]]:
        """Of each worker, the processes of executors below it."""
        return [
            [pid for pid in processes_below(worker.pid) if "CoarseGrainedExecutorBackend" in command_of(pid)]
            for worker in self._processes[1:]
        ]

    def kill_worker(self, number: int) -> None:
        worker = self._processes[1 + number]
        for pid in [worker.pid, *processes_below(worker.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        for process in reversed(self._processes):
            for pid in [*processes_below(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def capture(server: ServerProcess, folder: Path, *options: str) -> subprocess.Popen[str]:
    """`bendybus pipeline capture`, as a user runs it."""
    command = [
        str(Path(sys.executable).with_name("bendybus")),
        "pipeline",
        "capture",
        QUEUE,
        str(folder / "sink"),
    ]
    environment = {**os.environ, "BENDYBUS_CONNECTION_STRING": server.connection_string}
    with (folder / "capture.log").open("ab") as log:
        return subprocess.Popen(
            [*command, *options, "-o", "json"], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )


def summary_of(process: subprocess.Popen[str]) -> dict[str, object]:
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, f"capture ended with {process.returncode}"
    read = json.loads(told)
    assert isinstance(read, dict)
    return read


def wait_for_batches(folder: Path, process: subprocess.Popen[str], beyond: int) -> int:
    """Until more than so many batches are in the sink's log; how many there are then."""
    commits = folder / "sink" / "_checkpoints" / f"entity={QUEUE}" / "commits"
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        done = len(list(commits.glob("[0-9]*")))
        if done > beyond:
            return done
        assert process.poll() is None, f"the capture has ended; see {folder / 'capture.log'}"
        time.sleep(0.2)
    raise TimeoutError(f"no further batch after {beyond}; see {folder}")


def environment(folder: Path) -> tuple[Path, Path]:
    """A small archive that leads to our own packages, and where its interpreter notes that it ran."""
    made, noted = folder / "ship", folder / "ran-on-executors"
    packages = made / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (made / "bin").mkdir()
    python = Path(sys.executable).resolve()
    (made / "bin" / "python").symlink_to(python)
    (made / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    note = f"import sys; open({str(noted)!r}, 'a').write(sys.executable + chr(10))"
    (packages / "shipped.pth").write_text("\n".join([*sys.path[1:], note]))
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(made, ".")
    return archive, noted


def check(folder: Path) -> bool:
    archive, noted = environment(folder)
    shipped = ("--archive", str(archive))
    cluster = Cluster(folder)
    properties = {"EnablePartitioning": True, "RequiresDuplicateDetection": True}
    server = ServerProcess(folder, namespace({QUEUE: properties}))
    server.start()
    producer = Producer(server)
    producer.start()
    settings = ("--conf", "spark.executor.memory=600m", "--max-per-batch", "2000")
    on_cluster = ("--master", cluster.url, *settings, *shipped)
    running = capture(server, folder, *on_cluster, "--continuous")
    try:
        done = wait_for_batches(folder, running, 1)
        workers = [number for number, pids in enumerate(cluster.executors()) if pids]
        print(f"two workers, {len(workers)} with executors; {done} batches", flush=True)  # noqa: T201
        cluster.kill_worker(workers[0])
        done = wait_for_batches(folder, running, done + 2)
        print(f"a worker was killed; {done} batches", flush=True)  # noqa: T201
        produced = producer.stop()
        running.send_signal(signal.SIGTERM)
        stopped = summary_of(running)
        assert stopped["outcome"] == "stopped", stopped
        last = summary_of(capture(server, folder, *on_cluster))
        assert last["outcome"] == "finished", last
    finally:
        if running.poll() is None:
            running.kill()
        cluster.close()
    counted = count(folder)
    server.kill()
    wanted = {"rows": produced, "distinct": produced}
    print(f"executors ran {sorted(set(noted.read_text().split()))}")  # noqa: T201
    verdict = "as it must be" if counted == wanted else f"WRONG, it must be {wanted}"
    print(f"produced {produced}, captured {counted}: {verdict}")  # noqa: T201
    return counted == wanted


def count(folder: Path) -> dict[str, int]:
    from pyspark_servicebus import spark_session
    from pyspark_servicebus.pipelines import captured

    spark = spark_session("count", "local[2]", {"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
    rows = captured(spark, str(folder / "sink"))
    counted = {"rows": rows.count(), "distinct": rows.select("body").distinct().count()}
    spark.stop()
    return counted


def main() -> int:
    return 0 if check(Path(tempfile.mkdtemp(prefix="cluster-check-"))) else 1


if __name__ == "__main__":
    sys.exit(main())
