"""A real PostgreSQL for the tests: on a free port, in a temporary folder.

The programs come from PyPI's `pgserver` (in the dev group) or from Debian's
package; if there are neither, tests that need them are skipped with that reason. `postgres` serves the whole
session and is never stopped; a test may stop, kill and restart its `own_postgres`. `pair` makes two, one of
which follows the other synchronously. PostgreSQL refuses to run as root, so it is then run as the user
`nobody`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from fix_machines import LOOPBACK, Machine

__all__ = ["ADMIN", "PASSWORD", "Pair", "Postgres", "pair", "programs"]

ADMIN: Final = "ann"
PASSWORD: Final = "p@ss:word/%"
PASSWORD_IN_URL: Final = "p%40ss%3Aword%2F%25"
START_TIMEOUT_S: Final = 30
RESTARTS_MAX: Final = 100
CONNECTIONS: Final = 60


class Postgres:
    """A cluster, and the process that serves it while there is one."""

    def __init__(
        self,
        folder: Path,
        bin_folder: Path,
        *,
        fsync: bool = True,
        tls: bool = False,
        connections: int = CONNECTIONS,
        machine: Machine = LOOPBACK,
        follows: Postgres | None = None,
    ) -> None:
        """`follows`: this one is a standby of that one."""
        self.data = folder / "data"
        self.log = folder / "log"
        # Free here, and free on a machine where nothing else runs.
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._folder = folder
        self._machine = machine
        self._bin = bin_folder
        self._databases = count()
        self._killed = False
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        if follows is None:
            self._init(fsync, tls, connections)
        else:
            self.follow(follows)

    def _init(self, fsync: bool, tls: bool, connections: int) -> None:
        secret = self._write("secret", PASSWORD)
        self._run("initdb", "-D", self.data, "-U", ADMIN, "--pwfile", secret, "--auth=scram-sha-256",
                  "--encoding=UTF8", "--no-locale", "--no-sync")  # fmt: skip
        lines = [f"fsync = {'on' if fsync else 'off'}", f"max_connections = {connections}"]
        if tls:
            lines += ["ssl = on", f"ssl_cert_file = '{self.certificate}'", f"ssl_key_file = '{self.key}'"]
        self._append("postgresql.conf", *self._place(), *lines)
        if self._machine is not LOOPBACK:
            others = f"{self._machine.address}/24 scram-sha-256"
            self._append("pg_hba.conf", f"host all all {others}", f"host replication all {others}")

    def _place(self) -> list[str]:
        return [
            f"port = {self.port}",
            f"listen_addresses = '{self._machine.address}'",
            f"unix_socket_directories = '{self._folder}'",
        ]

    def _append(self, name: str, *lines: str) -> None:
        """Of several lines for one setting, the last counts."""
        with (self.data / name).open("a") as file:
            file.write("\n".join(lines) + "\n")

    # -- replication --------------------------------------------------------------

    def follow(self, primary: Postgres) -> None:
        """Become a standby, with a copy of what that one has. Not started yet."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._run("pg_basebackup", "-D", self.data, "-R", "--checkpoint=fast", "-d", primary.url("postgres"))
        self._append("postgresql.conf", *self._place(), "synchronous_standby_names = ''")

    def replicate(self, synchronously: bool) -> None:
        """Whether commits wait for a standby. They do when this returns."""
        self._append("postgresql.conf", f"synchronous_standby_names = '{'*' if synchronously else ''}'")
        self._run("pg_ctl", "-D", self.data, "reload")
        if synchronously:
            with self.connect("postgres") as connection:
                query = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
                while connection.execute(query).fetchone() is None:
                    time.sleep(0.02)
                # The checkpointer tells all sessions of the new setting, before it does anything else.
                connection.execute("CHECKPOINT")

    def promote(self) -> None:
        self._run("pg_ctl", "-D", self.data, "-w", "-t", START_TIMEOUT_S, "promote")

    @property
    def certificate(self) -> Path:
        return self._folder / "server.crt"

    @property
    def key(self) -> Path:
        return self._folder / "server.key"

    def start(self) -> None:
        """Return when it takes connections."""
        command = ("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", START_TIMEOUT_S, "start")
        if self._killed:
            # Until the last child of the one before has let go of the shared memory, this fails at once.
            for _ in range(RESTARTS_MAX):
                if not self._run(*command, check=False):
                    self._killed = False
                    return
        self._run(*command)

    def stop(self, mode: str = "fast") -> None:
        """`fast`: sessions are told and ended. `immediate`: as after a crash, the next start recovers."""
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """Send SIGKILL to the postmaster. Its children end when they notice."""
        os.kill(self.pid, signal.SIGKILL)
        self._killed = True

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    @property
    def running(self) -> bool:
        return not self._killed and not self._run("pg_ctl", "-D", self.data, "status", check=False)

    def url(self, database: str, **parameters: object) -> str:
        query = "&".join(f"{key}={value}" for key, value in parameters.items())
        return f"postgresql://{ADMIN}:{PASSWORD_IN_URL}@{self.place}/{database}" + (
            f"?{query}" if query else ""
        )

    @property
    def place(self) -> str:
        return f"{self._machine.address}:{self.port}"

    def new_database(self) -> str:
        name = f"db{next(self._databases)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    @contextlib.contextmanager
    def connect(self, database: str) -> Iterator[Any]:
        """For inspecting and changing data from outside."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            yield connection

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        if self._user:
            os.chown(path, pwd.getpwnam(self._user).pw_uid, -1)
        return path

    def write_tls(self, certificate: str, key: str) -> None:
        self._write("server.crt", certificate)
        self._write("server.key", key)

    def _run(self, program: str, *arguments: object, check: bool = True) -> int:
        enter, user = list(self._machine.enter), self._user
        if enter and user is not None:
            # Only root enters a machine.
            who, user = pwd.getpwnam(user), None
            enter += [f"--setuid={who.pw_uid}", f"--setgid={who.pw_gid}"]
        with (self._folder / "output").open("w+") as output:
            done = subprocess.run(
                [*enter, str(self._bin / program), *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder, user=user,
                check=False, start_new_session=True,
            )  # fmt: skip
            if check and done.returncode:
                output.seek(0)
                log = self.log.read_text()[-2000:] if self.log.exists() else ""
                pytest.fail(f"{program} ended with {done.returncode}:\n{output.read()}\n{log}")
            return done.returncode


class Pair:
    """A primary and its synchronous standby, with the addresses of both in every URL."""

    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self.primary = primary
        self.standby = standby
        self._places = f"{primary.place},{standby.place}"

    def url(self, database: str, **parameters: object) -> str:
        return self.primary.url(database, **parameters).replace(self.primary.place, self._places)

    def new_database(self) -> str:
        return self.primary.new_database()

    def fail_over(self) -> None:
        """Send SIGKILL to the primary. The standby takes its place, and has no standby itself yet."""
        self.primary.kill()
        self.promote()

    def promote(self) -> None:
        """The standby takes the place of the primary, whatever state the primary is in."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rejoin(self) -> None:
        """The former primary follows the new one, and commits wait for it again."""
        if self.standby.running:
            self.standby.stop("immediate")
        self.standby.follow(self.primary)
        self.standby.start()
        self.primary.replicate(synchronously=True)

    def connect(self, database: str) -> contextlib.AbstractContextManager[Any]:
        return self.primary.connect(database)


@cache
def programs(*, tls: bool = False) -> Path | None:
    """Where `postgres`, `initdb` and `pg_ctl` are, if they can be run."""
    found: list[Path] = []
    # Not imported: an import would create further folders and locks.
    spec = importlib.util.find_spec("pgserver")
    if spec is not None and spec.submodule_search_locations:
        found.append(Path(spec.submodule_search_locations[0]) / "pginstall" / "bin")
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    user = "nobody" if os.geteuid() == 0 else None
    for folder in found:
        if not (folder / "postgres").exists():
            continue
        with contextlib.suppress(OSError):
            command = [str(folder / "pg_config"), "--configure"] if tls else [str(folder / "postgres"), "-V"]
            done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
            if done.returncode == 0 and (not tls or "--with-openssl" in done.stdout):
                return folder
    return None


@contextlib.contextmanager
def cluster(
    *,
    fsync: bool,
    tls: tuple[str, str] | None = None,
    parent: Path | None = None,
    connections: int = CONNECTIONS,
    machine: Machine = LOOPBACK,
    follows: Postgres | None = None,
) -> Iterator[Postgres]:
    """A cluster that has been started, in a folder below `parent` or wherever temporary ones go."""
    bin_folder = programs(tls=tls is not None)
    if bin_folder is None:
        pytest.skip(
            f"no PostgreSQL{' with TLS' if tls else ''} here: neither PyPI's pgserver nor Debian's postgresql"
        )
    # Not in pytest's folder, which other users cannot enter. Short, because of the limit for a socket's path.
    folder = Path(tempfile.mkdtemp(prefix="bendybus-pg-", dir=parent))
    try:
        server = Postgres(
            folder,
            bin_folder,
            fsync=fsync,
            tls=tls is not None,
            connections=connections,
            machine=machine,
            follows=follows,
        )
        if tls is not None:
            server.write_tls(*tls)
        server.start()
        try:
            yield server
        finally:
            if server.running:
                server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def pair(*machines: Machine) -> Iterator[Pair]:
    """A primary and a synchronous standby, on these two machines or on this one."""
    first, second = machines or (LOOPBACK, LOOPBACK)
    with (
        cluster(fsync=True, machine=first) as primary,
        cluster(fsync=True, machine=second, follows=primary) as standby,
    ):
        primary.replicate(synchronously=True)
        yield Pair(primary, standby)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """For the whole session. Without fsync, because its machine does not fail in these tests."""
    with cluster(fsync=False) as server:
        yield server


@pytest.fixture
def postgres_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pg_dump` and `pg_restore` of the version that the tests' servers have are the first to be found."""
    folder = programs()
    if folder is None or not (folder / "pg_dump").exists():
        pytest.skip("pg_dump is not installed")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="session")
def _own_postgres() -> Iterator[Postgres]:
    with cluster(fsync=True) as server:
        yield server


@pytest.fixture
def own_postgres(_own_postgres: Postgres) -> Postgres:
    """Running at first. The test may stop, kill and restart it."""
    if not _own_postgres.running:
        _own_postgres.start()
    return _own_postgres
