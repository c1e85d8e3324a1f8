"""`bendybus pipeline` as a process: told apart from its Python by signals, exit codes and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.json_api import ask_json
from cli.conftest import Bendybus, MakeQueue
from fix_server import Kind, ServerProcess

# Spark starts in seconds, on a busy machine in many.
PATIENCE_S = 200
# It runs for some seconds, which is too short for the optimising compiler to pay off.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("capture", "nowhere", "sink"), "nowhere' could not be found"),
        (("capture", "nowhere", "sink", "--summary", "no/such.json"), "no folder 'no'"),
        (("capture", "nowhere", "sink", "--format", "delta", "--no-raw", "--checkpoint", "c"), "nowhere'"),
        (("replay", "sink", "nowhere"), "no folder 'sink'"),
        (("replay", "sink", "nowhere", "--where", "true", "--available-now"), "no folder 'sink'"),
        (("replay", ".", "nowhere"), "'.' holds no capture"),
        (("report",), "needs an entity"),
        (("report", "--captured", "sink"), "no folder 'sink'"),
        (("report", "nowhere", "--page", "report.html", "--top", "0"), "top"),
        (("triage", "nowhere"), "'nowhere"),
        (("repartition", "nowhere", "new", "--yes"), "nowhere' could not be found"),
        (("repartition", "nowhere", "new"), "pass --yes"),
        (("repartition", "nowhere", "new", "--yes", "--continuous"), "no --continuous"),
        (("route", "nowhere", "there"), "--sql"),
        (("route", "nowhere", "there", "--browse", "--sql-file", "no.sql"), "no.sql"),
        (("route", "nowhere", "there", "--sql", "SELECT * FROM messages"), "nowhere' could not be found"),
    ],
)
def test_a_mistake_is_one_line_before_spark_is_started(
    attempt: Bendybus, arguments: tuple[str, ...], told: str
) -> None:
    done = attempt("pipeline", *arguments)
    assert done.returncode in (1, 2)
    # The line may follow the usage.
    assert told in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
    assert "SharedAccessKey" not in done.stderr


def test_a_triage_of_few_letters_starts_no_spark_and_a_reason_that_matches_nothing_fails(
    make_queue: MakeQueue, bendybus: Bendybus, attempt: Bendybus
) -> None:
    queue = make_queue(Kind.PARTITIONED)
    bendybus("send", queue, "--body", "x", "--count", "20", "--partition-key", "ada")
    bendybus("receive", queue, "--max", "20", "--dead-letter", "--reason", "Late")
    listed = json.loads(bendybus("pipeline", "triage", queue, "-o", "json").stdout)
    assert [(group["reason"], group["messages"]) for group in listed["groups"]] == [("Late", 20)]
    done = attempt("pipeline", "triage", queue, "--reason", "Nonsense", "--action", "discard", "--yes")
    assert done.returncode == 1
    assert "has the reason 'Nonsense'; nothing was done" in done.stderr and done.stderr.count("\n") == 1
    told = bendybus("pipeline", "triage", queue, "--action", "discard", "--yes", "-o", "json")
    assert json.loads(told.stdout)["messages"] == 20
    assert "Spark" not in told.stderr


def test_without_spark_the_extra_is_named(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('not here', name='pyspark')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "BENDYBUS_CONNECTION_STRING": server.connection_string}
    command = [str(Path(sys.executable).with_name("bendybus"))]
    done = subprocess.run(
        [*command, "pipeline", "triage", "orders"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'pyspark' is not installed: pip install 'bendybus[spark]'" in done.stderr
    helped = subprocess.run(
        [*command, "--help"], env=environment, capture_output=True, text=True, check=False
    )
    assert helped.returncode == 0 and "pipeline" in helped.stdout


@pytest.mark.row("S-05", "S-06")
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_capture_goes_on_until_a_signal_and_sums_up(
    server: ServerProcess, make_queue: MakeQueue, bendybus: Bendybus, tmp_path: Path
) -> None:
    queue = make_queue(Kind.PARTITIONED)
    bendybus("send", queue, "--body", "x", "--count", "20")
    capture = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("bendybus")), "pipeline", "capture", queue, "sink"),
            *("--continuous", "--consume", "--interval", "0.2", "--master", "local[2]"),
            *("--summary", "summary.json", "-o", "json"),
        ],
        env={
            **os.environ,
            "BENDYBUS_CONNECTION_STRING": server.connection_string,
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    # The batch after the first completes what the first has taken.
    while not list(tmp_path.glob("sink/_checkpoints/*/commits/1")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    capture.send_signal(signal.SIGTERM)
    told, complaints = capture.communicate(timeout=PATIENCE_S)
    assert capture.returncode == 0, complaints
    summary = json.loads(told)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert (summary["pipeline"], summary["outcome"], summary["mode"]) == ("capture", "stopped", "consume")
    assert "Stopped; run it again to go on." in complaints
    namespace = ConnectionString.parse(server.connection_string)
    reported = [run for run in ask_json(namespace, "GET", "/$pipelines")["runs"] if run["about"] == queue]
    assert [(run["pipeline"], run["state"], run["messages"]) for run in reported] == [
        ("capture", "stopped", summary["messages"])
    ]
    shown = json.loads(bendybus("queue", "show", queue, "-o", "json").stdout)
    assert shown["messageCount"] == 0
    metadata = (tmp_path / "sink" / f"entity={queue}" / "_spark_metadata").glob("[0-9]*")
    assert any(".parquet" in path.read_text() for path in metadata)
