"""Back up a server under load, restore each backup, and account for everything.

    python tests/faults/backup_check.py --rounds 20 [--brokers 2]

Messages are sent to a partitioned queue and, through a queue that forwards, to another one; some are
received and completed; queues and topics are created and deleted all the time. Each round makes a backup,
restores it, starts a server on it beside the one that runs, and empties it. What must hold (exit code 1
otherwise):

    it starts       every time
    messages        what was acknowledged before the backup and not completed is there; what was completed
                    before it is not; nothing is there twice; of what was sent meanwhile everything up to one
                    moment is there, though messages are on their way between stores
    entities        the same of creating and deleting them, and every one of them works
    the live one    no store of it is opened or touched
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.management.client import QUEUES, TOPICS, ManagementClient
from bendybus.management.properties import QUEUE, SUBSCRIPTION, TOPIC, new_elements
from fix_server import ServerProcess, namespace

STORES: Final = 3
BATCH: Final = 10
# What a round waits for, so that each backup is of something else.
PROGRESS: Final = 200
# Of a hundred messages so many are completed: the rest is what every backup has to keep.
COMPLETED_SHARE: Final = 99
# Senders wait while so many are to be received.
BACKLOG_MAX: Final = 2000
# What is not completed is delivered again and again while the check runs, and must not become a dead letter.
KEPT: Final = {"EnablePartitioning": True, "LockDuration": "PT5M", "MaxDeliveryCount": 1000}
# Entities that come and go: so many exist at a time.
ENTITIES: Final = 4
# The load leaves the machine to others now and then.
PAUSE_S: Final = 0.01
EMPTY_AFTER_S: Final = 1.5
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known of things at one moment."""

    begun: frozenset[str]
    there: frozenset[str]
    ending: frozenset[str]
    gone: frozenset[str]


@dataclass(slots=True)
class Ledger:
    """Things that come and go: messages or entities. Each set is changed by one thread only."""

    begun: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    """Acknowledged."""
    ending: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def moment(self) -> Moment:
        """Ends before beginnings: whatever is known to be there has begun."""
        gone, ending, there = (frozenset(tuple(each)) for each in (self.gone, self.ending, self.there))
        return Moment(frozenset(tuple(self.begun)), there, ending, gone)

    @staticmethod
    def complaints(what: str, found: Counter[str], before: Moment, after: Moment) -> Iterator[str]:
        lost = before.there - after.ending - found.keys()
        yield from (f"{what} {each} is lost" for each in sorted(lost)[:5])
        yield from (f"{what} {each} is back" for each in sorted(before.gone & found.keys())[:5])
        yield from (f"{what} {each} is there {n} times" for each, n in found.items() if n > 1)
        yield from (f"{what} {each} is from nowhere" for each in sorted(found.keys() - after.begun)[:5])

    @staticmethod
    def gaps(what: str, found: Counter[str], after: Moment) -> Iterator[str]:
        """A sender waits for each batch: who has one of a batch has all of those before, or they are gone."""
        last = max((_number(each) for each in found), default=0)
        prefix = next(iter(found), "-").rpartition("-")[0]
        whole = {f"{prefix}-{number}" for number in range(last - last % BATCH)}
        missing = sorted(whole - after.ending - found.keys(), key=_number)
        yield from (f"{what} {each} is missing, and {prefix}-{last} is there" for each in missing[:5])


class BackupCheck:
    def __init__(self, folder: Path, brokers: int = 1) -> None:
        self._folder = folder
        queues = {
            "work": KEPT,
            "sink": KEPT,
            "source": {"EnablePartitioning": True, "ForwardTo": "sink"},
        }
        (folder / "live").mkdir()
        options = ("--stores", str(STORES), "--brokers", str(brokers))
        self.live = ServerProcess(folder / "live", namespace(queues), options)
        self.messages = {"work": Ledger(), "sink": Ledger()}
        self.entities = Ledger()
        self.complaints: list[str] = []
        self.restored = 0
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def run(self, rounds: int) -> None:
        self.live.start()
        work = (
            lambda: self._keep_sending("work", "work"),
            lambda: self._keep_sending("source", "sink"),
            lambda: self._keep_completing("work"),
            lambda: self._keep_completing("sink"),
            self._keep_making_entities,
        )
        threads = [threading.Thread(target=self._watched, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        try:
            for number in range(rounds):
                self._wait_for_progress()
                self._round(number)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self.live.kill()
        if self._failures:
            raise self._failures[0]

    # -- the load ----------------------------------------------------------------------

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            self._failures.append(failure)
            self._stop.set()
            raise

    @contextmanager
    def _client(self, server: ServerProcess) -> Iterator[BusClient]:
        settings = ClientSettings.from_connection_string(server.connection_string)
        with BusClient(settings) as client:
            yield client

    def _keep_sending(self, queue: str, destination: str) -> None:
        ledger, ids = self.messages[destination], (f"{queue}-{number}" for number in count())
        with self._client(self.live) as client:
            sender = client.sender(queue)
            while not self._stop.wait(PAUSE_S):
                if len(ledger.there) * COMPLETED_SHARE // 100 - len(ledger.gone) > BACKLOG_MAX:
                    continue
                batch = [next(ids) for _ in range(BATCH)]
                ledger.begun.update(batch)
                sender.send([encode(each.encode(), message_id=each) for each in batch])
                ledger.there.update(batch)

    def _keep_completing(self, queue: str) -> None:
        ledger = self.messages[queue]
        with self._client(self.live) as client:
            receiver = client.receiver(queue)
            while not self._stop.wait(PAUSE_S):
                received = receiver.receive(BATCH, timeout_s=0.5)
                chosen = [each for each in received if _number(_id(each.body)) % 100 < COMPLETED_SHARE]
                ids = [_id(each.body) for each in chosen]
                ledger.ending.update(ids)
                receiver.complete(chosen)
                ledger.gone.update(ids)

    def _keep_making_entities(self) -> None:
        made: deque[str] = deque()
        with ManagementClient(ConnectionString.parse(self.live.connection_string)) as management:
            for number in count():
                if self._stop.wait(PAUSE_S):
                    return
                name = f"{'queue' if number % 2 else 'topic'}-{number}"
                self.entities.begun.add(name)
                _create(management, name)
                self.entities.there.add(name)
                made.append(name)
                if len(made) > ENTITIES:
                    name = made.popleft()
                    self.entities.ending.add(name)
                    management.delete(name)
                    self.entities.gone.add(name)

    def _wait_for_progress(self) -> None:
        ledgers = list(self.messages.values())
        wanted = [len(each.gone) + PROGRESS for each in ledgers]
        deadline = time.monotonic() + TIMEOUT_S
        while any(len(each.gone) < least for each, least in zip(ledgers, wanted, strict=True)):
            assert time.monotonic() < deadline and not self._failures, "the load gets nowhere"
            time.sleep(PAUSE_S)

    # -- a round -----------------------------------------------------------------------

    def _round(self, number: int) -> None:
        folder = self._folder / f"round-{number}"
        folder.mkdir()
        ledgers = {**self.messages, "entity": self.entities}
        before = {name: ledger.moment() for name, ledger in ledgers.items()}
        command("backup", str(folder / "backup"), "--data", str(self.live.data))
        after = {name: ledger.moment() for name, ledger in ledgers.items()}
        command("restore", str(folder / "backup"), "--data", str(folder / "data"))
        copy = ServerProcess(folder, namespace({}))
        copy.start()
        try:
            found = self._found(copy)
        finally:
            copy.stop()
        for name, counted in found.items():
            for complaint in Ledger.complaints(name, counted, before[name], after[name]):
                self.complaints.append(f"round {number}: {complaint}")
        for name in self.messages:
            gaps = Ledger.gaps(name, found[name], after[name])
            self.complaints += [f"round {number}: {complaint}" for complaint in gaps]
        self.restored += 1
        shutil.rmtree(folder)

    def _found(self, copy: ServerProcess) -> dict[str, Counter[str]]:
        with ManagementClient(ConnectionString.parse(copy.connection_string)) as management:
            names = [entry.name for path in (QUEUES, TOPICS) for entry in management.list(path)]
        entities = Counter(name for name in names if name not in ("work", "sink", "source"))
        with self._client(copy) as client:
            for name in entities:
                _try_out(client, name)
            found = {queue: _emptied(client, queue) for queue in self.messages}
        return {**found, "entity": entities}


def _create(management: ManagementClient, name: str) -> None:
    if name.startswith("queue"):
        management.create(name, QUEUE.element, new_elements(QUEUE, {"EnablePartitioning": True}))
        return
    management.create(name, TOPIC.element, new_elements(TOPIC, {"EnablePartitioning": True}))
    path = f"{name}/Subscriptions/s"
    management.create(path, SUBSCRIPTION.element, new_elements(SUBSCRIPTION, {}))


def _try_out(client: BusClient, name: str) -> None:
    """A message goes through it, whole as it should be. A topic may have been caught without subscription."""
    client.sender(name).send([encode(b"trial")])
    if name.startswith("queue"):
        receiver = client.receiver(name, deletes=True)
        assert [each.body for each in receiver.receive(1, timeout_s=10)] == [b"trial"], name
        receiver.close()


def _emptied(client: BusClient, queue: str) -> Counter[str]:
    found: Counter[str] = Counter()
    receiver = client.receiver(queue, deletes=True)
    # Whatever is still to be forwarded arrives meanwhile.
    while batch := receiver.receive(500, timeout_s=EMPTY_AFTER_S):
        found.update(_id(each.body) for each in batch)
    receiver.close()
    return found


def _number(message_id: str) -> int:
    return int(message_id.rpartition("-")[2])


def _id(body: object) -> str:
    assert isinstance(body, bytes)
    return body.decode()


def command(*arguments: str) -> None:
    bendybus = Path(sys.executable).with_name("bendybus")
    done = subprocess.run([str(bendybus), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=1)
    given = parser.parse_args()
    rounds = given.rounds
    folder = Path(tempfile.mkdtemp(prefix="bendybus-backup-"))
    check = BackupCheck(folder, given.brokers)
    check.run(rounds)
    sent = sum(len(each.there) for each in check.messages.values())
    lines = [
        *check.complaints,
        f"{check.restored} of {rounds} backups restored, while {sent:,} messages were sent and "
        f"{len(check.entities.there):,} entities made",
        f"violated; the server's log: {check.live.log}" if check.complaints else "everything holds",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    if not check.complaints:
        shutil.rmtree(folder)
    return 1 if check.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
