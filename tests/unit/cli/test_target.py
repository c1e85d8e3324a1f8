"""Which server a command means: the order of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.cli.target import find_folder, find_namespace
from bendybus.errors import ConfigError
from bendybus.server.announcement import announce, withdraw

LOCAL = "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=k=;UseDevelopmentEmulator=true"
AZURE = "Endpoint=sb://bus.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=abc="


def test_the_option_comes_before_the_environment_and_ours_before_the_general_one() -> None:
    both = {
        "BENDYBUS_CONNECTION_STRING": AZURE.replace("bus.", "ours."),
        "SERVICEBUS_CONNECTION_STRING": AZURE.replace("bus.", "general."),
    }
    nowhere = Path("/nowhere")
    assert find_namespace(LOCAL, nowhere, both).host == "localhost"
    assert find_namespace(None, nowhere, both).host.startswith("ours.")
    del both["BENDYBUS_CONNECTION_STRING"]
    assert find_namespace(None, nowhere, both).host.startswith("general.")


def test_without_any_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"start one with 'bendybus serve', or pass --connection-string"):
        find_namespace(None, tmp_path, {})


@pytest.mark.parametrize(
    ("option", "environment", "told"),
    [
        ("secret", {}, "--connection-string: The connection string has a part without"),
        (None, {"SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://h/;SharedAccessKey=secret"}, "SERVICEBUS_"),
    ],
)
def test_a_bad_string_is_refused_with_its_source_and_no_secret(
    option: str | None, environment: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        find_namespace(option, Path("/nowhere"), environment)
    assert "secret" not in str(error.value)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without servers, in a folder without one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return tmp_path


def serve(data: Path) -> Path:
    data.mkdir(parents=True)
    announce(data, "127.0.0.1", 5672, sas_key=None, operator_key="op")
    return data


def test_the_one_server_that_runs_is_found_from_any_folder(elsewhere: Path) -> None:
    data = serve(elsewhere / "there" / "data")
    assert find_folder(None) == data
    withdraw(data)
    assert find_folder(None) == Path(".data")


def test_the_server_of_this_folder_comes_before_others(elsewhere: Path) -> None:
    serve(elsewhere / "there")
    serve(Path(".data"))
    assert find_folder(None) == Path(".data")


def test_of_several_servers_one_has_to_be_named(elsewhere: Path) -> None:
    first, second = serve(elsewhere / "a"), serve(elsewhere / "b")
    with pytest.raises(ConfigError, match=f"--data: '{first}', '{second}'"):
        find_folder(None)
    assert find_folder(second) == second


def test_a_folder_that_was_removed_is_forgotten(elsewhere: Path) -> None:
    data = serve(elsewhere / "gone")
    (data / "server.json").unlink()
    data.rmdir()
    assert find_folder(None) == Path(".data")
    assert not list((elsewhere / "state" / "bendybus" / "servers").iterdir())
