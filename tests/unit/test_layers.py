"""The tree is the architecture: each package imports only what stands below it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "bendybus"

# Package or module -> what it may import from us. A new one has to be entered here.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "build": set(),
    "names": set(),
    "audit": {"errors"},
    "session_ids": {"names"},
    "atom": {"names"},
    "amqp": {"errors"},
    "engine": {"amqp", "errors"},
    "domain": {"errors", "names", "session_ids"},
    "store": {"domain", "errors", "names"},
    "broker": {"audit", "domain", "store", "envelope", "errors", "names", "session_ids"},
    "cluster": {"audit", "domain", "store", "broker", "errors", "names", "session_ids"},
    "auth": {"audit", "errors", "names"},
    "envelope": {"amqp", "domain", "errors", "names"},
    "namespaces": {"auth", "broker", "domain", "store", "errors"},
    "gateway": {
        *("amqp", "engine", "domain", "broker", "auth", "envelope", "namespaces"),
        *("audit", "errors", "names", "session_ids"),
    },
    "telemetry": {"amqp", "domain", "envelope", "gateway", "errors", "names"},
    "http_bodies": {"errors"},
    "admin": {
        *("amqp", "audit", "atom", "domain", "store", "broker", "auth"),
        *("http_bodies", "namespaces", "errors", "names"),
    },
    "arm": {
        *("admin", "atom", "audit", "auth", "broker", "domain", "http_bodies", "namespaces"),
        *("errors", "names"),
    },
    "rest": {"amqp", "domain", "broker", "auth", "envelope", "http_bodies", "errors", "names"},
    "client": {"amqp", "engine", "auth", "errors", "session_ids"},
    "management": {"amqp", "atom", "domain", "auth", "errors", "names"},
    "operations": {"amqp", "client", "domain", "management", "errors", "names", "session_ids"},
    "server": {
        *("amqp", "engine", "domain", "store", "broker", "auth", "envelope", "namespaces"),
        *("cluster", "gateway", "telemetry", "admin", "arm", "rest", "atom", "audit", "http_bodies"),
        *("errors", "names"),
    },
    "testing": {
        *("amqp", "domain", "store", "broker", "auth", "envelope", "namespaces"),
        *("admin", "server", "errors", "names"),
    },
    "pytest_plugin": {"testing"},
    "cli": {
        *("build", "server", "management", "client", "operations", "auth", "amqp", "atom", "domain"),
        *("errors", "names"),
    },
}

# What the two pure columns may not touch: clocks, randomness, input and output.
IMPURE = {
    "asyncio",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
}
PURE = {"amqp", "engine", "domain"}

# The Spark connector meets the broker on the wire only: it stands on the two clients, and nothing
# of ours stands on it but the commands that run its pipelines.
SPARK = ROOT.parent / "pyspark_servicebus"
SPARK_MAY_IMPORT = {"amqp", "atom", "auth", "client", "errors", "management", "names", "session_ids"}
MAY_IMPORT_SPARK = {"cli/pipelines.py", "cli/pipeline_runs.py"}

# The portal is a client too: it reaches a server, this one or another, over the wire.
PORTAL = ROOT.parent / "bendybus_portal"
PORTAL_MAY_IMPORT = {
    *("amqp", "atom", "auth", "client", "domain", "errors", "management", "names", "operations"),
    "session_ids",
}
MAY_IMPORT_PORTAL = {"cli/portal.py"}

MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def layer_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; the full name says more"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def bendybus_packages(path: Path) -> set[str]:
    inside = {name.split(".")[1] for name in imports_of(path) if name.startswith("bendybus.")}
    return {name for name in inside if not name.startswith("__")}


def layers_imported(path: Path) -> set[str]:
    return bendybus_packages(path) - {layer_of(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_stands_below_it(path: Path) -> None:
    allowed = MAY_IMPORT.get(layer_of(path))
    assert allowed is not None, f"{layer_of(path)} is a new package: add it to this table"
    assert layers_imported(path) <= allowed


@pytest.mark.parametrize("path", sorted(SPARK.rglob("*.py")), ids=lambda path: str(path.relative_to(SPARK)))
def test_the_spark_connector_stands_on_the_clients(path: Path) -> None:
    assert bendybus_packages(path) <= SPARK_MAY_IMPORT


@pytest.mark.parametrize("path", sorted(PORTAL.rglob("*.py")), ids=lambda path: str(path.relative_to(PORTAL)))
def test_the_portal_stands_on_the_clients(path: Path) -> None:
    assert bendybus_packages(path) <= PORTAL_MAY_IMPORT
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_only_the_command_that_runs_the_portal_imports_it() -> None:
    importing = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if any(name.split(".")[0] == "bendybus_portal" for name in imports_of(path))
    }
    assert importing == MAY_IMPORT_PORTAL


def test_only_the_commands_that_run_pipelines_import_the_spark_connector() -> None:
    importing = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if any(name.split(".")[0] == "pyspark_servicebus" for name in imports_of(path))
    }
    assert importing == MAY_IMPORT_SPARK


def test_no_package_stands_on_itself() -> None:
    below: dict[str, set[str]] = {"pyspark_servicebus": set()}
    for path in MODULES:
        below.setdefault(layer_of(path), set()).update(layers_imported(path))
        if str(path.relative_to(ROOT)) in MAY_IMPORT_SPARK:
            below[layer_of(path)].add("pyspark_servicebus")
    for path in SPARK.rglob("*.py"):
        below["pyspark_servicebus"] |= bendybus_packages(path)
    # It raises CycleError, which names the packages.
    assert list(TopologicalSorter(below).static_order())


@pytest.mark.parametrize(
    "path", [path for path in MODULES if layer_of(path) in PURE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_pure_columns_stay_pure(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & IMPURE


def test_every_module_opens_with_its_one_rule() -> None:
    bare = [
        path
        for path in MODULES
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not bare
