"""A real PostgreSQL of the tests' own: on a free port, in a folder that goes away.

The programs come from PyPI's `pgserver` (in the dev group) or from Debian's
package; where there are neither, tests that need them are skipped, saying so.
`postgres` serves the whole session and is never stopped; `own_postgres` is its
test's to stop, kill and start again. PostgreSQL refuses to run as root, so it is
then run as the user `nobody`.
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
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["ADMIN", "PASSWORD", "Postgres", "programs"]

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
    ) -> None:
        self.data = folder / "data"
        self.log = folder / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._folder = folder
        self._bin = bin_folder
        self._databases = count()
        self._killed = False
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._init(fsync, tls, connections)

    def _init(self, fsync: bool, tls: bool, connections: int) -> None:
        secret = self._write("secret", PASSWORD)
        self._run("initdb", "-D", self.data, "-U", ADMIN, "--pwfile", secret, "--auth=scram-sha-256",
                  "--encoding=UTF8", "--no-locale", "--no-sync")  # fmt: skip
        lines = [
            f"port = {self.port}",
            "listen_addresses = '127.0.0.1'",
            f"unix_socket_directories = '{self._folder}'",
            f"fsync = {'on' if fsync else 'off'}",
            f"max_connections = {connections}",
        ]
        if tls:
            lines += ["ssl = on", f"ssl_cert_file = '{self.certificate}'", f"ssl_key_file = '{self.key}'"]
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")

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
        """SIGKILL for the postmaster; its children end when they notice."""
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
        return f"postgresql://{ADMIN}:{PASSWORD_IN_URL}@127.0.0.1:{self.port}/{database}" + (
            f"?{query}" if query else ""
        )

    def new_database(self) -> str:
        name = f"db{next(self._databases)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    @contextlib.contextmanager
    def connect(self, database: str) -> Iterator[Any]:
        """For looking and meddling from outside."""
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
        with (self._folder / "output").open("w+") as output:
            done = subprocess.run(
                [str(self._bin / program), *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder, user=self._user,
                check=False, start_new_session=True,
            )  # fmt: skip
            if check and done.returncode:
                output.seek(0)
                log = self.log.read_text()[-2000:] if self.log.exists() else ""
                pytest.fail(f"{program} ended with {done.returncode}:\n{output.read()}\n{log}")
            return done.returncode


@cache
def programs(*, tls: bool = False) -> Path | None:
    """Where `postgres`, `initdb` and `pg_ctl` are, if they can be run."""
    found: list[Path] = []
    # Not imported: that would make folders and locks of its own.
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
) -> Iterator[Postgres]:
    """A cluster that has been started, in a folder below `parent` or wherever temporary ones go."""
    bin_folder = programs(tls=tls is not None)
    if bin_folder is None:
        pytest.skip(
            f"no PostgreSQL{' with TLS' if tls else ''} here: neither PyPI's pgserver nor Debian's postgresql"
        )
    # Not in pytest's folder: other users have no way in there. And short, for the socket's path.
    folder = Path(tempfile.mkdtemp(prefix="bendybus-pg-", dir=parent))
    try:
        server = Postgres(folder, bin_folder, fsync=fsync, tls=tls is not None, connections=connections)
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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """For the whole session; without fsync, since its machine does not fail in these tests."""
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
    """Running at first; the test may stop it, kill it and start it again."""
    if not _own_postgres.running:
        _own_postgres.start()
    return _own_postgres
