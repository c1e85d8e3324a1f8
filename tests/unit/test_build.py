"""Whether this Bendybus is compiled, and what pyproject.toml says about the modules that are."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from bendybus.build import is_compiled

ROOT = Path(__file__).parents[2]
HOOKS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "hooks"
]
MODULES = [each.removeprefix("/") for each in HOOKS["mypyc"]["include"]]


@pytest.mark.parametrize("path", MODULES)
def test_all_modules_of_the_list_are_compiled_or_none(path: str) -> None:
    assert (ROOT / path).exists()
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    found = import_module(module).__file__
    assert found is not None
    assert found.endswith(".py") is not is_compiled()
