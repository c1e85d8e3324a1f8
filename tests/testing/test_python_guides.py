"""The first steps of a new user: the programs and tests of the README and the guides work as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bendybus.testing import Namespace, Server
from testing.test_plugin import run

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


def printed(guide: str, root: Path = GUIDES) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (root / guide).read_text(), re.DOTALL)


def output_of(code: str, namespace: Namespace, tmp_path: Path) -> str:
    """What the program prints with the connection string that its reader puts into it."""
    assert code.count('"Endpoint=sb://..."') == 1
    program = tmp_path / "hello.py"
    program.write_text(code.replace("Endpoint=sb://...", namespace.connection_string))
    command = [sys.executable, "-W", "error", str(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_program_of_the_readme_sends_and_receives_as_it_is_printed(tmp_path: Path) -> None:
    (code,) = (code for code in printed("README.md", ROOT) if "get_queue_receiver" in code)
    with Server() as server, server.namespace(config=str(ROOT / "examples" / "Config.json")) as namespace:
        assert output_of(code.replace("max_wait_time=5", "max_wait_time=1"), namespace, tmp_path) == "hello\n"
        assert namespace.messages("orders") == []


def test_the_administration_client_of_the_guide_works_as_it_is_printed(tmp_path: Path) -> None:
    (code,) = (code for code in printed("running.md") if "ServiceBusAdministrationClient" in code)
    with Server() as server, server.namespace(config=str(ROOT / "examples" / "Config.json")) as namespace:
        told = output_of(code.replace(".data/tls/server.crt", str(server.certificate)), namespace, tmp_path)
        assert told == "['invoices', 'orders', 'plain']\n"


def test_the_first_test_of_the_guide_passes_as_it_is_printed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(printed("testing.md")[0])
    run(pytester, "-W", "error").assert_outcomes(passed=1)


def test_the_test_of_infrastructure_passes_as_it_is_printed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("\n".join(printed("infrastructure.md")))
    run(pytester, "-W", "error").assert_outcomes(passed=1)


def test_the_test_with_an_administration_client_passes_as_it_is_printed(pytester: pytest.Pytester) -> None:
    (code,) = (code for code in printed("testing.md") if "ServiceBusAdministrationClient" in code)
    pytester.makepyfile(code)
    run(pytester, "-W", "error").assert_outcomes(passed=1)
