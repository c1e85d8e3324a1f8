"""Where a running server can be found: a small file in its data folder, gone when it stops.

`server.json` holds the endpoint, the process and where the root key is kept, never the
key itself: that stays in the folder's `root.key` or in the operator's environment, unless it is
the emulator's, which everyone knows. It also holds the operator's key, which is made at each start: anyone
who can read it can also read the data folder, and may make requests that concern the whole server
(backup_routes.py). A server that was killed leaves its file behind, so readers check that the process lives.
From other folders a server is found by the list of its user's (running_servers.py).
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bendybus.auth.connection_strings import local_connection_string
from bendybus.errors import ConfigError
from bendybus.server.running_servers import add_running, remove_running, running_folders
from bendybus.server.settings import SAS_KEY_VARIABLE, WELL_KNOWN_KEY, sas_key_from
from bendybus.store.folder import ROOT_KEY_FILE

__all__ = ["OPERATOR_RULE_NAME", "announce", "find_operated", "find_running", "running_elsewhere", "withdraw"]

logger = logging.getLogger(__name__)

ANNOUNCEMENT_FILE: Final = "server.json"

# The name under which the operator's key signs. No namespace has such a rule.
OPERATOR_RULE_NAME: Final = "$operator"

IN_FOLDER: Final = "folder"
IN_ENVIRONMENT: Final = "environment"
WELL_KNOWN: Final = "emulator"


@dataclass(frozen=True, slots=True)
class _Announcement:
    pid: int
    host: str
    port: int
    root_key: str
    """`IN_FOLDER`, `IN_ENVIRONMENT` or `WELL_KNOWN`."""
    tls: bool
    """Whether clients have to use TLS."""
    operator_key: str = field(repr=False)


def announce(
    data: Path, host: str, port: int, *, sas_key: str | None, operator_key: str, tls: bool = False
) -> None:
    """Called by the holder of the folder when it accepts connections.

    `sas_key`: the root key, if the operator has set it.
    """
    well_known_or_set = WELL_KNOWN if sas_key == WELL_KNOWN_KEY else IN_ENVIRONMENT
    content = {
        "pid": os.getpid(),
        "host": host,
        "port": port,
        "root_key": IN_FOLDER if sas_key is None else well_known_or_set,
        "tls": tls,
        "operator_key": operator_key,
    }
    draft = data / (ANNOUNCEMENT_FILE + ".new")
    try:
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file)
        draft.replace(data / ANNOUNCEMENT_FILE)
        add_running(data)
    except OSError as error:
        # The server still works for clients that know its address.
        logger.warning("the server cannot be found by its data folder: %s", error.strerror)
        draft.unlink(missing_ok=True)


def withdraw(data: Path) -> None:
    remove_running(data)
    (data / ANNOUNCEMENT_FILE).unlink(missing_ok=True)


def running_elsewhere() -> list[Path]:
    """The data folders of all servers that this user runs."""
    return [data for data in running_folders() if _is_running(data)]


def _is_running(data: Path) -> bool:
    try:
        return _running(data) is not None
    except ConfigError:
        return False


def find_running(data: Path, *, with_key: bool = True) -> str | None:
    """The connection string of the server that runs on this data folder; None if there is none.

    A client with a token of an identity provider needs no key.
    """
    found = _running(data)
    if found is None:
        return None
    key = _root_key(data, found) if with_key else None
    return local_connection_string(found.host, found.port, key, tls=found.tls)


def find_operated(data: Path) -> str | None:
    """The same for the operator, who needs no key of a namespace."""
    found = _running(data)
    if found is None:
        return None
    return local_connection_string(
        found.host, found.port, found.operator_key, OPERATOR_RULE_NAME, tls=found.tls
    )


def _running(data: Path) -> _Announcement | None:
    found = _read(data / ANNOUNCEMENT_FILE)
    return found if found is not None and _lives(found.pid) else None


def _read(file: Path) -> _Announcement | None:
    try:
        content = json.loads(file.read_bytes())
        return _Announcement(
            int(content["pid"]),
            str(content["host"]),
            int(content["port"]),
            str(content["root_key"]),
            bool(content.get("tls", False)),
            str(content["operator_key"]),
        )
    except FileNotFoundError:
        return None
    except PermissionError:
        raise ConfigError(f"{file} belongs to another user: ask for a connection string") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be read ({error!r}): restart the server") from error


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _root_key(data: Path, found: _Announcement) -> str:
    if found.root_key == IN_FOLDER:
        try:
            return (data / ROOT_KEY_FILE).read_text("ascii").strip()
        except OSError as error:
            raise ConfigError(f"the root key of {data} cannot be read: {error.strerror}") from error
    if found.root_key == WELL_KNOWN:
        return WELL_KNOWN_KEY
    key = sas_key_from(os.environ)
    if key is None:
        raise ConfigError(
            f"the server of {data} was given its key in {SAS_KEY_VARIABLE}: set it here too, "
            "or pass --connection-string"
        )
    return key
