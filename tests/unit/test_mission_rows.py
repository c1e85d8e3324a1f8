"""The contract and the tests agree: what docs/reference/contract.md claims, tests that pytest collects show.

No source is read here: pytest is asked which tests there are, which rows they claim, and on how many
partitions. fix_rows.py makes sure that each of them has entities with so many.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from fix_rows import ROWS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "contract.md"

LINE: Final = re.compile(r"^\| ([A-Z]-\d\d) \| ([^|]+) \| ([^|]+) \|([^|]*)\|$", re.MULTILINE)
NOT_CLAIMED: Final = "not claimed"

# On how many partitions a row must be shown, where that is not each of 16, 2 and 1.
KINDS: Final[Mapping[str, set[int]]] = {
    "P-08": {16, 1},  # Standard
    "P-09": {4, 2, 1},  # Premium
    "P-19": {16, 2},  # about partitioned entities alone
    "P-20": {16, 2},
}
# About a namespace, a server or a pipeline.
OF_NAMESPACE: Final = ("P-06", "P-10", "P-11", "P-36", "S-01", "S-03", "S-05", "S-06", "N-", "B-09", "B-10")

Shown: TypeAlias = Mapping[str, Mapping[int, list[str]]]


def kinds_of(row: str) -> set[int]:
    return set() if row.startswith(OF_NAMESPACE) else KINDS.get(row, {16, 2, 1})


def contract() -> dict[str, tuple[str, str]]:
    """Row -> what the page says that it is shown on, and what is missing."""
    return {row: (shown, missing.strip()) for row, _, shown, missing in LINE.findall(PAGE.read_text())}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Row -> numbers of partitions -> the tests that claim it on them; under 0 the tests without a kind."""
    file = tmp_path_factory.mktemp("claims") / "claims.json"
    collect = ("pytest", "--collect-only", "-q", "-p", "no:cacheprovider", f"--claims={file}")
    done = subprocess.run(
        [sys.executable, "-m", *collect],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for claim in json.loads(file.read_text()):
        for row in claim["rows"]:
            for kind in claim["kinds"] or [0]:
                rows[row][kind].append(claim["test"])
    return rows


def test_the_contract_has_every_row_in_its_order() -> None:
    assert list(contract()) == list(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_claimed_on_each_kind_that_it_is_about_or_not_at_all(row: str) -> None:
    said, missing = contract()[row]
    if said == NOT_CLAIMED:
        assert missing, f"{row} is not claimed: the page does not say what is missing"
    else:
        kinds = kinds_of(row)
        assert said == (", ".join(map(str, sorted(kinds, reverse=True))) or "namespace")


@pytest.mark.parametrize("row", ROWS)
def test_what_the_contract_claims_is_shown_by_tests_and_nothing_else_is(row: str, shown: Shown) -> None:
    tests = shown.get(row, {})
    if contract()[row][0] == NOT_CLAIMED:
        assert not tests, f"{row} is not claimed, but these tests show it: {tests}"
        return
    assert tests, f"no test claims {row}"
    missing = kinds_of(row) - set(tests)
    assert not missing, f"no test shows {row} on {sorted(missing)} partitions"


# -- what a claim is ----------------------------------------------------------------------

SERVER: Final = """
import pytest
from fix_rows import on_kind, use_entity
"""


def outcome(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(SERVER + test)
    pytester.makeconftest("pytest_plugins = ['fix_rows', 'fix_server']")
    return pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", *options)


def claims(pytester: pytest.Pytester, test: str) -> list[dict[str, object]]:
    file = pytester.path / "claims.json"
    outcome(pytester, test, "--collect-only", f"--claims={file}")
    found: list[dict[str, object]] = json.loads(file.read_text())
    return found


@pytest.fixture(autouse=True)
def _fixtures_of_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))


def test_a_comment_and_the_name_of_an_argument_claim_nothing(pytester: pytest.Pytester) -> None:
    assert not claims(pytester, "def test_a(request):  # P-12 16 2 1\n    kind = 16\n")


def test_a_test_that_may_not_run_claims_nothing(pytester: pytest.Pytester) -> None:
    marks = "@pytest.mark.skip", "@pytest.mark.xfail", "@pytest.mark.skipif(False, reason='x')"
    tests = [f"@pytest.mark.row('P-12')\n{mark}\ndef test_{n}(): ...\n" for n, mark in enumerate(marks)]
    assert not claims(pytester, "".join(tests))


def test_a_claim_has_the_kinds_of_its_parameters(pytester: pytest.Pytester) -> None:
    test = """
@pytest.mark.row("P-12", "P-31")
@pytest.mark.parametrize("kind", [on_kind(16, "parts"), on_kind(1, "plain")])
def test_a(kind): ...
"""
    found = [(each["rows"], each["kinds"]) for each in claims(pytester, test)]
    assert found == [(["P-12", "P-31"], [16]), (["P-12", "P-31"], [1])]


def test_a_row_that_does_not_exist_cannot_be_claimed(pytester: pytest.Pytester) -> None:
    result = outcome(pytester, "@pytest.mark.row('P-99')\ndef test_a(): ...\n")
    assert result.ret != 0
    assert "there are no such rows" in "\n".join(result.outlines + result.errlines)


def test_a_test_that_claims_a_kind_and_has_no_such_entity_fails(pytester: pytest.Pytester) -> None:
    test = """
@pytest.mark.row("P-12")
@pytest.mark.kinds(16)
def test_none(): ...


@pytest.mark.row("P-12")
@pytest.mark.kinds(16)
@pytest.mark.parametrize("partitioned", [True, False])
def test_some(start_server, partitioned):
    server = start_server({"q": {"EnablePartitioning": partitioned}, "other": {"EnablePartitioning": True}})
    use_entity(server, "q")
"""
    result = outcome(pytester, test)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*claims its rows on [[]16[]] partitions and had no such entity*"])
