"""`bendybus rule`: the options make exactly one filter."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bendybus.cli.main import app


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "a rule has one filter"),
        ("--filter-sql 1=1 --filter-true", "a rule has one filter"),
        ("--filter-false --subject s", "a rule has one filter"),
        ("--property =x", "--property is '=x'"),
    ],
)
def test_a_rule_has_exactly_one_filter(options: str, told: str) -> None:
    result = CliRunner().invoke(app, ["rule", "create", "t", "s", "r", *options.split()])
    assert result.exit_code == 2
    assert told in result.stderr
