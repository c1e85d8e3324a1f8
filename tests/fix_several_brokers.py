"""Tests that show nothing with several brokers (set_ups.py) are left out, and counted by reason.

    @pytest.mark.one_broker("files")

says why a test needs a server with one broker; the reasons are in `set_ups.ONE_BROKER`. A test that fails
because the server refuses what several brokers do not offer is counted under that refusal
(`set_ups.REFUSED`). The summary at the end lists how many tests were left out, for each reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, Final, NoReturn

import pytest

from set_ups import BROKERS, CLUSTER, ONE_BROKER, is_refused, several_brokers

__all__ = ["not_with_several"]

PREFIX: Final = "not with several brokers: "


def not_with_several(what: str) -> NoReturn:
    pytest.skip(f"{PREFIX}{what}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "one_broker(reason): shows nothing with several brokers; see fix_several_brokers.py"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("one_broker"):
            (reason,) = mark.args
            what = ONE_BROKER[reason]
            if several_brokers():
                item.add_marker(pytest.mark.skip(f"{PREFIX}{what}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if several_brokers() and report.outcome == "failed" and call.excinfo is not None:
        what = is_refused(str(report.longrepr))
        if what is not None:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {PREFIX}{what}")
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not several_brokers():
        return
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _, found, what = reason.partition(PREFIX)
        if found:
            reasons[what] += 1
    set_up = f"a cluster of {CLUSTER} brokers" if CLUSTER else " ".join(("serve", *BROKERS))
    terminalreporter.section(f"against {set_up}, {reasons.total()} tests were left out")
    for what, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5}  {what}")
