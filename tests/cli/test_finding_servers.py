"""Commands that are not told which server they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_processes import run_bendybus
from fix_server import StartServer


def test_a_command_finds_the_emulators_server_from_any_folder(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    monkeypatch.setenv("XDG_STATE_HOME", state["XDG_STATE_HOME"])
    server = start_server({"parcels": {}}, None, "--emulator")
    here = tmp_path / "here"
    here.mkdir()
    found = run_bendybus("queue", "list", environment=state, folder=here)
    assert (found.returncode, found.stderr) == (0, "")
    assert "parcels" in found.stdout
    server.kill()
    gone = run_bendybus("queue", "list", environment=state, folder=here)
    assert gone.returncode == 2
    assert "no server runs on the data folder '.data'" in gone.stderr
