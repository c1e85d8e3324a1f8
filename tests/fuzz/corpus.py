"""The targets by name, their kept inputs, and where new inputs and crashes go.

Kept inputs are files in corpus/NAME: shapes of real traffic, inputs that reach what the shapes do not, and
every input that once crashed a parser. They are the start of each search, and `make test` replays them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from fuzz.target import Target

__all__ = ["CRASHES", "NAMES", "kept", "kept_folder", "load", "save_crash", "work_folder"]

NAMES: Final = (
    "frames",
    "sections",
    "connection",
    "websocket",
    "http_head",
    "sql_rules",
    "atom",
    "resources",
    "tokens",
)

ROOT: Final = Path(__file__).parents[2]
CRASHES: Final = Path(__file__).parent / "crashes"


def load(name: str) -> Target:
    """Imports the parser as well: what is to be instrumented must not be imported before."""
    target = import_module(f"fuzz.targets.{name}").TARGET
    assert isinstance(target, Target)
    assert target.name == name
    return target


def kept_folder(name: str) -> Path:
    return Path(__file__).parent / "corpus" / name


def kept(name: str) -> list[bytes]:
    return [path.read_bytes() for path in _files(kept_folder(name))]


def work_folder(name: str) -> Path:
    """What a search finds interesting: it goes on from there the next time."""
    folder = ROOT / ".cache" / "fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save_crash(name: str, data: bytes) -> Path:
    path = CRASHES / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file())
