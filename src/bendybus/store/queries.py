"""SQL by name: the statements that read and write messages and entities are in .sql files.

Each has a name and a description there. Pragmas, transactions and checks of a file or schema are in the
modules that open it.

    -- name: load_page
    -- One page of a partition's messages.
    SELECT ...

A statement ends at the next name, so it may contain semicolons (triggers do).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

__all__ = ["load_queries", "load_script"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_script(package: str, file: str) -> str:
    """The text of a .sql file inside a package."""
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")


def load_queries(package: str, file: str) -> Mapping[str, str]:
    """The named statements of a .sql file. A duplicate name is a mistake in that file."""
    # `split` with a group returns [preamble, name, text, name, text, ...].
    _, *parts = _NAME.split(load_script(package, file))
    names, texts = parts[::2], parts[1::2]
    assert len(set(names)) == len(names), f"{package}/{file} names a query twice"
    return dict(zip(names, (text.strip() for text in texts), strict=True))
