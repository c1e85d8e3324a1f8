"""The server's log: one line per event, whatever a peer puts into a name, and however often.

Names, addresses and errors in log lines come from untrusted peers. Control characters are written as
escapes, so that a peer cannot forge a line or send a command to a terminal. A kind of line that repeats is
written a few times and then counted, so that a peer cannot fill the disk.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

__all__ = ["LineFormatter", "ServerLog", "start_log"]

LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# Lines of one kind that are written in an interval. Errors are always written: peers cannot cause them.
LINES_MAX: Final = 20
INTERVAL_S: Final = 10.0

# Before each line of a traceback, so that none of them can pass for an entry of the log.
CONTINUATION: Final = "  | "

# Control characters of ASCII and Latin-1 (newlines, escapes), separators of lines, and marks that
# turn the direction of writing. Terminals and viewers act on them instead of showing them.
_DANGEROUS: Final = (
    *range(32),
    *range(127, 160),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPES: Final = {code: ascii(chr(code))[1:-1] for code in _DANGEROUS}


def escaped(text: str) -> str:
    """The text on one line, with control characters escaped."""
    return text if text.isprintable() else text.translate(_ESCAPES)


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        # Some libraries end their messages with a newline.
        record.message = escaped(record.message.rstrip("\n"))
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's own name
        return _continued(super().formatException(ei))  # type: ignore[arg-type]  # typeshed keeps its name to itself

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's own name
        return _continued(super().formatStack(stack_info))


def _continued(text: str) -> str:
    return "\n".join(CONTINUATION + escaped(line) for line in text.split("\n"))


@dataclass(slots=True)
class _Kind:
    """The lines of one kind in this interval."""

    count: int = 0
    last: logging.LogRecord | None = None
    """The last one that was not written."""


class ServerLog(logging.StreamHandler[TextIO]):
    """Writes the log, and counts what repeats. A kind is a logger and a message without its arguments."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self.setFormatter(LineFormatter())
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._interval_end = clock() + INTERVAL_S
        self._timer: threading.Timer | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Called for every record, also from the threads of stores."""
        with self._guard():
            if self._clock() >= self._interval_end:
                self._end_interval()
            return super().handle(record) if self._is_written(record) else False

    def close(self) -> None:
        with self._guard():
            self._end_interval()
        super().close()

    def _guard(self) -> threading.RLock:
        # Made by `createLock`, and None only for handlers that make none.
        assert self.lock is not None
        return self.lock

    def _is_written(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        kind = self._kinds.setdefault((record.name, str(record.msg)), _Kind())
        kind.count += 1
        if kind.count <= LINES_MAX:
            return True
        kind.last = record
        if self._timer is None:
            self._timer = threading.Timer(max(0.0, self._interval_end - self._clock()), self._time_is_up)
            self._timer.daemon = True
            self._timer.start()
        return False

    def _time_is_up(self) -> None:
        with self._guard():
            self._end_interval()

    def _end_interval(self) -> None:
        """Write how many lines were omitted, and start counting again."""
        kinds, self._kinds = self._kinds, {}
        self._interval_end = self._clock() + INTERVAL_S
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for kind in kinds.values():
            if kind.last is not None:
                self.emit(_summary(kind.last, kind.count - LINES_MAX))


def _summary(last: logging.LogRecord, count: int) -> logging.LogRecord:
    text = "... and %s more like it; the last: %s"
    return logging.LogRecord(last.name, last.levelno, "", 0, text, (f"{count:,}", last.getMessage()), None)


def start_log(level: str) -> None:
    """Log to standard error, from this level on."""
    logging.basicConfig(level=level.upper(), handlers=[ServerLog(sys.stderr)])
