"""Fixtures for every test: they live in fix_*.py, by subject, and are found by name."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

pytest_plugins = [
    "pytester",
    "fix_async",
    "fix_broker",
    "fix_examples",
    "fix_leaks",
    "fix_postgres",
    "fix_rows",
    "fix_several_brokers",
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

# Servers of tests are not among those that the user runs.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="bendybus-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
