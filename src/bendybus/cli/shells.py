"""Shell completion: the script for bash, zsh or fish, shown or installed.

The scripts are click's; they call `bendybus` again when Tab is pressed. Which entities the
server then offers: completion.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import click
from click.shell_completion import get_completion_class

__all__ = ["SHELLS", "install_completion", "show_completion"]


class Shell(NamedTuple):
    script: str
    """Where the script goes, below the home folder."""
    start_file: str | None
    """The file that has to load it; None where the shell finds it by itself."""
    line: str
    """What the start file has to say."""


SHELLS: Final[Mapping[str, Shell]] = {
    "bash": Shell(".bash_completions/bendybus.sh", ".bashrc", "source ~/.bash_completions/bendybus.sh"),
    "zsh": Shell(".zfunc/_bendybus", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": Shell(".config/fish/completions/bendybus.fish", None, ""),
}


def show_completion(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
    """The callback of --show-completion."""
    if given is None or context.resilient_parsing:
        return
    click.echo(_script(_shell(given)))
    context.exit()


def install_completion(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
    """The callback of --install-completion. Installing again replaces the script."""
    if given is None or context.resilient_parsing:
        return
    name = _shell(given)
    shell, home = SHELLS[name], Path.home()
    try:
        script = home / shell.script
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(_script(name) + "\n")
        if shell.start_file is not None:
            _ensure_line(home / shell.start_file, shell.line)
    except OSError as error:
        raise click.ClickException(f"completion cannot be installed: {error}") from None
    click.echo(f"Completion for {name} is installed in {script}. It works in new shells.")
    context.exit()


def _shell(given: str) -> str:
    name = given or PurePath(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"Your shell is not known: name one of {', '.join(SHELLS)}.")
    return name


def _script(name: str) -> str:
    kind = get_completion_class(name)
    assert kind is not None, f"click has completion for {name}"
    return kind(click.Command("bendybus"), {}, "bendybus", "_BENDYBUS_COMPLETE").source()


def _ensure_line(file: Path, line: str) -> None:
    text = file.read_text() if file.exists() else ""
    if line not in text.splitlines():
        separator = "" if not text or text.endswith("\n") else "\n"
        file.write_text(f"{text}{separator}{line}\n")
