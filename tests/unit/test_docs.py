"""Nothing a user can meet goes undocumented or untested: commands, options, metrics, errors, properties."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import click
import pytest

from bendybus import errors
from bendybus.cli.lazy import Deferred
from bendybus.cli.main import app
from bendybus.cli.serve import serve
from bendybus.domain.durations import short_duration
from bendybus.domain.properties import ALL, QUEUE, SUBSCRIPTION, TOPIC, ValueType
from bendybus.gateway.management import OPERATIONS
from bendybus.server.metric_families import FAMILIES
from pyspark_servicebus import options, schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

ERRORS = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.BrokerError)
]
TEST = ast.FunctionDef | ast.AsyncFunctionDef
# The branches of the tree; nobody meets one of these as such.
BRANCHES = {errors.BrokerError, errors.RequestError, errors.Unavailable, errors.SetupError}


@pytest.mark.parametrize("option", [option for parameter in serve.params for option in parameter.opts])
def test_every_option_of_serve_is_in_the_guide(option):
    assert option in (DOCS / "guides" / "running.md").read_text()


def commands_of(group, path="bendybus"):
    """Every command with the words that call it: `bendybus queue create`."""
    for name, command in group.commands.items():
        if isinstance(command, Deferred):
            command = command.load()
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands_of(app))


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


KINDS = {"queue": QUEUE, "topic": TOPIC, "subscription": SUBSCRIPTION}


def property_row(row):
    """A property as a line of the reference page."""
    if row.type in (ValueType.DURATION, ValueType.DURATION_OR_UNLIMITED):
        default = short_duration(row.default)
    elif isinstance(row.default, bool):
        default = str(row.default).lower()
    else:
        default = "none" if row.default is None else str(row.default)
    kinds = ", ".join(kind for kind, properties in KINDS.items() if row in properties)
    limits = (
        row.limits or {ValueType.BOOLEAN: "true or false", ValueType.ENTITY: "a queue or a topic"}[row.type]
    )
    changeable = "no" if row.fixed else "yes"
    return (
        f"| `{row.name}` | {row.help} | {kinds} | {default} | {limits} | {changeable} "
        f"| {f'`--{row.option}`' if row.option else 'none'} | `{row.field}` |"
    )


def test_the_page_of_properties_is_the_table():
    lines = (DOCS / "reference" / "properties.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("| `")] == [property_row(row) for row in ALL]


def test_the_page_of_properties_names_those_that_config_json_does_not_have():
    page = (DOCS / "reference" / "properties.md").read_text()
    missing = " and ".join(f"`{row.name}`" for row in ALL if not row.in_config)
    assert f"`Config.json` has all of them except {missing}." in " ".join(page.split())


@pytest.mark.parametrize("row", [row for row in QUEUE if row.option], ids=lambda row: row.name)
def test_the_reference_of_the_command_line_says_what_help_says_about_a_property(row):
    parameter = next(each for each in COMMANDS["bendybus queue create"].params if each.name == row.field)
    written = f"`--{row.option}{' ' + row.metavar if row.metavar else ''}`"
    line = f"| {written} | {parameter.help} | {'no' if row.fixed else 'yes'} |"
    assert line in (DOCS / "reference" / "cli.md").read_text()


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


def test_no_error_is_in_the_reference_twice():
    page = (DOCS / "reference" / "errors.md").read_text()
    names = re.findall(r"^\| (`\w+`|`[^`]*`) \|", page, re.MULTILINE)
    assert len(names) == len(set(names))


def test_every_metric_is_in_the_reference():
    page = (DOCS / "reference" / "metrics.md").read_text()
    for family in FAMILIES:
        assert f"| `{family.name}` | {family.kind} |" in page
    assert len(FAMILIES) == len(re.findall(r"^\| `(?:bendybus|process)_", page, re.MULTILINE))


@pytest.mark.parametrize("option", sorted({*options.COMMON, *options.READ, *options.WRITE}))
def test_every_option_for_spark_is_in_the_reference(option):
    assert re.search(rf"^\|.*`{option}`.*\|", (DOCS / "reference" / "spark.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("column", schema.COLUMNS)
def test_every_column_for_spark_is_in_the_reference(column):
    assert re.search(rf"^\|.*`{column}`.*\|", (DOCS / "reference" / "spark.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name.startswith("bendybus:")])
def test_every_extension_has_a_heading(operation):
    assert f"## `{operation}`" in (DOCS / "reference" / "extensions.md").read_text()


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md")), ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


# -- what tests name ----------------------------------------------------------------------

TESTS = {page: page.read_text() for page in sorted((ROOT / "tests").rglob("*.py")) if page != Path(__file__)}
ALL_TESTS = "\n".join(TESTS.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_each_of_its_options_is_named_by_a_test(command):
    words = command.split()[1:]
    assert any(
        command in text or all(f'"{word}"' in text or f" {word} " in text for word in words)
        for page, text in TESTS.items()
        if page.parent.name in ("cli", "browser", "interop", "faults")
    )
    for parameter in COMMANDS[command].params:
        named = [option for option in (*parameter.opts, *parameter.secondary_opts) if option.startswith("--")]
        # Of `--raw/--no-raw`, the one that is not the default.
        assert not named or any(re.search(rf"{each}(?![\w-])", ALL_TESTS) for each in named), named


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_metric_is_named_by_a_test(family):
    assert family.name.removeprefix("bendybus_").removesuffix("_total") in ALL_TESTS


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_every_property_is_named_by_a_test(row):
    assert row.name in ALL_TESTS or row.field in ALL_TESTS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_of_management_is_named_by_a_test(operation):
    assert operation in ALL_TESTS or f'"{operation.removeprefix("bendybus:")}"' in ALL_TESTS


@pytest.mark.parametrize("option", sorted({*options.COMMON, *options.READ, *options.WRITE}))
def test_every_option_for_spark_is_named_by_a_test(option):
    assert option in ALL_TESTS


# -- what the page of features claims -----------------------------------------------------

FEATURES = (DOCS / "reference" / "features.md").read_text()
TEST_LINK = re.compile(r"\]\(\.\./\.\./(tests/[^)#]+)(?:#(\w+))?\)")


def feature_rows():
    """The table of features: what is claimed, and the cell with the tests."""
    table = FEATURES[FEATURES.index("| Feature |") : FEATURES.index("## Hardening")].splitlines()[2:]
    return [(cells[1].strip(), cells[5]) for line in table if len(cells := line.split("|")) > 5]


@pytest.mark.parametrize(("feature", "tests"), feature_rows(), ids=lambda text: text[:30])
def test_a_feature_has_tests_that_show_it(feature, tests):
    assert feature == "Needs" or TEST_LINK.search(tests), f"no test shows {feature}"


@pytest.mark.parametrize("file", sorted({file for file, _ in TEST_LINK.findall(FEATURES)}))
def test_the_tests_that_the_features_name_exist(file):
    path = ROOT / file
    assert path.exists()
    named = {name for other, name in TEST_LINK.findall(FEATURES) if other == file and name}
    if named:
        tree = ast.parse(path.read_text())
        assert named <= {node.name for node in tree.body if isinstance(node, TEST)}
