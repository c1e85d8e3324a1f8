"""The runs of pipelines that a namespace remembers: the last ones, in memory and in a folder.

A run is a small JSON file of its own, replaced whole with each report. Reports are for people: they are not
synced, and a power failure may take the last ones. A file that cannot be read is left alone. A folder that
cannot be written to is reported once, and the runs in memory go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bendybus.names import Instant

__all__ = ["PipelineRuns"]

logger = logging.getLogger(__name__)

# Together at most 6 MB for a namespace.
RUNS_MAX: Final = 100

_FIELDS: Final = frozenset(
    {"id", "pipeline", "about", "state", "phase", "messages", "total", "error", "summary", "updatedAt"}
)


class PipelineRuns:
    def __init__(self, folder: Path | None) -> None:
        """`folder` is created with the first run; None: runs are forgotten when the server stops."""
        self._folder = folder
        self._runs: dict[str, dict[str, object]] | None = None
        self._changing = asyncio.Lock()
        self._unwritable = False

    async def newest_first(self) -> list[dict[str, object]]:
        return list(reversed((await self._known()).values()))

    async def find(self, name: str) -> dict[str, object] | None:
        return (await self._known()).get(name)

    async def put(self, name: str, told: Mapping[str, object], at: Instant) -> None:
        """What a run tells of itself, in place of what it told before."""
        async with self._changing:
            runs = await self._read()
            started = runs.get(name, {}).get("startedAt", at)
            run = runs[name] = {"id": name, "startedAt": started, **told, "updatedAt": at}
            oldest = [runs.pop(next(iter(runs)))["id"] for _ in range(len(runs) - RUNS_MAX)]
            if self._folder is None:
                return
            try:
                await asyncio.to_thread(_write, self._folder, run, oldest)
                self._unwritable = False
            except OSError as error:
                if not self._unwritable:
                    logger.warning("runs of pipelines cannot be kept in %s: %s", self._folder, error)
                self._unwritable = True

    async def _known(self) -> dict[str, dict[str, object]]:
        if self._runs is not None:
            return self._runs
        async with self._changing:
            return await self._read()

    async def _read(self) -> dict[str, dict[str, object]]:
        """Once, when somebody asks for the first time."""
        if self._runs is None:
            found = [] if self._folder is None else await asyncio.to_thread(_found, self._folder)
            self._runs = {str(run["id"]): run for run in found}
        return self._runs


def _file(folder: Path, name: object) -> Path:
    # A run chooses its name, which may be no name for a file.
    return folder / f"{hashlib.sha256(str(name).encode()).hexdigest()[:32]}.json"


def _write(folder: Path, run: Mapping[str, object], forgotten: list[object]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    file = _file(folder, run["id"])
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(run))
    os.replace(draft, file)
    for name in forgotten:
        _file(folder, name).unlink(missing_ok=True)


def _found(folder: Path) -> list[dict[str, Any]]:
    """The oldest first."""
    found: list[dict[str, Any]] = []
    for file in folder.glob("*.json"):
        try:
            run = json.loads(file.read_text())
            if not isinstance(run["startedAt"], int) or not run.keys() >= _FIELDS:
                raise ValueError("no run")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            logger.warning("the run of a pipeline in %s cannot be read", file)
        else:
            found.append(run)
    return sorted(found, key=lambda run: int(run["startedAt"]))[-RUNS_MAX:]
