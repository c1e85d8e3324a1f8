"""Which messaging stores a request may attach: those that the operator allowed when the server started.

A permission (`--allow-store`) is a folder, one SQLite file, or one PostgreSQL database. A store's
URL makes the server read and create files and connect to other machines, so a namespace's
key alone must not choose it. URLs are never compared as text: files are compared by their path with links and
`..` resolved, databases by host, port and database as libpq reads them. Only the parameters in
`FROM_REQUESTS` are taken from a request; all others must be in the operator's permission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bendybus.errors import ArgumentError, ConfigError, StoreNotAllowed
from bendybus.server.stores import kind_of, postgres_driver, shown_url, sqlite_path

__all__ = ["AllowedStores"]

# None of these names a file on the server, runs anything, or leads to another machine.
FROM_REQUESTS: Final = frozenset({"host", "port", "dbname", "user", "password", "sslmode", "schema", "name"})
# A request may ask for more protection than libpq's default, but not for less.
SSL_MODES_FROM_REQUESTS: Final = frozenset({"require", "verify-ca", "verify-full"})
PLACE: Final = ("host", "port", "dbname")
PORT_DEFAULT: Final = "5432"


@dataclass(frozen=True, slots=True)
class _Folder:
    """Any file in it or in a folder below it, except in the server's data folder if that is inside."""

    path: Path
    data: Path

    def admits(self, file: Path) -> bool:
        folder, data = _resolved(self.path), _resolved(self.data)
        if data.is_relative_to(folder) and file.is_relative_to(data):
            return False
        return file != folder and file.is_relative_to(folder)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path

    def admits(self, file: Path) -> bool:
        return file == _resolved(self.path)


@dataclass(frozen=True, slots=True)
class _Database:
    parameters: Mapping[str, str] = field(repr=False)
    """As the operator wrote them. They are used for the connection, whatever the request says."""

    def objection(self, asked: Mapping[str, str]) -> str | None:
        """Why this permission does not cover the request; None if it does."""
        ours = self.parameters
        if _place(asked) != _place(ours):
            return NOT_ALLOWED
        with_password = bool(ours.keys() & {"password", "password_file"})
        for key, value in asked.items():
            if key in PLACE or ours.get(key) == value:
                continue
            if key in ours or (with_password and key in ("user", "password")):
                return f"'{key}' differs from what --allow-store says."
            if key not in FROM_REQUESTS:
                return f"'{key}' is not taken from a request; the operator may write it in --allow-store."
            if key == "sslmode" and value not in SSL_MODES_FROM_REQUESTS:
                return f"sslmode in a request is one of {', '.join(sorted(SSL_MODES_FROM_REQUESTS))}."
        return None


NOT_ALLOWED: Final = (
    "it is not among the stores that may be attached. "
    "The operator allows a folder or a URL when the server starts: --allow-store."
)


class AllowedStores:
    """The permissions of one server, read by `parse`. Without any, nothing may be attached."""

    def __init__(self, files: Iterable[_Folder | _File], databases: Iterable[_Database]) -> None:
        self._files = tuple(files)
        self._databases = tuple(databases)

    @classmethod
    def parse(cls, texts: Iterable[str], data: Path) -> AllowedStores:
        """The operator's permissions. `ConfigError` names one that is invalid."""
        files: list[_Folder | _File] = []
        databases: list[_Database] = []
        for text in texts:
            try:
                if "://" not in text:
                    files.append(_Folder(_folder(text), data))
                elif kind_of(text) == "sqlite":
                    files.append(_File(sqlite_path(text)))
                else:
                    databases.append(_database(text))
            except ConfigError as error:
                raise ConfigError(f"--allow-store {shown_url(text)}: {error}") from None
        return cls(files, databases)

    def admitted(self, url: str) -> str:
        """The URL to attach for a request with this URL. `StoreNotAllowed` if no permission covers it."""
        try:
            if kind_of(url) == "sqlite":
                return self._admitted_file(sqlite_path(url))
            return self._admitted_database(_parameters(url))
        except ConfigError as error:
            raise ArgumentError(f"{shown_url(url)} cannot be attached: {error}") from None
        except StoreNotAllowed as refusal:
            raise StoreNotAllowed(f"{shown_url(url)} cannot be attached: {refusal}") from None

    def _admitted_file(self, path: Path) -> str:
        try:
            file = _resolved(path)
        except (OSError, RuntimeError):
            # A link to itself. The error does not reveal whether it exists.
            raise StoreNotAllowed(NOT_ALLOWED) from None
        if not any(permission.admits(file) for permission in self._files):
            raise StoreNotAllowed(NOT_ALLOWED)
        return f"sqlite://{quote(str(file))}"

    def _admitted_database(self, asked: Mapping[str, str]) -> str:
        from bendybus.store.postgres.address import url_of  # noqa: PLC0415 - see postgres_driver

        objections: list[str] = []
        for permission in self._databases:
            objection = permission.objection(asked)
            if objection is None:
                return url_of({**asked, **permission.parameters})
            objections.append(objection)
        telling = next((each for each in objections if each != NOT_ALLOWED), NOT_ALLOWED)
        raise StoreNotAllowed(telling)


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ConfigError("write an absolute path of a folder, sqlite:///PATH or postgresql://HOST/DATABASE")
    if not path.is_dir():
        raise ConfigError("the folder does not exist")
    return path


def _resolved(path: Path) -> Path:
    return path.resolve(strict=False)


def _parameters(url: str) -> dict[str, str]:
    with postgres_driver():
        from bendybus.store.postgres.address import parameters_of  # noqa: PLC0415
    return parameters_of(url)


def _database(url: str) -> _Database:
    permission = _Database(_parameters(url))
    from bendybus.store.postgres.address import parse_address  # noqa: PLC0415 - see postgres_driver

    # The operator is told of errors in it at the start. For a request, this would read the
    # files that the URL names, so the request is compared first.
    parse_address(url)
    return permission


def _place(parameters: Mapping[str, str]) -> tuple[list[tuple[str, str]], str]:
    """Hosts with their ports, and the database."""
    hosts = parameters.get("host", "").lower().split(",")
    ports = [port or PORT_DEFAULT for port in parameters.get("port", "").split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    return list(zip(hosts, ports, strict=False)), parameters["dbname"]
