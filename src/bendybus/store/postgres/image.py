"""Dumps a store's schema at one moment, and restores a store from a dump, with PostgreSQL's own tools.

An exported snapshot fixes the moment, and `pg_dump` reads with it. The schema keeps its name, so a dump is
restored into a database that has no such schema: existing data is never overwritten. Passwords are passed to
the tools in the environment, because `ps` shows arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from bendybus.errors import StoreError
from bendybus.store.postgres.address import StoreAddress
from bendybus.store.postgres.connections import QUERIES, connect, translated
from bendybus.store.postgres.schema import has_schema

__all__ = ["PostgresImage", "refuse_unfit", "restore_image"]

# How often a running dump is checked.
LOOK_EVERY_S: Final = 0.1


class PostgresImage:
    """The methods are described in `StoreImage`."""

    suffix = ".pgdump"

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._pg_dump = _tool("pg_dump", address)
        self._snapshot = ""
        self._connection = connect(address)
        try:
            # Its transaction is idle for as long as the dump takes.
            self._connection.execute(QUERIES["be_patient"])
        except psycopg.Error as error:
            self._connection.close()
            raise translated(error, address.name) from error

    def fix(self) -> None:
        try:
            self._connection.execute(QUERIES["begin_image"])
            row = self._connection.execute(QUERIES["export_snapshot"]).fetchone()
        except psycopg.Error as error:
            raise translated(error, self._address.name) from error
        assert row is not None
        self._snapshot = row[0]

    def write(self, file: Path, copied: Callable[[int], None]) -> None:
        assert self._snapshot, "the moment is fixed before anything is written"
        command = [
            *(self._pg_dump, "--format=custom", "--compress=1", "--no-owner", "--no-privileges"),
            *(f'--schema="{self._address.schema}"', f"--snapshot={self._snapshot}", f"--file={file}"),
        ]
        _run(command, self._address, lambda: copied(file.stat().st_size if file.exists() else 0))

    def close(self) -> None:
        self._connection.close()


def refuse_unfit(file: Path, address: StoreAddress) -> None:
    """`StoreError` if the dump cannot be restored there: its schema exists already, or is another one."""
    listed = subprocess.run(
        [_tool("pg_restore", address), "--list", str(file)], capture_output=True, text=True, check=False
    )
    if not re.search(rf" SCHEMA - {re.escape(address.schema)} ", listed.stdout):
        raise StoreError(
            f"{address.name}: {file} is no dump of a schema {address.schema}; a store keeps its schema's name"
        )
    try:
        with closing(connect(address)) as connection:
            if has_schema(connection, address):
                raise StoreError(
                    f"{address.name}: the database has a schema {address.schema} already, and it may be in "
                    f"use; restore into a database that has none"
                )
    except psycopg.Error as error:
        raise translated(error, address.name) from error


def restore_image(file: Path, address: StoreAddress, namespace: str) -> None:
    """Restore the store from a dump, owned by `namespace`. Check it first with `refuse_unfit`."""
    options = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
    _run([_tool("pg_restore", address), *options, str(file)], address, lambda: None)
    try:
        with closing(connect(address)) as connection:
            connection.execute(QUERIES["hand_over"], (namespace,))
    except psycopg.Error as error:
        raise translated(error, address.name) from error


def _tool(name: str, address: StoreAddress) -> str:
    found = shutil.which(name)
    if found is None:
        raise StoreError(
            f"{address.name} is a PostgreSQL store, and {name} is not installed on this machine: "
            f"install PostgreSQL's client programs of the server's version or later"
        )
    return found


def _run(command: list[str], address: StoreAddress, look: Callable[[], None]) -> None:
    """Run one of PostgreSQL's tools to its end. An exception from `look` terminates it."""
    parameters = dict(address.connection_parameters())
    environment: Mapping[str, str] = os.environ
    if password := parameters.pop("password", None):
        environment = {**os.environ, "PGPASSWORD": password}
    with subprocess.Popen(
        [*command, f"--dbname={make_conninfo(**parameters)}"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            complaints = _watched(process, look)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        tool = Path(command[0]).name
        # The second line has the details, such as incompatible versions.
        lines = complaints.decode("utf-8", "replace").strip().splitlines()[:2]
        raise StoreError(f"{address.name}: {tool} failed: {'; '.join(lines) or 'no reason given'}")


def _watched(process: subprocess.Popen[bytes], look: Callable[[], None]) -> bytes:
    while True:
        look()
        try:
            return process.communicate(timeout=LOOK_EVERY_S)[1]
        except subprocess.TimeoutExpired:
            continue
