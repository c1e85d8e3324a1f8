"""The address of a messaging store: a URL, parsed and checked.

    postgresql://user:password@host:port/database?schema=S&name=N&password_file=F&sslmode=verify-full

`schema`, `name` and `password_file` are ours. All others are libpq's, as are the
variables PGPASSWORD, PGPASSFILE and so on. No text made here shows a
password: neither an error nor a `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bendybus.errors import ConfigError, StoreUnavailable

__all__ = ["StoreAddress", "parameters_of", "parse_address", "url_of"]

SCHEMA_DEFAULT: Final = "bendybus"
# Parameters that are ours and not libpq's.
OURS: Final = ("schema", "name", "password_file")
WRITE: Final = "write postgresql://USER@HOST:PORT/DATABASE?sslmode=..."

# A server that has vanished is noticed after about 5 + 3 * 3 seconds, or after 5 while connecting. Values in
# the URL take precedence.
CONNECTION_DEFAULTS: Final = {
    "application_name": "bendybus",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "target_session_attrs": "read-write",
}

# PostgreSQL truncates names at 63 bytes and reserves `pg_` for itself.
_SCHEMA: Final = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A parsed URL."""

    name: str
    """For people, and for the catalog: the name of the store that a partition is in."""
    schema: str
    parameters: dict[str, str] = field(repr=False)
    password_file: Path | None = None
    timelines: Path | None = None
    """The file that remembers which primaries are old (timelines.py); None: that is not checked."""

    def hosts(self) -> list[dict[str, str]]:
        """The parameters for each host of the URL alone. One element if it has one host, or none."""
        given = self.connection_parameters()
        hosts = given.get("host", "").split(",")
        if len(hosts) == 1 or "," in given.get("hostaddr", ""):
            return [given]
        ports = given.get("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        return [{**given, "host": host, "port": port} for host, port in zip(hosts, ports, strict=True)]

    def connection_parameters(self) -> dict[str, str]:
        """For psycopg. The password file is read each time, so a new password needs no restart."""
        if self.password_file is None:
            return self.parameters
        try:
            password = self.password_file.read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreUnavailable(
                f"{self.name}: the password file {self.password_file} is not readable"
            ) from error
        return {**self.parameters, "password": password}


def parse_address(
    url: str, schema_default: str = SCHEMA_DEFAULT, timelines: Path | None = None
) -> StoreAddress:
    """`ConfigError` says what is wrong with the URL, without its password."""
    parameters = {**CONNECTION_DEFAULTS, **parameters_of(url)}
    ours = {key: parameters.pop(key) for key in OURS if key in parameters}
    schema = ours.get("schema", schema_default)
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError(f"'{schema}' is no schema's name: letters, digits and _, up to 63 of them")
    database = parameters["dbname"]
    name = ours.get("name") or (database if schema == schema_default else f"{database}.{schema}")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' is not a valid store name: letters, digits, '.', '_' and '-'; give it one by ?name="
        )
    password_file = Path(ours["password_file"]) if "password_file" in ours else None
    if password_file is not None:
        if "password" in parameters:
            raise ConfigError("the password is given twice, in the URL and by password_file")
        if not password_file.is_file():
            raise ConfigError(f"the password file {password_file} does not exist")
    return StoreAddress(name, schema, parameters, password_file, timelines)


def parameters_of(url: str) -> dict[str, str]:
    """All parameters of the URL, ours and libpq's, by name."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"it cannot be read; {WRITE}") from None
    if parts.netloc.count("@") > 1:
        raise ConfigError("a '@' inside the user name or the password is written %40")
    # By hand, as libpq does it: a '#' is an ordinary character, and an empty host keeps its slashes.
    base, _, said = url.partition("?")
    given = parse_qsl(said, keep_blank_values=True)
    ours = {key: value for key, value in given if key in OURS}
    # Spaces as %20: libpq does not read a plus sign as a space.
    query = urlencode([pair for pair in given if pair[0] not in ours], quote_via=quote)
    return {**_libpq_parameters(f"{base}?{query}" if query else base), **ours}


def url_of(parameters: Mapping[str, str]) -> str:
    """A URL from these parameters. `parameters_of` returns the same parameters."""
    others = {key: value for key, value in parameters.items() if key != "dbname"}
    return f"postgresql:///{quote(parameters['dbname'], safe='')}?{urlencode(others, quote_via=quote)}"


def _libpq_parameters(url: str) -> dict[str, str]:
    try:
        # The text of libpq's error may quote what it could not parse, which may be part of the password.
        parameters = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError as error:
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        why = f"there is no parameter '{unknown[1]}'" if unknown else "it cannot be read"
        raise ConfigError(f"{why}; {WRITE}") from None
    if not parameters.get("dbname"):
        raise ConfigError(f"it names no database; {WRITE}")
    ports = parameters.get("port", "0").split(",")
    if not all(port.isdecimal() for port in ports if port):
        raise ConfigError("its port is no number")
    if len(ports) not in (1, len(parameters.get("host", "").split(","))):
        raise ConfigError("it has several ports, and another number of hosts")
    return parameters
