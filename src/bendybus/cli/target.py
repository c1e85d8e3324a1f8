"""Which server a command talks to.

The option comes first, then the environment, then the server that runs on the data
folder: the one that `--data` names, else `.data` here, else the one that this user runs
anywhere. What a connection string says: auth/connection_strings.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bendybus.auth.connection_strings import ConnectionString
from bendybus.errors import ArgumentError, ConfigError
from bendybus.server.announcement import find_running, running_elsewhere

__all__ = ["DATA_DEFAULT", "TOKEN_VARIABLE", "VARIABLES", "find_certificate", "find_folder", "find_namespace"]

# In the folder where a command is called.
DATA_DEFAULT: Final = Path(".data")

# Where a connection string is looked for, in this order.
VARIABLES: Final = ("BENDYBUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING")
# A JSON Web Token in place of a key.
TOKEN_VARIABLE: Final = "BENDYBUS_TOKEN"


def find_folder(data: Path | None) -> Path:
    """The data folder of the server that a command means; `ConfigError` if there are several."""
    if data is not None:
        return data
    if find_running(DATA_DEFAULT, with_key=False) is not None:
        return DATA_DEFAULT
    running = running_elsewhere()
    if len(running) > 1:
        shown = ", ".join(f"'{each}'" for each in running)
        raise ConfigError(
            f"several servers run, and none here: name the data folder of one by --data: {shown}"
        )
    return running[0] if running else DATA_DEFAULT


def find_namespace(
    connection_string: str | None, data: Path | None, environment: Mapping[str, str] = os.environ
) -> ConnectionString:
    """The namespace that a command uses; `ConfigError` says how to name one."""
    given = {"--connection-string": connection_string, **{name: environment.get(name) for name in VARIABLES}}
    token = environment.get(TOKEN_VARIABLE, "").strip()
    for source, text in given.items():
        if text:
            return _parsed(source, text, token)
    folder = find_folder(data)
    running = find_running(folder, with_key=not token)
    if running is None:
        raise ConfigError(
            f"no server runs on the data folder '{folder}' and no other is named: start one with "
            f"'bendybus serve', or pass --connection-string, or set {VARIABLES[0]}"
        )
    return ConnectionString.parse(running, token)


def find_certificate(
    connection_string: str | None, data: Path | None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The self-made certificate of the server on the data folder, if the command uses that server."""
    if connection_string or any(environment.get(name) for name in VARIABLES):
        return None
    certificate = find_folder(data) / "tls" / "server.crt"
    return str(certificate) if certificate.exists() else None


def _parsed(source: str, text: str, token: str) -> ConnectionString:
    try:
        return ConnectionString.parse(text, token)
    except ArgumentError as error:
        raise ConfigError(f"{source}: {error}") from None
