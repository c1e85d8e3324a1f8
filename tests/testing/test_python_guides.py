"""The guides to testing in Python: their tests pass as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.test_plugin import run

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def printed(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)


def test_the_test_of_infrastructure_passes_as_it_is_printed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("\n".join(printed("infrastructure.md")))
    run(pytester, "-W", "error").assert_outcomes(passed=1)


def test_the_test_with_an_administration_client_passes_as_it_is_printed(pytester: pytest.Pytester) -> None:
    (code,) = (code for code in printed("testing.md") if "ServiceBusAdministrationClient" in code)
    pytester.makepyfile(code)
    run(pytester, "-W", "error").assert_outcomes(passed=1)
