"""Whether this Bendybus is compiled, and what pyproject.toml says about the modules that are."""

from __future__ import annotations

import tomllib
from abc import ABCMeta
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


@pytest.mark.parametrize("path", MODULES)
def test_no_compiled_class_is_an_abc(path: str) -> None:
    """Compiled subclasses of an ABC share its cache, so `isinstance` would say of all what it says of one."""
    module = import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    own = [each for each in classes if each.__module__ == module.__name__]
    protocols = [each for each in own if getattr(each, "_is_protocol", False)]
    assert [each for each in own if isinstance(each, ABCMeta) and each not in protocols] == []
