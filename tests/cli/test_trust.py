"""`bendybus trust`, as a process."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bendybus.server.tls import certificate_in
from fix_processes import run_bendybus

certifi = pytest.importorskip("certifi")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python whose certifi has a bundle of the test's own."""
    bundle = tmp_path / "cacert.pem"
    shutil.copyfile(certifi.where(), bundle)
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\necho {bundle}\n")
    file.chmod(0o700)
    return file


def test_a_certificate_is_trusted_and_taken_back(tmp_path: Path, python: Path) -> None:
    bundle = tmp_path / "cacert.pem"
    before = bundle.read_bytes()
    missing = run_bendybus("trust", "python", environment={}, folder=tmp_path)
    assert missing.returncode == 2
    assert "'bendybus cert' makes it" in missing.stderr
    certificate, _ = certificate_in(tmp_path / ".data" / "tls", [])
    done = run_bendybus("trust", "python", "--python", str(python), environment={}, folder=tmp_path)
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["python", "trusted"])
    assert f"NODE_EXTRA_CA_CERTS={certificate}" in done.stderr
    assert certificate.read_text().strip() in bundle.read_text()
    back = run_bendybus(
        *("trust", "python", "--remove", "--python", str(python), "-o", "json"),
        environment={},
        folder=tmp_path,
    )
    assert json.loads(back.stdout)["stores"]["python"] == {"done": True, "text": "1 certificates removed"}
    assert bundle.read_bytes() == before


def test_a_store_that_is_not_here_is_told(tmp_path: Path) -> None:
    certificate_in(tmp_path / ".data" / "tls", [])
    done = run_bendybus(
        *("trust", "java", "--python", sys.executable), environment={"PATH": str(tmp_path)}, folder=tmp_path
    )
    assert done.returncode == 1
    assert "java: keytool is not on the PATH" in done.stderr
