"""The log: no line that a peer could forge, and no more lines than an operator would read."""

from __future__ import annotations

import io
import logging

import pytest

from bendybus.server.logs import INTERVAL_S, LINES_MAX, ServerLog


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(written: io.StringIO, clock: Clock):
    logger = logging.Logger("bendybus.test")
    logger.addHandler(ServerLog(written, clock))
    yield logger
    logger.handlers[0].close()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("a\r\nb", r"a\r\nb"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\x00\x7f\x9bb", r"a\x00\x7f\x9bb"),
        ("a\u2028b\u202ec\u2066d", r"a\u2028b\u202ec\u2066d"),
        ("Größe 🦜", "Größe 🦜"),
    ],
)
def test_control_characters_of_a_peer_are_written_as_escapes(log, written, name, shown) -> None:
    log.info("link '%s' refused", name)
    (line,) = written.getvalue().splitlines()
    assert line.endswith(f"INFO bendybus.test: link '{shown}' refused")


def test_no_line_of_an_exception_can_pass_for_a_line_of_the_log(log, written) -> None:
    forged = "2026-01-01 00:00:00,000 ERROR bendybus.auth: everybody is let in"
    try:
        raise ValueError(f"\x1b[31mred\n{forged}")
    except ValueError:
        log.exception("it failed: %s", forged)
    first, *others = written.getvalue().splitlines()
    assert first.endswith(f"ERROR bendybus.test: it failed: {forged}")
    assert others and all(line.startswith("  | ") for line in others)
    assert "\x1b" not in written.getvalue()


def test_lines_of_a_kind_are_counted_once_there_are_many(log, written, clock) -> None:
    for number in range(1000):
        log.info("link %d refused", number)
    log.info("another kind")
    assert len(written.getvalue().splitlines()) == LINES_MAX + 1
    clock.now += INTERVAL_S
    log.info("link %d refused", 1000)
    *_, summary, last = written.getvalue().splitlines()
    assert summary.endswith(f"... and {1000 - LINES_MAX} more like it; the last: link 999 refused")
    assert last.endswith("link 1000 refused")


def test_what_was_counted_is_told_when_the_log_ends(log, written) -> None:
    for _ in range(LINES_MAX + 1500):
        log.warning("again")
    log.handlers[0].close()
    assert written.getvalue().endswith("... and 1,500 more like it; the last: again\n")


def test_what_was_counted_is_told_by_itself_when_nothing_more_is_logged(log, written, clock) -> None:
    for _ in range(LINES_MAX + 5):
        log.info("again")
    (handler,) = log.handlers
    timer = handler._timer
    assert timer is not None and timer.daemon
    timer.function()
    assert "... and 5 more like it" in written.getvalue()
    timer.cancel()


def test_errors_are_never_left_out(log, written) -> None:
    for number in range(5 * LINES_MAX):
        log.error("store %d is away", number)
    assert len(written.getvalue().splitlines()) == 5 * LINES_MAX
