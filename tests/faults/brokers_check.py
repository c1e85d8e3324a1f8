"""A cluster of three brokers on PostgreSQL under load, while brokers are killed, stopped and restarted.

    python tests/faults/brokers_check.py [--seconds 120] [--seed N]

Senders number the messages of their sessions and repeat a send until it is acknowledged; duplicate detection
drops what was stored before. Receivers take sessions at any broker and complete what they get. Meanwhile one
broker at a time is killed (SIGKILL), stopped for longer than the others wait (SIGSTOP, SIGCONT), or restarted
in order (SIGTERM); now and then the database crashes. In the end everything is counted: what was acknowledged
and never received is lost; what was completed and comes back is unexpected; what comes before its predecessor
in a session is out of order. Exit code 1 unless all three are 0 (N-03, N-04).
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from fix_postgres import Postgres
from fix_postgres import cluster as postgres_server
from interop.test_cluster import Cluster, until

NAMES: Final = "abc"
SENDERS: Final = 4
RECEIVERS: Final = 4
QUEUE: Final = "steps"
BRISK: Final = {"retry_total": 1, "retry_backoff_factor": 0.05, "retry_backoff_max": 0.1}
PATIENCE_S: Final = 120.0
# The SDK fetches so many ahead. Without that, it releases what arrives between two calls, out of order.
BATCH: Final = 50
# A receiver that kept one session for good would leave the others' receivers nothing to compete for.
BATCHES_MAX: Final = 20


class Load:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.acknowledged = [0] * SENDERS
        """How many messages of each session were acknowledged."""
        self.seen: dict[int, int] = defaultdict(int)
        """The number after the highest one of each session that was received."""
        self.received: dict[int, set[int]] = defaultdict(set)
        self.completed: dict[int, dict[int, float]] = defaultdict(dict)
        """When the completion of a message was answered, by session and number."""
        self.unexpected: list[str] = []
        self.out_of_order: list[str] = []
        self.sending = threading.Event()
        self.sending.set()
        self.ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(each,), daemon=True) for each in range(SENDERS)
        ]
        self._threads += [threading.Thread(target=self._receive, daemon=True) for _ in range(RECEIVERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _client(self) -> ServiceBusClient:
        name = self._random.choice(NAMES)
        return ServiceBusClient.from_connection_string(self._cluster[name].connection_string, **BRISK)

    def _send(self, session: int) -> None:
        while self.sending.is_set():
            try:
                with self._client() as client, client.get_queue_sender(QUEUE) as sender:
                    while self.sending.is_set():
                        number = self.acknowledged[session]
                        identity = f"{session}/{number}"
                        sender.send_messages(
                            ServiceBusMessage(identity, session_id=str(session), message_id=identity)
                        )
                        self.acknowledged[session] = number + 1
            except (ServiceBusError, AzureError, OSError, ValueError):
                time.sleep(0.1)

    def _receive(self) -> None:
        while not self.ended.is_set():
            session = self._random.randrange(SENDERS)
            try:
                with (
                    self._client() as client,
                    client.get_queue_receiver(
                        QUEUE, session_id=str(session), prefetch_count=BATCH
                    ) as receiver,
                ):
                    for _ in range(BATCHES_MAX):
                        asked_at = time.monotonic()
                        messages = receiver.receive_messages(BATCH, max_wait_time=1)
                        if not messages:
                            break
                        for message in messages:
                            number = int(str(message).partition("/")[2])
                            self._received(session, number, asked_at)
                            receiver.complete_message(message)
                            self.completed[session].setdefault(number, time.monotonic())
            except (ServiceBusError, AzureError, OSError, ValueError):
                time.sleep(0.1)

    def _received(self, session: int, number: int, asked_at: float) -> None:
        # One that was given to two receivers, because the first had lost the session, is as it should be.
        if self.completed[session].get(number, asked_at) < asked_at:
            self.unexpected.append(f"{session}/{number}")
        elif number > self.seen[session]:
            self.out_of_order.append(f"{session}/{number} before {self.seen[session]}")
        self.seen[session] = max(self.seen[session], number + 1)
        self.received[session].add(number)

    def finish(self) -> int:
        """How many acknowledged messages are lost."""
        self.sending.clear()
        for thread in self._threads[:SENDERS]:
            thread.join(PATIENCE_S)
        missing, deadline = self._missing(), time.monotonic() + PATIENCE_S
        while missing and time.monotonic() < deadline:
            time.sleep(0.5)
            if (now_missing := self._missing()) < missing:
                missing, deadline = now_missing, time.monotonic() + PATIENCE_S
        self.ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return self._missing()

    def _missing(self) -> int:
        # A copy: receivers add to the sets meanwhile.
        received = {session: set(self.received[session]) for session in range(SENDERS)}
        return sum(
            number not in received[session]
            for session in range(SENDERS)
            for number in range(self.acknowledged[session])
        )


def fault(cluster: Cluster, postgres: Postgres, chance: random.Random) -> str:
    """One fault, from its beginning to its end."""
    victim = cluster[chance.choice(NAMES)]
    kind = chance.choice(["killed", "killed", "stopped", "stopped", "restarted", "database"])
    if kind == "killed":
        victim.kill()
        time.sleep(chance.uniform(0, 6))
        victim.start()
    elif kind == "stopped":
        victim.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(1, 8))
        victim.send_signal(signal.SIGCONT)
    elif kind == "restarted":
        victim.stop()
        time.sleep(chance.uniform(0, 2))
        victim.start()
    else:
        postgres.stop("immediate")
        time.sleep(chance.uniform(0, 2))
        postgres.start()
        return "the database crashed"
    return f"{victim.name} was {kind}"


def run(seconds: float, seed: int) -> bool:
    chance = random.Random(seed)
    faults = 0
    with postgres_server(fsync=True) as postgres, tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), postgres)
        try:
            cluster.start(*NAMES)
            until(lambda: len(set(cluster.owners())) == len(NAMES))
            with cluster.administration("a") as admin:
                admin.create_queue(
                    QUEUE,
                    enable_partitioning=True,
                    requires_session=True,
                    requires_duplicate_detection=True,
                    lock_duration=timedelta(seconds=5),
                    max_delivery_count=1000,
                )
            load = Load(cluster, seed)
            load.start()
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                time.sleep(chance.uniform(1, 4))
                told = fault(cluster, postgres, chance)
                sys.stdout.write(f"{told}; acknowledged {sum(load.acknowledged)}\n")
                sys.stdout.flush()
                faults += 1
            lost = load.finish()
            if lost:
                for name in NAMES:
                    sys.stderr.write(f"--- the log of {name}:\n{cluster[name].log.read_text()}\n")
        finally:
            cluster.close()
    sys.stdout.write(
        f"seed {seed}: {faults} faults, {load.acknowledged} messages: lost {lost}, "
        f"unexpected {len(load.unexpected)} {load.unexpected[:5]}, "
        f"out of order {len(load.out_of_order)} {load.out_of_order[:5]}\n"
    )
    return not (lost or load.unexpected or load.out_of_order)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(0 if run(given.seconds, given.seed) else 1)
