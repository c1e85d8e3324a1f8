"""Fixtures for every test: they live in fix_*.py, by subject, and are found by name.

Hypothesis may take its time: how fast an example is says more about the machine's other work than about us.
"""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "fix_async",
    "fix_broker",
    "fix_leaks",
    "fix_postgres",
    "fix_rows",
    "fix_server",
    "fix_kinds",
    "fix_workers",
    "fix_management",
    "fix_jms",
]

# The tests start hundreds of Python processes. Without byte code each compiles all that it imports, which
# takes half of the time to start a server and most of that of a worker of Spark.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
