"""Nothing a user can meet goes undocumented: options, metrics, errors, properties."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import typer

from bendybus import errors
from bendybus.cli.main import app
from bendybus.cli.serve import serve
from bendybus.gateway.management.extensions import OPERATIONS as EXTENSIONS
from bendybus.server.metrics import FAMILIES
from pyspark_servicebus import options, schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

ERRORS = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.BrokerError)
]
# The branches of the tree; nobody meets one of these as such.
BRANCHES = {errors.BrokerError, errors.RequestError, errors.Unavailable, errors.SetupError}


@pytest.mark.parametrize("option", inspect.signature(serve).parameters)
def test_every_option_of_serve_is_in_the_guide(option):
    assert f"--{option.replace('_', '-')}" in (DOCS / "guides" / "running.md").read_text()


def commands_of(group, path="bendybus"):
    """Every command with the words that call it: `bendybus queue create`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_reference_with_its_options(command):
    page = (DOCS / "reference" / "cli.md").read_text()
    assert re.search(rf"^### `{command}( [A-Z]+)*`$", page, re.MULTILINE)
    if command == "bendybus serve":
        return
    for parameter in COMMANDS[command].params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert f"`{option}" in page, option


def test_the_reference_names_no_command_that_is_not_there():
    page = (DOCS / "reference" / "cli.md").read_text()
    headings = re.findall(r"^### `(bendybus [a-z -]+?)(?: [A-Z]+)*`$", page, re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


@pytest.mark.parametrize(
    "kind", [kind for kind in ERRORS if kind not in BRANCHES], ids=lambda kind: kind.__name__
)
def test_every_error_is_in_the_reference_with_its_condition(kind):
    row = re.search(
        rf"^\| `{kind.__name__}` .*$", (DOCS / "reference" / "errors.md").read_text(), re.MULTILINE
    )
    assert row, kind.__name__
    if not issubclass(kind, errors.SetupError | errors.ProtocolError):
        assert f"`{kind.condition}`" in row.group()


def test_every_metric_is_in_the_reference():
    page = (DOCS / "reference" / "metrics.md").read_text()
    for family in FAMILIES:
        assert f"| `{family.name}` | {family.kind} |" in page
    assert len(FAMILIES) == len(re.findall(r"^\| `bendybus_", page, re.MULTILINE))


@pytest.mark.parametrize("option", sorted({*options.COMMON, *options.READ, *options.WRITE}))
def test_every_option_for_spark_is_in_the_reference(option):
    assert re.search(rf"^\|.*`{option}`.*\|", (DOCS / "reference" / "spark.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("column", schema.COLUMNS)
def test_every_column_for_spark_is_in_the_reference(column):
    assert re.search(rf"^\|.*`{column}`.*\|", (DOCS / "reference" / "spark.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("operation", EXTENSIONS)
def test_every_extension_has_a_heading(operation):
    assert f"## `{operation}`" in (DOCS / "reference" / "extensions.md").read_text()


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md")), ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
