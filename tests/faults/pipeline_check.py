"""Kill each pipeline with SIGKILL at random moments, start it again, and count.

    python tests/faults/pipeline_check.py --kills 3 --seed 7

The commands run as a user runs them, one after the other, each against queues of its own: a
process and its Java are killed at some moment of their life, `--kills` times, and then the
command runs to its end. All messages must be where they belong, once, and in the order that
their keys had. Streams under more kinds of faults: spark_check.py; clusters: cluster_check.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bendybus.amqp.types import Int
from bendybus.client import BusClient, ClientSettings, ReceivedMessage, encode
from bendybus.operations.sessions import session_state, set_session_state
from faults.spark_check import processes_below
from fix_server import ServerProcess, namespace

COUNT: Final = 3000
KEYS: Final = 20
# From the moment when the command begins to work, which is some seconds after its start.
LIFE_S: Final = (0.0, 6.0)
# On a machine that is busy with other work, Spark alone takes minutes to start.
PATIENCE_S: Final = 900.0

QUEUES: Final = {
    "captured": {"EnablePartitioning": True},
    "replayed": {"EnablePartitioning": False},
    "buried": {"EnablePartitioning": True},
    "moved": {"EnablePartitioning": False},
    "routed": {"EnablePartitioning": True},
    "arrived": {"EnablePartitioning": True, "RequiresDuplicateDetection": True},
}
TOPIC: Final = {
    "Name": "topic",
    "Properties": {"EnablePartitioning": True},
    "Subscriptions": [{"Name": "all"}, {"Name": "sessions", "Properties": {"RequiresSession": True}}],
}
LETTERS: Final = 100


class Check:
    def __init__(self, folder: Path, kills: int, seed: int) -> None:
        self.folder = folder
        self._kills = kills
        self._chance = random.Random(seed)
        self.server = ServerProcess(folder, namespace(QUEUES, topics=[TOPIC]))
        self.server.start()
        self.client = BusClient(ClientSettings.from_connection_string(self.server.connection_string))

    # -- messages --------------------------------------------------------------------------

    def fill(self, queue: str, *, session: bool = False) -> None:
        sender = self.client.sender(queue)
        for key in range(KEYS):
            numbers = range(key, COUNT, KEYS)
            named = {"session_id": f"k{key}"} if session else {"partition_key": f"k{key}"}
            messages = [encode(b"%d" % n, message_id=f"m{n}", **named) for n in numbers]
            sender.post(messages, f"k{key}")
        sender.flush()

    def bury(self, queue: str) -> None:
        receiver = self.client.receiver(queue)
        left = COUNT
        while left:
            messages = receiver.receive(500)
            receiver.dead_letter(messages, "Check")
            left -= len(messages)
        receiver.close()

    def contents(self, queue: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while True:
            first = found[-1].sequence_number + 1 if found else 0
            body: dict[str, object] = {"from-sequence-number": first, "message-count": Int(250)}
            answer = self.client.management(queue).request("com.microsoft:peek-message", body)
            if answer is None:
                return found
            found += [ReceivedMessage(bytes(each["message"])) for each in answer["messages"]]

    def complete_in(self, *queues: str, deferred: bool = False) -> bool:
        """Whether these have all of them, once, and each key's in order. Deferred ones have their numbers."""
        found: dict[str, list[int]] = {}
        for message in [message for queue in queues for message in self.contents(queue)]:
            found.setdefault(message.session_id or message.partition_key or "", []).append(int(message.body))
        if deferred:
            found = {key: sorted(numbers) for key, numbers in found.items()}
        return found == {f"k{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}

    # -- the command -------------------------------------------------------------------------

    def survives(self, *arguments: str, working: Callable[[], bool]) -> dict[str, object]:
        """Kill the command again and again once it is `working`, then run it to its end; its summary."""
        for number in range(self._kills):
            process = self._start(arguments)
            deadline = time.monotonic() + PATIENCE_S
            while process.poll() is None and not working() and time.monotonic() < deadline:
                time.sleep(0.05)
            life_s = self._chance.uniform(*LIFE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(life_s)
            ended = process.poll()
            self._kill(process)
            told = f"killed after {life_s:.1f} s" if ended is None else f"ended by itself ({ended})"
            print(f"  {arguments[0]}: {number + 1} of {self._kills}, {told}", flush=True)  # noqa: T201
        last = self._start(arguments)
        try:
            told, _ = last.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._kill(last)
            raise
        assert last.returncode == 0, f"{arguments[0]} failed; see {self.folder / 'commands.log'}"
        summary = json.loads(told)
        assert isinstance(summary, dict) and summary["outcome"] == "finished", summary
        return summary

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        for pid in [process.pid, *processes_below(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()

    def _start(self, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
        environment = {**os.environ, "BENDYBUS_CONNECTION_STRING": self.server.connection_string}
        command = [str(Path(sys.executable).with_name("bendybus")), "pipeline", *arguments]
        with (self.folder / "commands.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--master", "local[2]", "-o", "json"],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def exists(self, pattern: str) -> Callable[[], bool]:
        return lambda: any(self.folder.glob(pattern))

    # -- pipelines ---------------------------------------------------------------------------

    def capture(self) -> bool:
        self.fill("captured")
        begun = self.exists("sink/_checkpoints/entity=captured/offsets/0")
        self.survives("capture", "captured", "sink", "--consume", "--max-per-batch", "400", working=begun)
        return not self.contents("captured") and self._captured() == list(range(COUNT))

    def _captured(self) -> list[int]:
        from pyspark_servicebus import spark_session
        from pyspark_servicebus.pipelines import captured

        spark = spark_session("count", "local[2]", {"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
        found = sorted(int(row.body) for row in captured(spark, str(self.folder / "sink")).collect())
        spark.stop()
        return found

    def replay(self) -> bool:
        """Of what `capture` has left; nobody receives meanwhile, so that marks tell all."""
        begun = self.exists("sink/_checkpoints/replay-*/replay.json")
        self.survives("replay", "sink", "replayed", "--step", "500", working=begun)
        return self.complete_in("replayed")

    def triage(self) -> bool:
        self.fill("buried")
        self.bury("buried")
        begun = self.exists("checkpoints/triage-buried/triage.json")
        self.survives("triage", "buried", "--action", "resubmit", working=begun)
        found = sorted(int(message.body) for message in self.contents("buried"))
        return found == list(range(COUNT)) and not self.contents("buried/$deadletterqueue")

    def repartition(self) -> bool:
        self.fill("moved")
        begun = self.exists("checkpoints/repartition-moved-to-moved-2/repartition.json")
        self.survives("repartition", "moved", "moved-2", "--yes", "--ending", "delete", working=begun)
        return self.complete_in("moved-2")

    def repartition_topic(self) -> bool:
        """With deferred messages, dead letters and the states of sessions."""
        self.fill("topic", session=True)
        every, sessions = "topic/Subscriptions/all", "topic/Subscriptions/sessions"
        receiver = self.client.receiver(every)
        receiver.dead_letter(receiver.receive(LETTERS), "Check")
        receiver.defer(receiver.receive(LETTERS))
        receiver.close()
        states = {f"k{key}": b"state %d" % key for key in range(KEYS)}
        for session_id, state in states.items():
            set_session_state(self.client, sessions, session_id, state)
        begun = self.exists("checkpoints/repartition-topic-to-topic-2/repartition.json")
        summary = self.survives(
            "repartition", "topic", "topic-2", "--yes", "--ending", "delete", working=begun
        )
        every, sessions = "topic-2/Subscriptions/all", "topic-2/Subscriptions/sessions"
        letters = f"{every}/$deadletterqueue"
        moved = (summary["messages"], summary["deadLetters"], summary["deferred"], summary["sessionStates"])
        return (
            moved == (2 * COUNT, len(self.contents(letters)), summary["deferred"], KEYS)
            and self.complete_in(sessions)
            and self.complete_in(letters, every, deferred=True)
            and all(session_state(self.client, sessions, each) == state for each, state in states.items())
        )

    def route(self) -> bool:
        self.fill("routed")
        begun = self.exists("checkpoints/route-routed-to-arrived/offsets/0")
        statement = "SELECT body, partition_key, message_id FROM messages"
        options = ("--sql", statement, "--max-per-batch", "400")
        self.survives("route", "routed", "arrived", *options, working=begun)
        return self.complete_in("arrived") and not self.contents("routed")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("capture", "replay", "triage", "repartition", "repartition_topic", "route")
    parser.add_argument("--kills", type=int, default=3, help="of each pipeline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="replay needs capture")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pipeline-check-"))
    check = Check(folder, given.kills, given.seed)
    good = True
    try:
        for name in given.only:
            held = getattr(check, name)()
            print(f"{name}: {'as it must be' if held else f'WRONG; see {folder}'}", flush=True)  # noqa: T201
            good = good and held
    finally:
        check.client.close()
        check.server.kill()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
