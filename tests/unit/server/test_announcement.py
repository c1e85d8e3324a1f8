"""How the command line finds the server of a data folder, and what keeps it from finding a wrong one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bendybus.errors import ConfigError
from bendybus.server.announcement import announce, find_operated, find_running, withdraw


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "root.key").write_text("the-root-key\n")
    return tmp_path


def test_a_running_server_is_found_with_the_key_of_its_folder(data: Path) -> None:
    announce(data, "0.0.0.0", 5672, sas_key=None, operator_key="op")
    assert find_running(data) == (
        "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=the-root-key;UseDevelopmentEmulator=true"
    )


def test_a_server_that_requires_tls_is_found_without_the_emulators_flag(data: Path) -> None:
    announce(data, "127.0.0.1", 5672, sas_key=None, operator_key="op", tls=True)
    found = find_running(data)
    assert found is not None and "UseDevelopmentEmulator" not in found


def test_the_file_holds_no_key_and_is_its_owners_alone(data: Path) -> None:
    announce(data, "127.0.0.1", 5672, sas_key=None, operator_key="op")
    file = data / "server.json"
    assert "the-root-key" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_operator_needs_no_key_of_a_namespace(data: Path) -> None:
    assert find_operated(data) is None
    announce(data, "0.0.0.0", 5672, sas_key="mine", operator_key="of-this-start")
    assert find_operated(data) == (
        "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=$operator;"
        "SharedAccessKey=of-this-start;UseDevelopmentEmulator=true"
    )


def test_no_server_is_found_once_it_has_withdrawn_or_where_none_was(data: Path) -> None:
    assert find_running(data) is None
    announce(data, "127.0.0.1", 5672, sas_key=None, operator_key="op")
    withdraw(data)
    assert find_running(data) is None


def test_a_server_that_was_killed_is_not_found(data: Path) -> None:
    # Its port may be anybody's by now.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    announce(data, "127.0.0.1", 5672, sas_key=None, operator_key="op")
    content = json.loads((data / "server.json").read_text())
    (data / "server.json").write_text(json.dumps({**content, "pid": ended.pid}))
    assert find_running(data) is None


def test_a_key_from_the_environment_has_to_be_there_for_the_command_too(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(data, "127.0.0.1", 5672, sas_key="mine", operator_key="op")
    monkeypatch.delenv("BENDYBUS_SAS_KEY", raising=False)
    with pytest.raises(ConfigError, match="BENDYBUS_SAS_KEY: set it here too"):
        find_running(data)
    monkeypatch.setenv("BENDYBUS_SAS_KEY", "mine")
    assert "SharedAccessKey=mine;" in str(find_running(data))


def test_the_emulators_key_is_known_to_everyone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENDYBUS_SAS_KEY", raising=False)
    announce(data, "127.0.0.1", 5672, sas_key="SAS_KEY_VALUE", operator_key="op")
    assert "SharedAccessKey=SAS_KEY_VALUE;" in str(find_running(data))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"pid": "x", "host": "h", "port": 1, "root_key": "folder"}']
)
def test_a_damaged_file_is_told(data: Path, content: str) -> None:
    (data / "server.json").write_text(content)
    with pytest.raises(ConfigError, match=r"server\.json cannot be read"):
        find_running(data)


def test_an_old_file_is_replaced(data: Path) -> None:
    announce(data, "127.0.0.1", 1, sas_key=None, operator_key="op")
    announce(data, "127.0.0.1", 2, sas_key=None, operator_key="op")
    assert json.loads((data / "server.json").read_text()) == {
        "pid": os.getpid(),
        "host": "127.0.0.1",
        "port": 2,
        "root_key": "folder",
        "operator_key": "op",
        "tls": False,
    }
