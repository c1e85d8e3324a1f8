"""Pause one of four messaging stores under load through the Azure SDK, and account for everything.

    python tests/faults/outage_check.py --seconds 20

Unmodified asynchronous SDK clients send with and without keys to a queue of 16 partitions and receive from
it, before, while and after store-1 is paused by the fault controls. What must hold (exit code 1 otherwise):

    without a key       every send succeeds                                        P-16
    keys of the others  every send succeeds                                        P-17
    keys of store-1     an error within the client's timeout                       P-17
    receiving           from the others at least 0.95 of the rate before           P-27
    management          `Limited` within 2 s of the pause                          P-33
    after healing       all of it works, and nothing acknowledged is missing       P-04
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from bendybus.auth.sas import make_token
from bendybus.domain.routing import partition_of
from fix_server import ServerProcess, namespace

PARTITIONS: Final = 16
STORES: Final = 4
PAUSED: Final = 1

KEYLESS_SENDERS: Final = 4
RECEIVERS: Final = 4
BACKLOG: Final = 1500
"""Messages of each partition before anything is measured: receivers are never out of work."""

# The SDK's own, for one attempt; with its retries an error takes longer, and it says so.
CLIENT_TIMEOUT_S: Final = 60.0
LIMITED_WITHIN_S: Final = 2.0
RATE_LEAST: Final = 0.95


class Phase(StrEnum):
    BEFORE = "before"
    PAUSED = "paused"
    AFTER = "after"


class Load(StrEnum):
    KEYLESS = "without a key"
    OTHERS = "keys of the others"
    OWN = "keys of store-1"


@dataclass(slots=True)
class Sends:
    succeeded: int = 0
    failed: int = 0
    slowest_s: float = 0.0


@dataclass(slots=True)
class Findings:
    sends: dict[tuple[Phase, Load], Sends] = field(
        default_factory=lambda: {(phase, load): Sends() for phase in Phase for load in Load}
    )
    received: Counter[tuple[Phase, bool]] = field(default_factory=Counter)
    """By phase, and whether from store-1."""
    seconds: dict[Phase, float] = field(default_factory=dict)
    limited_after_s: float = 0.0
    recovered_after_s: float = 0.0
    lost: int = 0
    twice: int = 0

    def rate(self, phase: Phase, *, paused: bool) -> float:
        return self.received[phase, paused] / self.seconds[phase]

    def violations(self) -> list[str]:
        sends = self.sends
        ratio = self.rate(Phase.PAUSED, paused=False) / self.rate(Phase.BEFORE, paused=False)
        own = sends[Phase.PAUSED, Load.OWN]
        checks = {
            "a keyless send failed": not any(sends[phase, Load.KEYLESS].failed for phase in Phase),
            "a send to another store failed": not any(sends[phase, Load.OTHERS].failed for phase in Phase),
            "a send to the paused store did not fail in time": own.failed > 0
            and own.slowest_s < CLIENT_TIMEOUT_S,
            f"others were received from at {ratio:.2f} of the rate before": ratio >= RATE_LEAST,
            f"Limited after {self.limited_after_s:.1f} s": self.limited_after_s <= LIMITED_WITHIN_S,
            "its keys fail after it was healed": not sends[Phase.AFTER, Load.OWN].failed,
            f"{self.lost} acknowledged messages are missing": not self.lost,
        }
        return [what for what, holds in checks.items() if not holds]


def key_for(partition: int) -> str:
    return next(key for key in map("key-{}".format, count()) if partition_of(key, PARTITIONS) == partition)


class OutageCheck:
    def __init__(self, server: ServerProcess, seconds: float) -> None:
        self._server = server
        self._seconds = seconds
        self._phase: Phase | None = None
        """None while nothing is counted."""
        self._sending = True
        self._receiving = True
        self._numbers = count()
        self._acknowledged: set[str] = set()
        self._seen: Counter[str] = Counter()
        self._completed: set[str] = set()
        self.findings = Findings()

    async def run(self) -> Findings:
        connection_string = self._server.connection_string
        async with ServiceBusClient.from_connection_string(connection_string) as client:
            await self._fill(client)
            senders = [
                asyncio.create_task(self._send(client, Load.KEYLESS, None)) for _ in range(KEYLESS_SENDERS)
            ]
            for partition in range(PARTITIONS):
                load = Load.OWN if partition % STORES == PAUSED else Load.OTHERS
                senders.append(asyncio.create_task(self._send(client, load, key_for(partition))))
            receivers = [asyncio.create_task(self._receive(client)) for _ in range(RECEIVERS)]
            await asyncio.sleep(3)  # links are opened, caches warm
            await self._measure(Phase.BEFORE, self._seconds / 2)
            await self._measure(Phase.PAUSED, self._seconds, self._pause)
            await self._heal()
            await self._measure(Phase.AFTER, self._seconds / 2)
            self._sending = False
            await asyncio.gather(*senders)
            await self._emptied()
            self._receiving = False
            await asyncio.gather(*receivers)
        missing = self._acknowledged - set(self._seen)
        self.findings.lost = len(missing)
        self.findings.twice = sum(self._seen[body] > 1 for body in self._completed)
        return self.findings

    async def _fill(self, client: ServiceBusClient) -> None:
        async with client.get_queue_sender("q") as sender:
            for partition in range(PARTITIONS):
                key = key_for(partition)
                bodies = [f"backlog {partition}.{number}" for number in range(BACKLOG)]
                for first in range(0, BACKLOG, 500):
                    share = bodies[first : first + 500]
                    await sender.send_messages([ServiceBusMessage(body, partition_key=key) for body in share])
                self._acknowledged.update(bodies)

    async def _measure(
        self, phase: Phase, seconds: float, begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        began_at = time.monotonic()
        self._phase = phase
        if begin is not None:
            await begin()
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began_at)))
        self._phase = None
        self.findings.seconds[phase] = time.monotonic() - began_at

    async def _pause(self) -> None:
        began_at = time.monotonic()
        await asyncio.to_thread(self._switch, "pause")
        while not await asyncio.to_thread(self._is_limited):
            await asyncio.sleep(0.05)
        self.findings.limited_after_s = time.monotonic() - began_at

    async def _heal(self) -> None:
        began_at = time.monotonic()
        await asyncio.to_thread(self._switch, "heal")
        while await asyncio.to_thread(self._is_limited):
            await asyncio.sleep(0.05)
        self.findings.recovered_after_s = time.monotonic() - began_at
        await asyncio.sleep(12)  # sends that met the outage are through with their retries

    # -- clients ----------------------------------------------------------------------

    async def _send(self, client: ServiceBusClient, load: Load, key: str | None) -> None:
        async with client.get_queue_sender("q") as sender:
            while self._sending:
                await self._send_one(sender, load, key)
                await asyncio.sleep(0.02)

    async def _send_one(self, sender: ServiceBusSender, load: Load, key: str | None) -> None:
        body, phase, began_at = f"live {next(self._numbers)}", self._phase, time.monotonic()
        try:
            await sender.send_messages(ServiceBusMessage(body, partition_key=key))
            failed = False
            self._acknowledged.add(body)
        except ServiceBusError:
            failed = True
        if phase is not None:
            sends = self.findings.sends[phase, load]
            sends.failed += failed
            sends.succeeded += not failed
            sends.slowest_s = max(sends.slowest_s, time.monotonic() - began_at)

    async def _receive(self, client: ServiceBusClient) -> None:
        async with client.get_queue_receiver("q") as receiver:
            while self._receiving:
                messages = await receiver.receive_messages(20, max_wait_time=1)
                await asyncio.gather(*[self._complete(receiver, message) for message in messages])

    async def _complete(self, receiver: ServiceBusReceiver, message: object) -> None:
        body = str(message)
        partition = getattr(message, "sequence_number", 0) >> 48
        if self._phase is not None:
            self.findings.received[self._phase, partition % STORES == PAUSED] += 1
        self._seen[body] += 1
        try:
            await receiver.complete_message(message)
            self._completed.add(body)
        except ServiceBusError:
            pass  # it comes again

    async def _emptied(self) -> None:
        """Until no message has come for a while."""
        before = -1
        while before != (before := self._seen.total()):
            await asyncio.sleep(4)

    # -- the server ---------------------------------------------------------------------

    def _switch(self, fault: str) -> None:
        status, answer = self._request("PUT", f"/$faults/stores/store-{PAUSED}", json.dumps({"fault": fault}))
        assert status == 200, answer

    def _is_limited(self) -> bool:
        status, answer = self._request("GET", "/q?api-version=2021-05")
        assert status == 200, answer
        return "<EntityAvailabilityStatus>Limited<" in answer

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self._server.port}/"
        token = make_token(url, "RootManageSharedAccessKey", self._server.key, int(time.time()) + 60)
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": token})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


# -- the command ---------------------------------------------------------------------------


def show(findings: Findings) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One of four stores paused, under load through the Azure SDK")
    table.add_column("")
    for phase in Phase:
        table.add_column(f"{phase.value} ({findings.seconds[phase]:.0f} s)", justify="right")
    for load in Load:
        sends = [findings.sends[phase, load] for phase in Phase]
        table.add_row(
            f"sends {load.value}", *(f"{each.succeeded:,} ok, {each.failed:,} failed" for each in sends)
        )
        table.add_row("  the slowest", *(f"{each.slowest_s:.2f} s" for each in sends))
    for paused, name in ((False, "the others"), (True, "store-1")):
        rates = [findings.rate(phase, paused=paused) for phase in Phase]
        before = rates[0] or 1.0
        table.add_row(f"received from {name}", *(f"{rate:,.0f}/s ({rate / before:.2f})" for rate in rates))
    console = Console()
    console.print(table)
    console.print(
        f"Limited after {findings.limited_after_s:.1f} s; recovered {findings.recovered_after_s:.1f} s after "
        f"healing; {findings.lost} acknowledged messages missing, {findings.twice} received twice"
    )
    violations = findings.violations()
    for violation in violations:
        console.print(f"[red]{violation}")
    if not violations:
        console.print("[green]everything holds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the store is paused")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bendybus-outage-check-"))
    server = ServerProcess(
        folder, namespace({"q": {"EnablePartitioning": True}}), ["--development", "--stores", str(STORES)]
    )
    server.start()
    try:
        findings = asyncio.run(OutageCheck(server, arguments.seconds).run())
    finally:
        server.stop()
    show(findings)
    if findings.violations():
        sys.stderr.write(f"the server's log: {server.log}\n")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
