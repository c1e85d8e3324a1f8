"""`--memory`: sizes, shares, and what a container's limit does to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.errors import ConfigError
from bendybus.server import memory_limit as module
from bendybus.server.memory_limit import MEMORY_SHARE_PERCENT, machine_memory, memory_limit

GIB = 1024**3


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: 8 * GIB)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("2GB", 2 * GIB),
        ("2GiB", 2 * GIB),
        ("512MB", GIB // 2),
        ("512m", GIB // 2),
        ("1.5 gb", 3 * GIB // 2),
        (str(GIB), GIB),
        ("25%", 2 * GIB),
        (None, 8 * GIB * MEMORY_SHARE_PERCENT // 100),
    ],
)
def test_a_size_or_a_share_becomes_bytes(setting: str | None, expected: int) -> None:
    assert memory_limit(setting) == expected


@pytest.mark.parametrize("setting", ["", "much", "2XB", "-1GB", "1MB", "0%", "101%", "9GB", "nan%"])
def test_a_size_that_cannot_be_meant_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="--memory"):
        memory_limit(setting)


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_limit_of_cgroup_v2_counts_as_the_machine(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/pod/broker\n")
    put(tmp_path, "sys/fs/cgroup/pod/broker/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.max", f"{256 * 1024**2}\n")
    assert machine_memory(tmp_path) == 256 * 1024**2


def test_a_limit_of_cgroup_v1_counts_as_the_machine(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n")
    # The container sees its own group at the top.
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{128 * 1024**2}\n")
    assert machine_memory(tmp_path) == 128 * 1024**2


def test_without_a_limit_the_machine_is_what_it_is(tmp_path: Path) -> None:
    unlimited = machine_memory(tmp_path)
    put(tmp_path, "proc/self/cgroup", "4:memory:/\n0::/\n")
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert machine_memory(tmp_path) == unlimited > 0
