"""What entities cost: ten thousand of them created, listed, and found again after a restart.

    python tests/bench/entities.py [--count 10000] [--tier standard|premium]

A server process of its own, asked over HTTP as the SDKs' administration clients ask. The memory of an
idle entity is what the process grew by, divided; entities of the Premium tier have two partitions each.
What waiting messages cost: memory.py.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bendybus_server import READY, START_TIMEOUT_S, find_command, parse_connection_string
from process import CACHE, Broker, Endpoint
from rich.console import Console

from bendybus.auth.sas import make_token

console = Console(highlight=False)

API_VERSION = "api-version=2021-05"
PAGE = 100
TOKEN_VALID_S = 3600
# Time for what has just been done to come to rest before memory is read.
REST_S = 2


def description(kind: str, properties: str = "") -> str:
    """An entity as the administration clients send it."""
    namespace = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind}Description xmlns="{namespace}">{properties}</{kind}Description></content></entry>'
    )


class Namespace(Broker):
    """A server that keeps its data folder from one start to the next."""

    name = "bendybus-entities"

    def __init__(self, data: Path, tier: str) -> None:
        super().__init__()
        self._data = data
        self._tier = tier

    def start(self) -> Endpoint:
        self.spawn(
            [
                *(find_command(), "serve", "--data", self._data, "--tier", self._tier),
                *("--port", "0", "--admin-port", "0"),
            ]
        )
        return parse_connection_string(self.wait_for_line(READY, START_TIMEOUT_S).partition("ready ")[2])


@dataclass
class Admin:
    """One connection that is kept, as SDKs keep theirs."""

    endpoint: Endpoint

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port)
        until = int(time.time()) + TOKEN_VALID_S
        resource = f"http://{self.endpoint.host}/"
        self._token = make_token(resource, self.endpoint.user, self.endpoint.password, until)

    def ask(self, method: str, path: str, body: str | None = None) -> bytes:
        self._connection.request(method, path, body, {"Authorization": self._token})
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status in (200, 201), f"{method} {path}: {response.status} {answer[:200]!r}"
        return answer

    def create(self, count: int) -> None:
        for number in range(count):
            self.ask("PUT", f"/queue-{number}?{API_VERSION}", description("Queue"))

    def create_topic(self, name: str, subscriptions: Sequence[str]) -> None:
        """A partitioned topic, and subscriptions that get every message."""
        partitioned = "<EnablePartitioning>true</EnablePartitioning>"
        self.ask("PUT", f"/{name}?{API_VERSION}", description("Topic", partitioned))
        for subscription in subscriptions:
            path = f"/{name}/subscriptions/{subscription}?{API_VERSION}"
            self.ask("PUT", path, description("Subscription"))

    def listed(self) -> int:
        found = 0
        while True:
            page = self.ask("GET", f"/$Resources/queues?$skip={found}&$top={PAGE}&{API_VERSION}")
            entries = page.count(b"<entry")
            found += entries
            if entries < PAGE:
                return found


def timed(what: str, started: float, count: int) -> None:
    elapsed = time.perf_counter() - started
    console.print(f"{what:<40}{elapsed:>9.2f} s {count / elapsed:>12,.0f} /s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--tier", choices=("standard", "premium"), default="standard")
    options = parser.parse_args()
    count = options.count
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        measure(Path(folder) / "namespace", count, options.tier)
    return 0


def measure(data: Path, count: int, tier: str) -> None:
    with Namespace(data, tier) as server:
        admin = Admin(server.endpoint)
        time.sleep(REST_S)
        idle_bytes = server.resident_bytes()
        started = time.perf_counter()
        admin.create(count)
        timed(f"create {count:,} queues, one by one", started, count)
        started = time.perf_counter()
        assert admin.listed() == count
        timed(f"list them, {PAGE} to a page", started, count)
        time.sleep(REST_S)
        created_bytes = server.resident_bytes()
    started = time.perf_counter()
    with Namespace(data, tier) as server:
        timed("start again, until it takes connections", started, count)
        assert Admin(server.endpoint).listed() == count
        timed("and until all of them are listed", started, count)
        time.sleep(REST_S)
        restarted_bytes = server.resident_bytes()
    for when, resident_bytes in (("after creating", created_bytes), ("after the restart", restarted_bytes)):
        per_entity = (resident_bytes - idle_bytes) / count / 1024
        whole_mb = resident_bytes >> 20
        console.print(
            f"memory of an idle queue, {when:<18}{per_entity:>6.1f} KB  (whole process: {whole_mb} MB)"
        )


if __name__ == "__main__":
    sys.exit(main())
