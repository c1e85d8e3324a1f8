"""Kill the server under load, again and again, and account for every message.

    python tests/faults/crash_check.py --kills 50 --seed 7

Real clients on real sockets send to and receive from a queue of 16 partitions
and an unpartitioned one, while the process is killed (SIGKILL) at random moments
and started again on the same folder, sometimes killed once more before it is up.
After the last kill a single receiver empties everything. What must hold is said
in history.py; exit code 1 when it does not. SIGKILL leaves the kernel's cache
intact, so this is about the order of events, not about what a disk forgets.

The seed decides when the server is killed and what clients choose to do. Two runs with one seed
are alike and not identical, since the machine decides how far everybody gets meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bendybus.amqp.message import BATCH_FORMAT, Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, DeliveryState, Error, Modified, Rejected
from bendybus.amqp.types import Array
from bendybus.engine.deliveries import Delivery
from faults.history import History, Place, Seen, Settlement, Verdict, Violation
from fix_client import Client, ConnectionLost, Endpoint, LinkRefused, Receiver, Requester, Sender
from fix_server import ServerProcess, namespace

__all__ = ["CrashCheck", "main"]

PARTITIONED: Final = "parts"
PLAIN: Final = "plain"

SENDERS_PER_QUEUE: Final = 3
RECEIVERS_PER_QUEUE: Final = 3
KEYS_PER_SENDER: Final = 6
BATCH_SIZE: Final = 4

# Sends that a sender has under way at once, and deliveries that a receiver asks for.
WINDOW: Final = 60
CREDIT: Final = 80

# Senders wait for the receivers past this many: the queues must be emptied in the end.
BACKLOG_MAX: Final = 4000

# How long the server lives under load, and how long one lives that is killed while it starts.
LIFE_S: Final = (0.05, 0.7)
START_LIFE_S: Final = (0.02, 0.4)
KILLED_WHILE_STARTING: Final = 0.2

# What becomes of a delivery, in parts of a hundred; the rest stays locked until the next kill.
CHOICES: Final[dict[Settlement | None, int]] = {
    Settlement.COMPLETE: 80,
    Settlement.ABANDON: 7,
    Settlement.DEFER: 4,
    Settlement.DEAD_LETTER: 4,
    None: 5,
}
OUTCOMES: Final[dict[Settlement, DeliveryState]] = {
    Settlement.COMPLETE: Accepted(),
    Settlement.ABANDON: Modified(delivery_failed=True),
    Settlement.DEFER: Modified(undeliverable_here=True),
    Settlement.DEAD_LETTER: Rejected(
        Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "chosen"})
    ),
}

# A lock outlives every run, so that none ends but by settlement or by the process's end.
QUEUE: Final = {"LockDuration": "PT5M", "MaxDeliveryCount": 10}
QUEUES: Final = {
    PARTITIONED: {**QUEUE, "EnablePartitioning": True},
    PLAIN: {**QUEUE, "EnablePartitioning": False},
}

PEEK: Final = "com.microsoft:peek-message"
RECEIVE_DEFERRED: Final = "com.microsoft:receive-by-sequence-number"
UPDATE_DISPOSITION: Final = "com.microsoft:update-disposition"


@dataclass(slots=True)
class Life:
    """The server's present life: clients wait here for the next one."""

    generation: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: Endpoint | None = None

    async def connect(self) -> tuple[Client, int]:
        """To the server as soon as it is up, and the generation it is."""
        while True:
            await self.up.wait()
            assert self.endpoint is not None
            generation = self.generation
            try:
                client = await Client.connect(self.endpoint)
            except ConnectionLost:
                await asyncio.sleep(0.01)
                continue
            if generation == self.generation:
                return client, generation
            client.cut()


class CrashCheck:
    """One run: its server, its clients, its history."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.history = History()
        self.kills = 0
        self.kills_while_starting = 0
        self._random = random.Random(seed)
        self._seed = seed
        self._server = ServerProcess(folder, namespace(QUEUES))
        self._life = Life()

    async def run(self, kills: int) -> Verdict:
        try:
            self._start()
            load = [asyncio.ensure_future(work) for work in self._clients()]
            try:
                await self._kill_again_and_again(kills, load)
            finally:
                for client in load:
                    client.cancel()
                await asyncio.gather(*load, return_exceptions=True)
            await self._empty_everything()
        finally:
            if self._server.running:
                self._server.kill()
        return self.history.verdict()

    @property
    def log(self) -> Path:
        return self._server.log

    # -- the server's lives ------------------------------------------------------------

    def _start(self) -> None:
        self._server.start()
        self._life.generation += 1
        self._life.endpoint = Endpoint.parse(self._server.connection_string)
        self._life.up.set()

    def _kill(self) -> None:
        self._life.up.clear()
        self._server.kill()
        self.kills += 1

    async def _kill_again_and_again(self, kills: int, load: Sequence[asyncio.Future[None]]) -> None:
        for _ in range(kills):
            # A client that fails ends the run: its failure is the news.
            done, _ = await asyncio.wait(
                load, timeout=self._random.uniform(*LIFE_S), return_when=asyncio.FIRST_COMPLETED
            )
            for client in done:
                client.result()
            self._kill()
            if self._random.random() < KILLED_WHILE_STARTING:
                self._kill_while_starting()
            self._start()

    def _kill_while_starting(self) -> None:
        """Whatever it does first on the folder of a dead one, it may be killed in the middle of."""
        with self._server.log.open("a") as log:
            process = subprocess.Popen(self._server.command(), stdout=subprocess.DEVNULL, stderr=log)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._random.uniform(*START_LIFE_S))
        process.kill()
        process.wait()
        self.kills_while_starting += 1

    # -- the clients -------------------------------------------------------------------

    def _clients(self) -> list[Coroutine[None, None, None]]:
        numbers = count()
        clients: list[Coroutine[None, None, None]] = []
        for queue in QUEUES:
            clients += [self._sender(next(numbers), queue) for _ in range(SENDERS_PER_QUEUE)]
            clients += [self._receiver(next(numbers), queue) for _ in range(RECEIVERS_PER_QUEUE)]
        return clients

    async def _sender(self, number: int, queue: str) -> None:
        choice = random.Random(f"{self._seed}-{number}")
        ids = (f"{queue}-{number}-{index}" for index in count())
        while True:
            client, _ = await self._life.connect()
            with suppress(ConnectionLost, LinkRefused):
                sender = await client.sender(queue)
                while True:
                    await sender.credit()
                    while sender.unanswered < min(WINDOW, sender.link.credit) and not self._crowded():
                        self._send(sender, choice, queue, number, ids)
                    client.flush()
                    await asyncio.sleep(0.002)
                    if client.lost:
                        break
            client.cut()

    def _crowded(self) -> bool:
        return self.history.open > BACKLOG_MAX

    def _send(
        self, sender: Sender, choice: random.Random, queue: str, number: int, ids: Iterator[str]
    ) -> None:
        """A message with a key or without one, or a batch; written down before it leaves."""
        key = f"{number}-{choice.randrange(KEYS_PER_SENDER)}" if choice.random() < 0.7 else None
        batch = BATCH_SIZE if choice.random() < 0.1 else 1
        chosen = list(islice(ids, batch))
        bodies = [f"{message_id}/{key}".encode() * choice.randrange(1, 40) for message_id in chosen]
        messages = [
            encode_message(
                message_annotations=None if key is None else {"x-opt-partition-key": key},
                properties=Properties(message_id=message_id),
                data=body,
            )
            for message_id, body in zip(chosen, bodies, strict=True)
        ]
        self.history.attempt(chosen, self._stream(queue, number, key, chosen[0]), bodies)
        if batch == 1:
            outcome = sender.post(messages[0])
        else:
            outcome = sender.post(encode_message(data=messages), message_format=BATCH_FORMAT)
        outcome.add_done_callback(partial(self._answered, chosen))

    @staticmethod
    def _stream(queue: str, number: int, key: str | None, message_id: str) -> str:
        """What keeps its order: a key, and in the unpartitioned queue all that one sender sends."""
        if queue == PLAIN:
            return f"{queue}, sender {number}"
        return f"{queue}, no key, {message_id}" if key is None else f"{queue}, key {key}"

    def _answered(self, ids: Sequence[str], answer: asyncio.Future[DeliveryState | None]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return  # nobody knows
        if isinstance(answer.result(), Accepted):
            self.history.acknowledge(ids)
        else:
            self.history.refuse(f"{ids[0]} was answered with {answer.result()}")

    async def _receiver(self, number: int, queue: str) -> None:
        choice = random.Random(f"{self._seed}-{number}")
        settlements, weights = list(CHOICES), list(CHOICES.values())
        while True:
            client, generation = await self._life.connect()
            with suppress(ConnectionLost, LinkRefused):
                receiver = await client.receiver(queue, credit=CREDIT, name=f"receiver-{number}")
                while True:
                    groups: dict[Settlement | None, list[tuple[str, Delivery]]] = {}
                    for delivery in await receiver.receive_some():
                        message_id = self._saw(delivery.payload, generation, receiver.link.name, Place.MAIN)
                        if message_id is not None:
                            how = choice.choices(settlements, weights)[0]
                            groups.setdefault(how, []).append((message_id, delivery))
                    for how, group in groups.items():
                        if how is not None:
                            self._settle(receiver, group, how, generation)
                    receiver.link.top_up(CREDIT)
                    client.flush()
            client.cut()

    def _saw(self, payload: bytes, generation: int, link: str, place: Place) -> str | None:
        """Write the delivery down; the message's id, unless nobody sent it."""
        message = decode_message(payload)
        number = message.message_annotations["x-opt-sequence-number"]
        assert isinstance(number, int)
        message_id = str(message.properties.message_id)
        seen = Seen(
            message_id=message_id,
            body=b"".join(message.data),
            sequence_number=number,
            delivery_count=message.header.delivery_count or 0,
            generation=generation,
            link=link,
            place=place,
        )
        return message_id if self.history.deliver(seen) else None

    def _settle(
        self, receiver: Receiver, group: Sequence[tuple[str, Delivery]], how: Settlement, generation: int
    ) -> list[asyncio.Future[DeliveryState | None]]:
        for message_id, _ in group:
            self.history.settling(message_id, how, generation)
        answers = receiver.settle([delivery for _, delivery in group], OUTCOMES[how])
        for (message_id, _), answer in zip(group, answers, strict=True):
            answer.add_done_callback(partial(self._settled, message_id, how, generation))
        return answers

    def _settled(
        self, message_id: str, how: Settlement, generation: int, answer: asyncio.Future[DeliveryState | None]
    ) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        outcome = answer.result()
        if type(outcome) is type(OUTCOMES[how]) and getattr(outcome, "error", None) is None:
            self.history.settled(message_id, how, generation)
        else:
            self.history.refuse(f"to {how.value} {message_id} was answered with {outcome}")

    # -- the end -----------------------------------------------------------------------

    async def _empty_everything(self) -> None:
        """Nothing runs any more; a last kill frees all locks, and one receiver takes what there is."""
        self._kill()
        self._start()
        client, generation = await self._life.connect()
        async with client:
            for queue in QUEUES:
                await self._empty(client, queue, Place.MAIN, generation)
                await self._empty(client, f"{queue}/$DeadLetterQueue", Place.DEAD_LETTER, generation)
                requester = await client.requester(f"{queue}/$management")
                await self._empty_deferred(requester, generation)
                left = await requester.ask(PEEK, {"from-sequence-number": 0, "message-count": 1})
                if left.application_properties["statusCode"] != 204:
                    self.history.refuse(f"'{queue}' does not get empty: {left.value}")

    async def _empty(self, client: Client, address: str, place: Place, generation: int) -> None:
        receiver = await client.receiver(address)
        while deliveries := await receiver.drain(500):
            link = receiver.link.name
            seen = [(self._saw(each.payload, generation, link, place), each) for each in deliveries]
            expected = [(message_id, delivery) for message_id, delivery in seen if message_id is not None]
            await asyncio.wait(self._settle(receiver, expected, Settlement.COMPLETE, generation))

    async def _empty_deferred(self, requester: Requester, generation: int) -> None:
        while True:
            found = await requester.ask(PEEK, {"from-sequence-number": 0, "message-count": 200})
            if found.application_properties["statusCode"] == 204:
                return
            assert isinstance(found.value, dict)
            numbers = [
                decode_message(entry["message"]).message_annotations["x-opt-sequence-number"]
                for entry in found.value["messages"]
            ]
            given = await requester.ask(
                RECEIVE_DEFERRED, {"sequence-numbers": Array(int, numbers), "receiver-settle-mode": 1}
            )
            if given.application_properties["statusCode"] != 200:
                self.history.refuse(f"deferred messages: {given.application_properties}")
                return
            assert isinstance(given.value, dict)
            entries = given.value["messages"]
            ids = [self._saw(entry["message"], generation, "deferred", Place.DEFERRED) for entry in entries]
            for message_id in filter(None, ids):
                self.history.settling(message_id, Settlement.COMPLETE, generation)
            tokens = Array(type(entries[0]["lock-token"]), [entry["lock-token"] for entry in entries])
            done = await requester.ask(
                UPDATE_DISPOSITION, {"disposition-status": "completed", "lock-tokens": tokens}
            )
            if done.application_properties["statusCode"] != 200:
                self.history.refuse(f"completing deferred messages: {done.application_properties}")
                return
            for message_id in filter(None, ids):
                self.history.settled(message_id, Settlement.COMPLETE, generation)


# -- the command ---------------------------------------------------------------------------


def show(check: CrashCheck, verdict: Verdict, seed: int, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{check.kills} kills, {check.kills_while_starting} more while starting; seed {seed}")
    table.add_column("messages")
    table.add_column("count", justify="right")
    for name in ("attempted", "acknowledged", "recovered", "completed", "in_doubt", "redelivered"):
        table.add_row(name.replace("_", " "), f"{getattr(verdict, name):,}")
    table.add_section()
    for violation in Violation:
        number = verdict.count(violation)
        table.add_row(violation.value, f"[{'red' if number else 'green'}]{number:,}")
    console = Console()
    console.print(table)
    for violation, what in verdict.violations[:20]:
        console.print(f"[red]{violation.value}[/]: {what[:300]}")
    outcome = "[green]everything holds" if verdict.holds else f"[red]violated; the server's log: {check.log}"
    console.print(f"{outcome}[/] ({seconds:.0f} s, seed {seed})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="what to kill when; random by default")
    arguments = parser.parse_args()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="bendybus-crash-check-"))
    started = time.monotonic()
    check = CrashCheck(folder, seed)
    verdict = asyncio.run(check.run(arguments.kills))
    show(check, verdict, seed, time.monotonic() - started)
    if verdict.holds:
        shutil.rmtree(folder)
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
