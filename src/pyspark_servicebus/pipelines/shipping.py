"""A packed environment (venv-pack) for executors that have none of their own.

Spark runs the Python of a data source by the same name on the driver's machine and on executors, so
the name is a bare `python`: here the path leads to the current interpreter, there to the
one that was unpacked next to the executor. A path such as `./environment/bin/python` would have to
exist on the driver's machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from bendybus.errors import ConfigError

__all__ = ["shipped"]

UNPACKED: Final = "environment"
SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def shipped(archive: str) -> dict[str, str]:
    """Settings for `spark_session`. To be called before it, because this also changes the PATH."""
    if "://" not in archive and not Path(archive).is_file():
        raise ConfigError(f"there is no archive '{archive}'")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = "python"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', SYSTEM_PATH)}"
    return {
        "spark.archives": f"{archive}#{UNPACKED}",
        "spark.executorEnv.PATH": f"./{UNPACKED}/bin:{SYSTEM_PATH}",
    }
