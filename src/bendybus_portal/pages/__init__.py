"""The pages, one module for each. Importing one adds it to NiceGUI's routes."""

from __future__ import annotations

from importlib import import_module
from typing import Final

__all__ = ["add_pages"]

_MODULES: Final = (
    *("namespace", "entity", "messages", "dead_letters", "sessions", "rules", "settings"),
    *("connections", "stores", "policies", "pipelines"),
)


def add_pages() -> None:
    for name in _MODULES:
        import_module(f"bendybus_portal.pages.{name}")
