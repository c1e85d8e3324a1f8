"""Apache Artemis, embedded in a few lines of Java: another broker that Bendybus is measured against.

Its jars come through Maven, its settings are those of `artemis create` (artemis/Artemis.java), its journal
is of the kind NIO and synced before every acknowledgement. Needs a JDK and Maven.
Its neighbours under test: rabbitmq.py and bendybus_server.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from process import CACHE, Broker, BrokerFailed, Endpoint, free_port
from shape_entities import Address, Entity

__all__ = ["Artemis"]

PROJECT_FOLDER = Path(__file__).with_name("artemis")
BUILT = CACHE / "artemis"
TOOLS = ("java", "javac", "mvn")
# What `artemis create` gives the Java virtual machine.
JVM_OPTIONS = ("-Xms512M", "-Xmx2G", "-XX:+UseG1GC", "-XX:+UseStringDeduplication")
LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"

BUILD_TIMEOUT_S = 600
START_TIMEOUT_S = 60


class Artemis(Broker):
    name = "artemis"
    label = "Artemis"

    def __init__(self, entities: tuple[Entity, ...], certificate: Path) -> None:
        super().__init__()
        self._entities = entities
        self._certificate = certificate

    def start(self) -> Endpoint:
        build()
        data = self.clean_data()
        pem = data / "server.pem"
        parts = [(self._certificate / name).read_text() for name in ("server.key", "server.crt")]
        pem.write_text("".join(parts))
        port, tls_port = free_port(), free_port()
        classpath = os.pathsep.join((str(BUILT / "classes"), str(BUILT / "lib" / "*")))
        entities = [describe(entity) for entity in self._entities]
        command = ["java", *JVM_OPTIONS, LOGGING, "-cp", classpath, "Artemis"]
        self.spawn([*command, str(data), str(port), str(tls_port), str(pem), *entities])
        self.wait_for_line("ready", START_TIMEOUT_S)
        return Endpoint(port, "bench", "bench", tls_port=tls_port)

    def address(self, entity: Entity) -> Address:
        sources = tuple(f"{entity.name}::{queue}" for queue in subscription_queues(entity))
        return Address(entity.name, sources or (entity.name,))

    def version(self) -> str:
        found = re.search(r"<artemis.version>(.+?)<", (PROJECT_FOLDER / "pom.xml").read_text())
        return f"Apache Artemis {found[1]}" if found else "Apache Artemis"


def subscription_queues(entity: Entity) -> list[str]:
    return [f"{entity.name}-{name}" for name in entity.subscriptions]


def describe(entity: Entity) -> str:
    """As Artemis.java reads it: `queue` or `topic:subscription,subscription`."""
    return ":".join(filter(None, (entity.name, ",".join(subscription_queues(entity)))))


def build() -> None:
    """Downloads the jars and compiles, once for each change of the sources."""
    complete = BUILT / ".complete"
    changed = max(file.stat().st_mtime for file in PROJECT_FOLDER.iterdir())
    if complete.exists() and complete.stat().st_mtime > changed:
        return
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise BrokerFailed(f"Artemis needs a JDK and Maven: there is no {' and no '.join(missing)} here")
    shutil.rmtree(BUILT, ignore_errors=True)
    command = ["mvn", "--batch-mode", "--quiet", "compile", "dependency:copy-dependencies"]
    command += [f"-Dbuild.folder={BUILT}", f"-DoutputDirectory={BUILT / 'lib'}"]
    done = subprocess.run(
        command, cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BrokerFailed(f"Maven cannot provide Artemis: {done.stdout.strip()[-500:]}")
    complete.touch()
