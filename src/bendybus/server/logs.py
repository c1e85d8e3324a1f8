"""The server's log: one line per event, whatever a peer puts into a name, and however often.

Names, addresses and errors in log lines come from untrusted peers. Control characters are written as
escapes, so that a peer cannot forge a line or send a command to a terminal. A kind of line that repeats is
written a few times and then counted, so that a peer cannot fill the disk. Records of the audit log (audit.py)
are a part of the log, or have a file of their own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final, TextIO

from bendybus import audit
from bendybus.errors import ConfigError

__all__ = ["AuditFile", "JsonFormatter", "LineFormatter", "ServerLog", "start_log"]

logger = logging.getLogger(__name__)

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


class JsonFormatter(logging.Formatter):
    """One JSON object in one line. Everything but ASCII is escaped, so no value can end the line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
        }
        event = getattr(record, "audit", None)
        values |= {"message": record.getMessage().rstrip("\n")} if event is None else event
        if (repeated := getattr(record, "repeated", 0)) > 0:
            values["repeated"] = repeated
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            values["stack"] = record.stack_info
        return json.dumps(values)


@dataclass(slots=True)
class _Kind:
    """The lines of one kind in this interval."""

    count: int = 0
    last: logging.LogRecord | None = None
    """The last one that was not written."""


class _Counting(logging.Handler):
    """Counts what repeats instead of writing it. A kind is a logger and a message without its arguments.

    An event of the audit log says of which kind it is; one of no kind is always written, since
    it says what was changed.
    """

    def __init__(self, *target: Any, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        super().__init__(*target, **options)
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
        name = getattr(record, "kind", str(record.msg))
        if record.levelno >= logging.ERROR or name is None:
            return True
        kind = self._kinds.setdefault((record.name, name), _Kind())
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
    event = getattr(last, "audit", None)
    text = "%s repeated=%s" if event is not None else "... and %s more like it; the last: %s"
    arguments = (last.getMessage(), count) if event is not None else (f"{count:,}", last.getMessage())
    summary = logging.LogRecord(last.name, last.levelno, "", 0, text, arguments, None)
    summary.__dict__.update(audit=event, repeated=count)
    return summary


class ServerLog(_Counting, logging.StreamHandler[TextIO]):
    """Writes the log to a stream."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        formatter: logging.Formatter | None = None,
    ) -> None:
        super().__init__(stream, clock=clock)
        self.setFormatter(formatter or LineFormatter())


class AuditFile(_Counting, WatchedFileHandler):
    """Writes the audit log to a separate file. A file that was renamed or removed is opened again."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, encoding="utf-8", clock=clock)
        self.setFormatter(JsonFormatter())

    def _open(self) -> TextIOWrapper:
        # Appending, so that the file may be truncated meanwhile; and for the server's user alone.
        opened = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(opened, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        logger.warning("the audit log %s cannot be written: %s", self.baseFilename, sys.exception())


def start_log(level: str, log_format: str = "text", audit_log: Path | None = None) -> None:
    """Log to standard error, from this level on. Audit events are written whatever the level is."""
    formatter = JsonFormatter() if log_format == "json" else LineFormatter()
    logging.basicConfig(level=level.upper(), handlers=[ServerLog(sys.stderr, formatter=formatter)])
    logging.captureWarnings(True)
    events = logging.getLogger(audit.__name__)
    events.setLevel(logging.INFO)
    if audit_log is None:
        return
    try:
        events.addHandler(AuditFile(audit_log))
    except OSError as error:
        raise ConfigError(f"--audit-log {audit_log}: {error.strerror or error}") from error
    events.propagate = False
