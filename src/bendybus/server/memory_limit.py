"""How much memory connections may use: `--memory`, or a share of what the machine has.

In a container the container's limit counts as the machine's memory (cgroup v1 and v2). What is done with the
limit: gateway/memory_budget.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from bendybus.errors import ConfigError

__all__ = ["MEMORY_SHARE_PERCENT", "machine_memory", "memory_limit"]

# The rest is for the messages' records, the payload cache, the interpreter, and the page cache of the stores.
MEMORY_SHARE_PERCENT: Final = 25

# Less than this is used up by a few ordinary clients with large messages.
MEMORY_LEAST: Final = 32 * 1024**2

# Where the system does not say how much it has.
MACHINE_MEMORY_UNKNOWN: Final = 2 * 1024**3

UNITS: Final = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]?I?B?)", re.IGNORECASE)


def memory_limit(setting: str | None) -> int:
    """The limit in bytes; `ConfigError` if the setting is invalid."""
    machine = machine_memory()
    if setting is None:
        return max(MEMORY_LEAST, machine * MEMORY_SHARE_PERCENT // 100)
    limit = _parsed(setting, machine)
    if not MEMORY_LEAST <= limit <= machine:
        raise ConfigError(
            f"--memory is '{setting[:40]}', which is {limit} bytes; allowed is {MEMORY_LEAST} to {machine}, "
            "which is what this machine or container has"
        )
    return limit


def _parsed(setting: str, machine: int) -> int:
    found = _SIZE.fullmatch(setting.strip())
    if found is None:
        raise ConfigError(
            f"--memory is '{setting[:40]}'; write a size such as 2GB or 512MB, or a share such as 25%"
        )
    number, unit = float(found[1]), found[2].upper().replace("I", "")
    if unit == "%":
        return int(machine * number / 100)
    return int(number * UNITS[unit if unit.endswith("B") or not unit else unit + "B"])


def machine_memory(root: Path = Path("/")) -> int:
    """What this machine has, or its container may use."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        physical = MACHINE_MEMORY_UNKNOWN
    return min([physical, *_container_limits(root)])


def _container_limits(root: Path) -> Iterator[int]:
    """The limits of this process's control group and of those above it, as far as they can be seen."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        # "hierarchy-ID:controller-list:cgroup-path" [cgroups(7)]; version 2 has the ID 0 and no list.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _limits_of(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_of(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")


def _limits_of(top: Path, path: str, name: str) -> Iterator[int]:
    group = PurePosixPath("/") / path
    # In a container its own group is often mounted at the top, under a path that does not exist inside.
    for each in (group, *group.parents):
        try:
            text = (top / each.relative_to("/") / name).read_text().strip()
        except (OSError, ValueError):
            continue
        # Version 2 writes "max" for no limit; version 1 writes a number beyond all memory.
        if text.isdigit():
            yield int(text)
