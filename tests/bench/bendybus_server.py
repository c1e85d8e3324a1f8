"""Bendybus as a process of its own, started as a user would start it, with the queues to measure.

Its neighbour under test: rabbitmq.py. Durability is the product's default: fsync before every reply.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from process import Broker, BrokerFailed, Endpoint

__all__ = ["PARTITIONED_QUEUE", "PLAIN_QUEUE", "Bendybus"]

PLAIN_QUEUE = "plain"
PARTITIONED_QUEUE = "parts16"  # Standard tier: a partitioned queue has 16 partitions

READY = "ready Endpoint="
START_TIMEOUT_S = 30


class Bendybus(Broker):
    name = "bendybus"

    def __init__(self, stores: int | None = None) -> None:
        """`stores`: how many; None: as many as `bendybus serve` takes by itself."""
        super().__init__()
        self.stores = stores

    def start(self) -> Endpoint:
        data = self.clean_data()
        config = data / "Config.json"
        config.write_text(json.dumps(configuration(), indent=2))
        self.spawn(
            [
                *(find_command(), "serve", "--data", data / "namespace", *self.store_options()),
                *("--port", "0", "--admin-port", "0", "--config", config),
            ]
        )
        line = self.wait_for_line(READY, START_TIMEOUT_S)
        return parse_connection_string(line.partition("ready ")[2])

    def store_options(self) -> list[str]:
        return [] if self.stores is None else ["--stores", str(self.stores)]

    def version(self) -> str:
        try:
            return f"Bendybus {version('bendybus')}"
        except PackageNotFoundError:
            return "Bendybus"


def find_command() -> Path:
    beside_python = Path(sys.executable).with_name("bendybus")
    if beside_python.exists():
        return beside_python
    found = shutil.which("bendybus")
    if found is None:
        raise BrokerFailed(f"no bendybus command beside {sys.executable} or on the PATH")
    return Path(found)


def configuration() -> dict[str, object]:
    """Config.json in the official emulator's shape."""
    queues = [
        {
            "Name": name,
            "Properties": {
                "EnablePartitioning": partitioned,
                "LockDuration": "PT5M",
                "MaxSizeInMegabytes": 5120,
            },
        }
        for name, partitioned in ((PLAIN_QUEUE, False), (PARTITIONED_QUEUE, True))
    ]
    namespace = {"Name": "bench", "Queues": queues}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}


def parse_connection_string(text: str) -> Endpoint:
    """`Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY;...`; a key may hold `=`."""
    parts = dict(part.split("=", 1) for part in text.strip().split(";") if part)
    host, _, port = parts["Endpoint"].removeprefix("sb://").rstrip("/").rpartition(":")
    return Endpoint(int(port), parts["SharedAccessKeyName"], parts["SharedAccessKey"], host)
