"""Fixtures by subject, each in a module of its own."""

from __future__ import annotations

pytest_plugins = ["pytester", "fix_broker", "fix_postgres", "fix_server", "fix_kinds"]
