"""How the tests are divided among processes (`pytest -n`).

A file stays together, so that what its tests share, such as a server, is made once. All of Spark's files stay
together, because starting Spark takes longer than most of them. Long files are started first: if they were
started last, all other processes would wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

FOLDER: Final = Path(__file__).parent
SPARK: Final = "spark"
# Files by their duration. All files that are not named are quick.
LONG: Final = (SPARK, "interop", "hostile", "cli", "faults", "client")
# Files that take more than twenty seconds, the longest first. They are started before the others of LONG.
LONG_FILES: Final = (
    "interop/test_cluster.py",
    "interop/test_topics.py",
    "interop/test_brokers.py",
    "interop/test_sessions.py",
    "interop/test_entra.py",
    "interop/test_outages.py",
    "interop/test_stores.py",
    "interop/test_premium.py",
    "hostile/test_memory.py",
    "interop/test_moving.py",
    "faults/test_simulation.py",
    "interop/test_scheduling.py",
    "interop/test_forwarding.py",
    "interop/test_limits.py",
    "interop/test_administration.py",
    "cli/test_pipelines.py",
    "interop/test_damage.py",
    "interop/test_rows_stores.py",
    "interop/test_rows_entities.py",
    "interop/test_rules.py",
    "client/test_client.py",
    "interop/test_restarts.py",
    "interop/test_duplicates.py",
    "interop/test_receiving.py",
    "cli/test_lost_stores.py",
    "faults/test_backup_check.py",
)


def _part(path: Path) -> str:
    return path.relative_to(FOLDER).parts[0]


def _turn(item: pytest.Item) -> tuple[int, int]:
    part, file = _part(item.path), item.path.relative_to(FOLDER).as_posix()
    if file in LONG_FILES:
        return 1, LONG_FILES.index(file)
    return (0, 0) if part == SPARK else (2, LONG.index(part) if part in LONG else len(LONG))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return SPARK if _part(config.rootpath / file) == SPARK else file

    return ByFile(config, log)
