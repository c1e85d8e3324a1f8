"""`bendybus cert`: the server's own certificate, where it is put, and who is told how to trust it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from bendybus.cli.cert import TRUST
from bendybus.cli.main import app
from bendybus.server.tls import self_made_certificate, server_context

runner = CliRunner()


def test_the_server_then_uses_the_certificate_that_was_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert runner.invoke(app, ["cert", "--data", str(data), "--name", "bus.example"]).exit_code == 0
    made = (data / "tls" / "server.crt").read_bytes()
    assert self_made_certificate(data)[0].read_bytes() == made
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_one_that_is_there_is_kept_and_nothing_is_said_of_making(tmp_path: Path) -> None:
    first = runner.invoke(app, ["cert", "--data", str(tmp_path)])
    again = runner.invoke(app, ["cert", "--data", str(tmp_path)])
    assert "made now" in first.stderr
    assert again.stderr == ""
    assert again.stdout == first.stdout


def test_every_sdk_is_told_the_certificates_path(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    told = runner.invoke(app, ["cert", "--out", str(folder)]).stdout
    for sdk in TRUST:
        assert f"\n{sdk}\n" in told
    # As a shell and as Python need it.
    assert f"NODE_EXTRA_CA_CERTS='{folder}/server.crt'" in told
    assert f"connection_verify='{folder}/server.crt'" in told
    server_context(folder / "server.crt", folder / "server.key")


def test_json_has_the_same(tmp_path: Path) -> None:
    told = json.loads(runner.invoke(app, ["cert", "--out", str(tmp_path), "-o", "json"]).stdout)
    assert told["certificate"] == str(tmp_path / "server.crt")
    assert told["trust"]["JavaScript"] == [f"export NODE_EXTRA_CA_CERTS={tmp_path}/server.crt"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--name", "two words"], "--name is 'two words'; it must be a host name or an address"),
        (["--out", "/proc/none"], "the certificate cannot be made in '/proc/none'"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], told: str) -> None:
    result = runner.invoke(app, ["cert", "--data", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"bendybus: {told}")
    assert result.stderr.count("\n") == 1
