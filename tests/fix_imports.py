"""The modules that an import loads, seen in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys


def imported_by(statement: str, candidates: list[str]) -> list[str]:
    """Those of the candidates that are loaded after the statement."""
    code = f"import json, sys; {statement}; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    return [name for name in candidates if name in loaded]
