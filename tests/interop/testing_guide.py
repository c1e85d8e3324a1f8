"""The fixtures of docs/guides/testing.md as files, so that each suite runs them as they are printed.

Below the heading of a language, a block of code belongs to the file that the line before it names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interop.other_languages import BENDYBUS

__all__ = ["PAGE", "files", "on_the_path", "write"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"

_BLOCK: Final = re.compile(r"`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
# The queue that the tests of the page use.
_CONFIG: Final = '{"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "orders"}]}]}}'


def files(heading: str) -> dict[str, str]:
    """The files below this heading: the fixture, and a test that uses it."""
    _, _, rest = PAGE.read_text().partition(f"\n### {heading}\n")
    section, _, _ = rest.partition("\n### ")
    return {block["name"]: block["code"] for block in _BLOCK.finditer(section)}


def write(heading: str, folder: Path) -> list[Path]:
    """Write the files and a Config.json beside them; where the files are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Config.json").write_text(_CONFIG)
    written = []
    for name, code in files(heading).items():
        (folder / name).write_text(code)
        written.append(folder / name)
    return written


def on_the_path() -> Mapping[str, str]:
    """The fixtures start `bendybus` by its name."""
    return {"PATH": f"{Path(BENDYBUS).parent}{os.pathsep}{os.environ['PATH']}"}
