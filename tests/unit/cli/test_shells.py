"""Shell completion is shown and installed for the shell that is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bendybus.cli.main import app
from bendybus.cli.shells import SHELLS

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_shown_for_the_shell_that_is_named(shell: str) -> None:
    shown = runner.invoke(app, ["--show-completion", shell]).stdout
    assert f"_BENDYBUS_COMPLETE={shell}_complete" in shown


@pytest.mark.parametrize("shell", SHELLS)
def test_installing_twice_leaves_one_line_in_the_start_file(shell: str, home: Path) -> None:
    start_file = SHELLS[shell].start_file
    if start_file is not None:
        (home / start_file).write_text("alias ll='ls -l'")
    for _ in range(2):
        assert runner.invoke(app, ["--install-completion", shell]).exit_code == 0
    assert "_BENDYBUS_COMPLETE" in (home / SHELLS[shell].script).read_text()
    if start_file is not None:
        assert (home / start_file).read_text() == f"alias ll='ls -l'\n{SHELLS[shell].line}\n"


def test_without_a_name_the_users_own_shell_is_meant(home: Path) -> None:
    assert runner.invoke(app, ["--install-completion"]).exit_code == 0
    assert (home / SHELLS["zsh"].script).exists()


def test_a_shell_that_is_not_known_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/tcsh")
    result = runner.invoke(app, ["--show-completion"])
    assert result.exit_code == 2
    assert "name one of bash, zsh, fish" in result.stderr
