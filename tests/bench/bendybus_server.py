"""Bendybus as a process of its own, started as a user would start it, with the queues to measure.

Its neighbours under test: rabbitmq.py and artemis.py. Durability is the product's default: fsync before
every reply.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from process import Broker, BrokerFailed, Endpoint
from shape_entities import Address, Entity

__all__ = ["PARTITIONED_QUEUE", "PLAIN_QUEUE", "Bendybus", "PureBendybus"]

PLAIN_QUEUE = "plain"
PARTITIONED_QUEUE = "parts16"  # Standard tier: a partitioned queue has 16 partitions

QUEUES = (Entity(PLAIN_QUEUE, partitioned=False), Entity(PARTITIONED_QUEUE))

LOCK_DURATION = "PT5M"
MAX_SIZE_MB = 5120

READY = "ready Endpoint="
START_TIMEOUT_S = 30


class Bendybus(Broker):
    name = "bendybus"
    label = "Bendybus"

    def __init__(
        self,
        stores: int | None = None,
        entities: tuple[Entity, ...] = QUEUES,
        certificate: Path | None = None,
    ) -> None:
        """`stores`: how many; None: as many as `bendybus serve` takes by itself."""
        super().__init__()
        self.stores = stores
        self.connection_string = ""
        self._entities = entities
        self._certificate = certificate

    def start(self) -> Endpoint:
        data = self.clean_data()
        config = data / "Config.json"
        config.write_text(json.dumps(configuration(self._entities), indent=2))
        self.spawn(
            [
                *(self._command(), "serve", "--data", data / "namespace", *self.store_options()),
                *self.tls_options(),
                *("--port", "0", "--admin-port", "0", "--config", config),
            ]
        )
        line = self.wait_for_line(READY, START_TIMEOUT_S)
        self.connection_string = line.partition("ready ")[2]
        return parse_connection_string(self.connection_string)

    def store_options(self) -> list[str]:
        return [] if self.stores is None else ["--stores", str(self.stores)]

    def tls_options(self) -> list[str]:
        if self._certificate is None:
            return []
        certificate, key = (str(self._certificate / name) for name in ("server.crt", "server.key"))
        return ["--tls-cert", certificate, "--tls-key", key]

    def address(self, entity: Entity) -> Address:
        sources = tuple(f"{entity.name}/Subscriptions/{name}" for name in entity.subscriptions)
        return Address(entity.name, sources or (entity.name,))

    def version(self) -> str:
        told = subprocess.run([self._command(), "--version"], capture_output=True, text=True, check=True)
        return told.stdout.strip().replace("bendybus", "Bendybus")

    def _command(self) -> Path:
        return find_command()


class PureBendybus(Bendybus):
    """The same from another environment, where it is not compiled."""

    name = "pure"
    label = "Bendybus in pure Python"

    def __init__(self, command: Path, entities: tuple[Entity, ...], certificate: Path) -> None:
        super().__init__(None, entities, certificate)
        self._pure_command = command

    def _command(self) -> Path:
        return self._pure_command


def find_command() -> Path:
    beside_python = Path(sys.executable).with_name("bendybus")
    if beside_python.exists():
        return beside_python
    found = shutil.which("bendybus")
    if found is None:
        raise BrokerFailed(f"no bendybus command beside {sys.executable} or on the PATH")
    return Path(found)


def configuration(entities: tuple[Entity, ...]) -> dict[str, object]:
    """Config.json in the official emulator's shape."""
    namespace = {
        "Name": "bench",
        "Queues": [queue(entity) for entity in entities if not entity.subscriptions],
        "Topics": [topic(entity) for entity in entities if entity.subscriptions],
    }
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}


def queue(entity: Entity) -> dict[str, object]:
    properties = {
        "EnablePartitioning": entity.partitioned,
        "RequiresSession": entity.sessions,
        "RequiresDuplicateDetection": entity.duplicates,
        "LockDuration": LOCK_DURATION,
        "MaxSizeInMegabytes": MAX_SIZE_MB,
    }
    return {"Name": entity.name, "Properties": properties}


def topic(entity: Entity) -> dict[str, object]:
    properties = {"EnablePartitioning": entity.partitioned, "MaxSizeInMegabytes": MAX_SIZE_MB}
    subscriptions = [
        {"Name": name, "Properties": {"LockDuration": LOCK_DURATION}} for name in entity.subscriptions
    ]
    return {"Name": entity.name, "Properties": properties, "Subscriptions": subscriptions}


def parse_connection_string(text: str) -> Endpoint:
    """`Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY;...`; a key may hold `=`."""
    parts = dict(part.split("=", 1) for part in text.strip().split(";") if part)
    host, _, port = parts["Endpoint"].removeprefix("sb://").rstrip("/").rpartition(":")
    return Endpoint(int(port), parts["SharedAccessKeyName"], parts["SharedAccessKey"], host)
