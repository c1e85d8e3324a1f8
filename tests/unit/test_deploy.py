"""The files of deploy/ use what `bendybus serve` has. Their own tools check their form: `make style`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bendybus.cli.serve import serve

DEPLOY = Path(__file__).parents[2] / "deploy"
OPTIONS = {option for parameter in serve.params for option in parameter.opts}


def service_options(text: str) -> set[str]:
    """The options of the lines that start the server, whether in one line or one in each."""
    start = re.search(r"^ExecStart=(.*)$|^CMD (.*serve.*)$", text, re.MULTILINE)
    lines = start[0] if start else "\n".join(re.findall(r"^ *- \"?(--.*)$", text, re.MULTILINE))
    return set(re.findall(r"--[a-z][a-z-]+", lines))


@pytest.mark.parametrize(
    "name", ["Dockerfile", "compose.yaml", "bendybus.service", "helm/bendybus/templates/statefulset.yaml"]
)
def test_the_server_has_the_options_that_it_is_started_with(name):
    used = service_options((DEPLOY / name).read_text())
    assert "--data" in used
    assert used <= OPTIONS


def test_the_chart_is_of_this_version():
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert version is not None
    assert f"appVersion: {version[1]}\n" in (DEPLOY / "helm" / "bendybus" / "Chart.yaml").read_text()
