"""Whether this Bendybus is compiled. The modules that `make wheel` compiles are listed in pyproject.toml."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

__all__ = ["is_compiled"]

# One of the compiled modules: they are compiled together or not at all.
_ONE_OF_THEM = "run"


def is_compiled() -> bool:
    folder = Path(__file__).with_name("domain")
    return any((folder / f"{_ONE_OF_THEM}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
