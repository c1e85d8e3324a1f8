"""The servers that this user runs: commands find them from any folder.

There is a file for each data folder in `~/.local/state/bendybus/servers` (or below `$XDG_STATE_HOME`), with
the path of the data folder and nothing else. Whether a server runs there, and how to reach it, is in the data
folder itself (announcement.py). So a file that a killed server leaves behind does no harm.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["add_running", "remove_running", "running_folders"]

logger = logging.getLogger(__name__)


def add_running(data: Path, environment: Mapping[str, str] = os.environ) -> None:
    """To be called when the server of this data folder accepts connections."""
    try:
        file = _file_of(data, environment)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(str(data.resolve()))
    except (OSError, RuntimeError) as error:
        # A service without a home, for example. Commands still find the server by its data folder.
        logger.debug("commands find this server only with --data: %s", error)


def remove_running(data: Path, environment: Mapping[str, str] = os.environ) -> None:
    try:
        _file_of(data, environment).unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        logger.debug("the server stays in the list of this user's servers: %s", error)


def running_folders(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The data folders of servers that this user has started and that have not stopped in an orderly way."""
    found: list[Path] = []
    try:
        for file in _folder(environment).iterdir():
            data = Path(file.read_text())
            if data.is_dir():
                found.append(data)
            else:
                file.unlink(missing_ok=True)
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        logger.debug("the list of this user's servers cannot be read: %s", error)
    return sorted(found)


def _file_of(data: Path, environment: Mapping[str, str]) -> Path:
    name = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:32]
    return _folder(environment) / name


def _folder(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "bendybus" / "servers"
