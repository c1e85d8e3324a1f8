"""The list of the servers that a user runs."""

from __future__ import annotations

from pathlib import Path

from bendybus.server.running_servers import add_running, remove_running, running_folders


def test_a_server_is_in_the_list_of_its_user_until_it_stops(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    data = tmp_path / "data"
    data.mkdir()
    assert running_folders(environment) == []
    add_running(data, environment)
    add_running(data, environment)
    assert running_folders(environment) == [data]
    remove_running(data, environment)
    assert running_folders(environment) == []


def test_a_user_without_a_place_for_the_list_can_run_servers(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    add_running(tmp_path, environment)
    assert running_folders(environment) == []
    remove_running(tmp_path, environment)
