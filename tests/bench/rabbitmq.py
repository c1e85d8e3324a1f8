"""RabbitMQ 4 from Debian 13, in a folder of its own: the broker that Bendybus is measured against.

Installed by debootstrap into .cache/bench/rabbitmq-root and run there under chroot in namespaces of
its own, so the host gets no package, no service and no stray epmd. Queues are quorum queues, RabbitMQ's
durable, fsynced kind; a topic is a fanout exchange with a queue for each subscription. Everything that
bears on speed stays as RabbitMQ ships it. Its neighbours under test: bendybus_server.py and artemis.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import psutil
from process import CACHE, Broker, BrokerFailed, Endpoint, apt_install, free_port
from shape_entities import Address, Entity

__all__ = ["QUEUE_ADDRESS", "RabbitMq"]

SUITE = "trixie"  # Debian 13 has RabbitMQ 4.0, the first line with AMQP 1.0 in its core
ROOT = CACHE / "rabbitmq-root"
DATA_IN_ROOT = "/srv/bench"

QUEUE = "bench"
QUEUE_ADDRESS = f"/queues/{QUEUE}"  # AMQP address format v2
USER = PASSWORD = "bench"
CERTIFICATE = ("server.crt", "server.key")

INSTALL_TIMEOUT_S = 600
START_TIMEOUT_S = 90


class RabbitMq(Broker):
    name = "rabbitmq"
    label = "RabbitMQ"

    def __init__(
        self, entities: tuple[Entity, ...] = (Entity(QUEUE),), certificate: Path | None = None
    ) -> None:
        super().__init__()
        self.data = ROOT / DATA_IN_ROOT.lstrip("/")
        self._entities = entities
        self._certificate = certificate

    def start(self) -> Endpoint:
        install()
        port, tls_port = free_port(), free_port() if self._certificate else None
        data = self.clean_data()
        (data / "rabbitmq.conf").write_text(configuration(port, tls_port))
        (data / "definitions.json").write_text(json.dumps(definitions(self._entities), indent=2))
        (data / "enabled_plugins").write_text("[].\n")
        if self._certificate is not None:
            for file in CERTIFICATE:
                shutil.copy(self._certificate / file, data)
        user = (ROOT / "var/lib/rabbitmq").stat()
        for path in (data, *data.iterdir()):
            os.chown(path, user.st_uid, user.st_gid)
        # In a process namespace of its own: when its first process ends, so does everything in it, even
        # epmd, which leaves its parent on purpose. --pdeathsig sees to it should this script die; it is given
        # twice, since it does not survive a change of user.
        self.spawn(
            [
                *("setpriv", "--pdeathsig=KILL"),
                *("unshare", "--mount", "--pid", "--fork", f"--root={ROOT}", "--mount-proc"),
                *("setpriv", f"--reuid={user.st_uid}", f"--regid={user.st_gid}", "--clear-groups"),
                "--pdeathsig=KILL",
                "/usr/lib/rabbitmq/bin/rabbitmq-server",
            ],
            **environment(),
        )
        self.wait_for_line("completed with", START_TIMEOUT_S)
        return Endpoint(port, USER, PASSWORD, tls_port=tls_port)

    def stop(self) -> None:
        """Ends the namespace at once (its data is thrown away), so that unshare can reap it and end too."""
        for first in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                first.kill()
        super().stop()

    def address(self, entity: Entity) -> Address:
        """In AMQP address format v2."""
        if not entity.subscriptions:
            return Address(f"/queues/{entity.name}", (f"/queues/{entity.name}",))
        queues = tuple(f"/queues/{queue}" for queue in queue_names(entity))
        return Address(f"/exchanges/{entity.name}", queues)

    def version(self) -> str:
        found = sorted((ROOT / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return f"RabbitMQ {found[-1].name.rpartition('-')[2]}" if found else "RabbitMQ"


def install() -> None:
    """Provides the root folder, once. A half-made one is made anew."""
    complete = ROOT / ".complete"
    if complete.exists():
        return
    if os.geteuid() != 0:
        raise BrokerFailed("RabbitMQ needs root here, for debootstrap and chroot")
    if shutil.which("debootstrap") is None:
        apt_install("debootstrap")
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.parent.mkdir(parents=True, exist_ok=True)
    # Without a mirror: debootstrap has a default for each of Debian's releases.
    command = ["debootstrap", "--variant=minbase", "--include=rabbitmq-server", SUITE, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if done.returncode:
        raise BrokerFailed(f"debootstrap of Debian {SUITE} failed: {done.stdout.strip()[-500:]}")
    (ROOT / "etc/hosts").write_text("127.0.0.1 localhost\n")
    shutil.rmtree(ROOT / "var/cache/apt", ignore_errors=True)
    complete.touch()


def environment() -> dict[str, str]:
    return {
        "HOME": "/var/lib/rabbitmq",  # the Erlang cookie is there
        "LANG": "C.UTF-8",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_CONFIG_FILE": f"{DATA_IN_ROOT}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{DATA_IN_ROOT}/enabled_plugins",
        "RABBITMQ_MNESIA_BASE": f"{DATA_IN_ROOT}/mnesia",
        "RABBITMQ_LOG_BASE": f"{DATA_IN_ROOT}/log",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def configuration(port: int, tls_port: int | None) -> str:
    """Loopback, little logging, and otherwise RabbitMQ's defaults."""
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{port}",
        "definitions.import_backend = local_filesystem",
        f"definitions.local.path = {DATA_IN_ROOT}/definitions.json",
        "log.file = false",
        "log.console = true",
        "log.console.level = warning",
    ]
    if tls_port is not None:
        certificate, key = CERTIFICATE
        lines += [
            f"listeners.ssl.1 = 127.0.0.1:{tls_port}",
            f"ssl_options.certfile = {DATA_IN_ROOT}/{certificate}",
            f"ssl_options.keyfile = {DATA_IN_ROOT}/{key}",
            "ssl_options.verify = verify_none",
        ]
    return "\n".join([*lines, ""])


def definitions(entities: tuple[Entity, ...]) -> dict[str, object]:
    """The user and the queues, imported at start: no management plugin, whose statistics would cost CPU."""
    salt = b"salt"
    hashed = base64.b64encode(salt + hashlib.sha256(salt + PASSWORD.encode()).digest()).decode()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    topics = [entity for entity in entities if entity.subscriptions]
    lasting = {"vhost": "/", "durable": True, "auto_delete": False}
    quorum = {"arguments": {"x-queue-type": "quorum"}}
    fanout = {"type": "fanout", "internal": False, "arguments": {}}
    bound = {"vhost": "/", "destination_type": "queue", "routing_key": "", "arguments": {}}
    return {
        "users": [{"name": USER, "password_hash": hashed, "tags": ["administrator"]}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": USER, "vhost": "/", **everything}],
        "queues": [{"name": name, **lasting, **quorum} for one in entities for name in queue_names(one)],
        "exchanges": [{"name": topic.name, **lasting, **fanout} for topic in topics],
        "bindings": [
            {"source": topic.name, "destination": name, **bound}
            for topic in topics
            for name in queue_names(topic)
        ],
    }


def queue_names(entity: Entity) -> list[str]:
    return [f"{entity.name}-{name}" for name in entity.subscriptions] or [entity.name]
