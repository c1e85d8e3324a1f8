"""A user's mistake is reported in one line, without the traceback of a worker.

Spark passes an error on as the text that its worker formats. A worker leaves the traceback out if the
variable SPARK_HIDE_TRACEBACK is set, which it looks up when it reports the error, and then ends. So the
variable is set for errors of ours, which say what happened and what to do. Other errors keep their traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bendybus.errors import BrokerError

__all__ = ["told_plainly"]

_HIDDEN: Final = "SPARK_HIDE_TRACEBACK"


@contextmanager
def told_plainly() -> Iterator[None]:
    """For all that Spark calls in its workers; also a decorator, but not of generators."""
    try:
        yield
    except BrokerError:
        if _in_a_worker():
            os.environ[_HIDDEN] = "1"
        raise


def _in_a_worker() -> bool:
    """Whether this process was started by Spark: `python -m pyspark.daemon`, for example."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")
