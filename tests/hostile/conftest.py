"""A server under attack, and a well-behaved client at work on it meanwhile.

`async with under_attack():` holds what a test does to the server. Meanwhile, and
once more after it, the bystander sends and receives on a connection of its own,
and nothing may happen to its traffic. Afterwards the server's memory must be
within bounds (its peak, not just what is left) and its log free of tracebacks.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from bendybus.amqp.message import decode_message, encode_message
from bendybus.amqp.performatives import Accepted
from fix_client import Client, Endpoint
from fix_server import ServerProcess, namespace

# An idle server has 65 MiB. What it may hold for all peers together: 32 MiB of payloads, 96 MiB in the
# journals of its two stores, 16 MiB of unanswered messages for a connection, a page and a frame here
# and there.
RESIDENT_MIB_MAX: Final = 320

# Between two rounds of a bystander.
PAUSE_S = 0.01

LARGEST_MESSAGE: Final = 256 * 1024

QUEUES: Final[dict[str, dict[str, object]]] = {
    "bystander": {"EnablePartitioning": True},
    # Nobody relies on what is in here.
    "target": {"EnablePartitioning": False},
    "plain": {"EnablePartitioning": False, "LockDuration": "PT5M"},
    "parts": {"EnablePartitioning": True, "LockDuration": "PT5M"},
    "other": {"EnablePartitioning": False},
    "guarded": {"EnablePartitioning": False},
    # Whoever manages `fuzz` manages what is below it, and nothing that others use.
    "fuzz": {"EnablePartitioning": False},
    "fuzz/x": {"EnablePartitioning": False},
    # Each of these is filled by one test.
    **{name: {"EnablePartitioning": False, "LockDuration": "PT5M"} for name in ("deaf", "shut", "peeked")},
}
RULES: Final = {
    "other": [{"Name": "other-only", "PrimaryKey": "other-key", "Rights": ["Listen", "Send"]}],
    "fuzz": [{"Name": "fuzzer", "PrimaryKey": "key-of-the-fuzzer", "Rights": ["Manage"]}],
    "guarded": [{"Name": "listener", "PrimaryKey": "listen-key", "Rights": ["Listen"]}],
}

UnderAttack: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


class Target:
    """The server that is attacked."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.endpoint = Endpoint.parse(process.connection_string)
        self.bystander: Bystander | None = None

    @property
    def pid(self) -> int:
        return int((self.process.data / "bendybus.lock").read_text())

    async def busy_for(self, rounds: int) -> None:
        """Let the server go on with what it was given, while the bystander gets through so many times."""
        assert self.bystander is not None
        await self.bystander.complete(rounds)

    def status(self, field: str) -> int:
        """A number of proc(5)'s `status`, such as VmHWM, in its own unit."""
        found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert found is not None, field
        return int(found[1])

    def forget_peak(self) -> None:
        """The peak of resident memory starts anew [proc(5), clear_refs]."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def peak_mib(self) -> float:
        return self.status("VmHWM") / 1024

    @property
    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())


class Bystander:
    """Sends ten messages, receives them, completes them, and starts over."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = itertools.count()
        self._completed = asyncio.Semaphore(0)
        """Released by each round."""
        self.leaving = False
        self.working = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        sender = await self._client.sender("bystander")
        receiver = await self._client.receiver("bystander")
        while not self.leaving:
            sent = {b"message %d" % next(self._numbers) for _ in range(10)}
            outcomes = await sender.send(*(encode_message(data=body) for body in sent))
            assert outcomes == [Accepted()] * 10
            receiver.grant(10)
            deliveries = await receiver.receive(10)
            assert {decode_message(each.payload).data[0] for each in deliveries} == sent
            assert await receiver.settled_as(deliveries) == [Accepted()] * 10
            self._completed.release()
            # Often enough to notice what goes wrong, and seldom enough to leave the machine to others.
            await asyncio.sleep(PAUSE_S)

    async def complete(self, rounds: int) -> None:
        """From now on so many whole rounds, and the one under way; its failure is the test's."""
        self._completed = asyncio.Semaphore(0)
        enough = asyncio.ensure_future(self._count(rounds + 1))
        async with asyncio.timeout(20):
            await asyncio.wait([enough, self.working], return_when=asyncio.FIRST_COMPLETED)
        if self.working.done():
            enough.cancel()
            self.working.result()

    async def _count(self, rounds: int) -> None:
        for _ in range(rounds):
            await self._completed.acquire()


@pytest.fixture(scope="package")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    process = ServerProcess(tmp_path_factory.mktemp("hostile"), namespace(QUEUES, RULES))
    process.start()
    yield Target(process)
    assert process.stop() == 0
    process.refuse_trouble()


@pytest.fixture
def endpoint(target: Target) -> Endpoint:
    return target.endpoint


@pytest.fixture
def under_attack(target: Target) -> Iterator[UnderAttack]:
    target.forget_peak()
    yield lambda: bystander_at_work(target)
    assert target.peak_mib < RESIDENT_MIB_MAX
    target.process.refuse_trouble()


@asynccontextmanager
async def bystander_at_work(target: Target) -> AsyncIterator[None]:
    async with await Client.connect(target.endpoint) as client:
        target.bystander = bystander = Bystander(client)
        try:
            await bystander.complete(1)
            yield
            await bystander.complete(1)
        finally:
            bystander.leaving = True
            await bystander.working
    # Newcomers are welcome, too.
    async with await Client.connect(target.endpoint) as newcomer:
        await newcomer.sender("bystander")
