"""The newest timeline of each database server that was seen, so that an old primary is not used again.

A standby that is promoted begins a new timeline. The primary that it has replaced may come back on the old
timeline, without the later commits and without noticing that. A broker that has seen the new timeline refuses
the old one. The timelines that were seen are kept in a file of the data folder, so a restart does not forget
them. Servers are distinguished by their system identifier, which a standby has in common with its primary.
"""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Final

from bendybus.errors import DatabaseSuperseded
from bendybus.store.folder import write_whole

__all__ = ["refuse_superseded"]

logger = logging.getLogger(__name__)

# Stores are opened from several threads, and they share the file.
_turn: Final = threading.Lock()


def refuse_superseded(path: Path, name: str, system: str, timeline: int) -> None:
    """`DatabaseSuperseded` if a newer timeline of this server is known. If not, this one is from now on."""
    with _turn:
        known = _read(path)
        newest = known.get(system, 0)
        if timeline < newest:
            raise DatabaseSuperseded(
                f"{name}: the PostgreSQL server is on timeline {timeline}, and {newest} has been used. It is "
                "an old primary, and lacks what was committed since a standby was promoted. Stop it, or let "
                f"it follow the new primary. If it was restored on purpose, remove {path}"
            )
        if timeline > newest:
            if newest:
                logger.warning("%s: a standby was promoted; its timeline is %d", name, timeline)
            _write(path, {**known, system: timeline})


def _read(path: Path) -> dict[str, int]:
    try:
        found = dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        logger.warning("%s is not readable, so an old primary would not be noticed: %s", path, error)
        return {}
    return {system: timeline for system, timeline in found.items() if isinstance(timeline, int)}


def _write(path: Path, known: dict[str, int]) -> None:
    try:
        write_whole(path, json.dumps(known).encode())
    except OSError as error:
        # The database can be used all the same.
        logger.warning("%s is not writable, so an old primary would not be noticed: %s", path, error)
