"""A cluster of three brokers on PostgreSQL under load, while brokers, databases and the network fail.

    python tests/faults/brokers_check.py [--seconds 120] [--faults 20] [--seed N]

Senders number the messages of their sessions and repeat a send until it is acknowledged; duplicate detection
drops what was stored before. Receivers take sessions at any broker and complete what they get. Meanwhile
brokers are killed (SIGKILL), stopped for longer than the others wait (SIGSTOP, SIGCONT), and restarted in
order (SIGTERM), alone or all in turn. One database crashes; another one, which has the catalog too, fails
over to its synchronous standby. Every broker and database is a machine of its own (fix_machines.py), and the
network between them is cut, in both directions or in one. Where machines cannot be made, the check says so
and cuts nothing.

In the end everything is counted: what was acknowledged and never received is lost; what was completed and
comes back is unexpected; what comes before its predecessor in a session is out of order. Exit code 1 unless
all three are 0 (N-03, N-04, N-07).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from fix_machines import LOOPBACK, Network, NoNetwork, network
from fix_postgres import Pair, Postgres, programs
from fix_postgres import cluster as postgres_server
from fix_postgres import pair as postgres_pair
from interop.test_cluster import Broker, Cluster, until

NAMES: Final = "abc"
# A primary and its standby, and a server that is alone.
DATABASES: Final = ("first", "second", "other")
CLIENTS: Final = "clients"
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


class Faults:
    """One fault after the other, each from its beginning to its end.

    Every kind comes once before any comes again.
    """

    def __init__(self, cluster: Cluster, pair: Pair, other: Postgres, net: Network | None, seed: int) -> None:
        self._cluster = cluster
        self._pair = pair
        self._other = other
        self._net = net
        self._chance = random.Random(seed)
        self._kinds: list[Callable[[], str]] = []
        self.count = 0

    def next(self) -> str:
        if not self._kinds:
            self._kinds = [
                self.killed,
                self.stopped,
                self.restarted,
                self.rolled,
                self.crashed,
                self.failed_over,
            ]
            if self._net is not None:
                self._kinds += [
                    self.cut,
                    self.cut_one_way,
                    self.cut_from_database,
                    self.cut_from_catalog,
                    self.isolated,
                ]
            self._chance.shuffle(self._kinds)
        self.count += 1
        return self._kinds.pop()()

    def _wait(self, shortest: float, longest: float) -> None:
        time.sleep(self._chance.uniform(shortest, longest))

    def _victim(self) -> Broker:
        return self._cluster[self._chance.choice(NAMES)]

    def killed(self) -> str:
        victim = self._victim()
        victim.kill()
        self._wait(0, 6)
        victim.start()
        return f"{victim.name} was killed"

    def stopped(self) -> str:
        """For longer than the others wait: the stalled owner wakes up as one that was displaced."""
        victim = self._victim()
        victim.send_signal(signal.SIGSTOP)
        self._wait(1, 9)
        victim.send_signal(signal.SIGCONT)
        return f"{victim.name} was stopped"

    def restarted(self) -> str:
        victim = self._victim()
        victim.stop()
        self._wait(0, 2)
        victim.start()
        return f"{victim.name} was restarted"

    def rolled(self) -> str:
        for name in self._chance.sample(NAMES, len(NAMES)):
            self._cluster[name].stop()
            self._cluster[name].start()
        return "all brokers were restarted, one after the other"

    def crashed(self) -> str:
        server = self._chance.choice([self._pair.primary, self._other])
        server.stop("immediate")
        self._wait(0, 2)
        server.start()
        return f"the database {server.place} crashed"

    def failed_over(self) -> str:
        self._pair.fail_over()
        self._wait(2, 6)
        self._pair.rejoin()
        return f"the database failed over to {self._pair.primary.place}"

    # -- cuts ---------------------------------------------------------------------

    def _cut(self, ways: Sequence[tuple[str, str]]) -> str:
        assert self._net is not None
        with self._net.cut_between(ways):
            self._wait(2, 10)
        return f"the way was cut: {', '.join(f'{one} to {other}' for one, other in ways)}"

    def cut(self) -> str:
        one, other = self._chance.sample(NAMES, 2)
        return self._cut([(one, other), (other, one)])

    def cut_one_way(self) -> str:
        one, other = self._chance.sample([*NAMES, *DATABASES], 2)
        return self._cut([(one, other)])

    def cut_from_database(self) -> str:
        return self._cut(both_ways(self._victim().name, "other"))

    def cut_from_catalog(self) -> str:
        """And from the messaging stores that are beside it, and from its standby."""
        name = self._victim().name
        return self._cut([*both_ways(name, "first"), *both_ways(name, "second")])

    def isolated(self) -> str:
        """From everything but its clients."""
        name = self._victim().name
        others = [*NAMES.replace(name, ""), *DATABASES]
        return self._cut([way for each in others for way in both_ways(name, each)])


def both_ways(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]


def run(seconds: float, faults: int, seed: int) -> bool:
    if programs() is None:
        say("SKIPPED: there is no PostgreSQL here: neither PyPI's pgserver nor Debian's postgresql")
        return True
    with contextlib.ExitStack() as exits:
        try:
            net = exits.enter_context(network(*NAMES, *DATABASES, CLIENTS))
        except NoNetwork as reason:
            say(f"SKIPPED: cuts of the network, because {reason}. All brokers are on one machine")
            net = None
        machines = dict.fromkeys([*NAMES, *DATABASES], LOOPBACK) if net is None else net.machines
        if net is not None:
            net.enter(CLIENTS)
        servers = exits.enter_context(postgres_pair(machines["first"], machines["second"]))
        other = exits.enter_context(postgres_server(fsync=True, machine=machines["other"]))
        folder = exits.enter_context(tempfile.TemporaryDirectory())
        cluster = Cluster(Path(folder), servers, other, machines=machines)
        exits.callback(cluster.close)
        return check(cluster, Faults(cluster, servers, other, net, seed), seconds, faults, seed)


def check(cluster: Cluster, faults: Faults, seconds: float, faults_min: int, seed: int) -> bool:
    """Lasts for at least so many seconds and faults."""
    chance = random.Random(seed)
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
    while time.monotonic() < ends or faults.count < faults_min:
        time.sleep(chance.uniform(1, 4))
        say(f"{faults.next()}; acknowledged {sum(load.acknowledged)}")
    lost = load.finish()
    if lost:
        for name in NAMES:
            sys.stderr.write(f"--- the log of {name}:\n{cluster[name].log.read_text()}\n")
    say(
        f"seed {seed}: {faults.count} faults, {load.acknowledged} messages: lost {lost}, "
        f"unexpected {len(load.unexpected)} {load.unexpected[:5]}, "
        f"out of order {len(load.out_of_order)} {load.out_of_order[:5]}"
    )
    return not (lost or load.unexpected or load.out_of_order)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--faults", type=int, default=0, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.exit(0 if run(given.seconds, given.faults, given.seed) else 1)
