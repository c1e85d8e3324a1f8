"""The guide to testing infrastructure code: its code runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.test_plugin import run

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "infrastructure.md"


def test_the_guides_test_passes_as_it_is_printed(pytester: pytest.Pytester) -> None:
    printed = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    pytester.makepyfile("\n".join(printed))
    run(pytester, "-W", "error").assert_outcomes(passed=1)
