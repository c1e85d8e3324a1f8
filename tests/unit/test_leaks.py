"""A test that leaves something open fails, and no other does: fix_leaks.py."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LEAKS = """
    import socket

    def test_leaves_a_socket_in_a_cycle():
        held = [socket.socket()]
        held.append(held)

    def test_leaves_nothing():
        socket.socket().close()
"""


def test_the_test_that_leaves_a_socket_open_is_blamed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    pytester.makepyfile(LEAKS)
    result = pytester.runpytest_subprocess("-p", "fix_leaks", "-W", "error", "-p", "no:bendybus")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leaves_a_socket_in_a_cycle*"])
