"""Errors from Spark as errors of ours: the error inside, with its class and its text.

Errors of the data source are raised in other processes. Spark passes them on as texts with
tracebacks of two languages around them. The last of our errors in such a text is the cause.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from bendybus import errors
from bendybus.errors import ArgumentError, BrokerError, Unavailable

__all__ = ["spark_errors_told", "translated"]

_OURS: Final = re.compile(r"^(?:.*\s)?bendybus\.errors\.([A-Za-z]+): (.+)$", re.MULTILINE)
_LENGTH_MAX: Final = 400
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def translated(error: Exception) -> BrokerError:
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, BrokerError):
            told = kind(message.strip())
            # Some classes make a new text from their arguments. The text from the other process is better.
            told.args = (message.strip(),)
            return told
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    if type(error).__name__ in ("AnalysisException", "ParseException"):
        return ArgumentError(f"Spark refuses this: {first[:_LENGTH_MAX]}")
    return Unavailable(f"Spark has failed: {first[:_LENGTH_MAX]}")


@contextmanager
def spark_errors_told() -> Iterator[None]:
    try:
        with _unlogged():
            yield
    except (PySparkException, Py4JError) as error:
        raise translated(error) from error


@contextmanager
def _unlogged() -> Iterator[None]:
    """PySpark logs an error in a statement, as one long line of JSON, when it makes the exception for it.

    Its loggers are left as they were found. It would leave them without propagation, and whoever attaches a
    handler to such a logger gets the handler back with PySpark's formatter.
    """
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [(each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, (level, propagate) in zip(loggers, before, strict=True):
            each.setLevel(level)
            each.propagate = propagate
