"""Runs the JavaScript tests against a server of their own: `make interop`.

Needs Node.js 20 and npm; says so plainly and passes when they are not there, since
Python is all that the other tests need. The SDK goes into .cache, not into the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = ROOT / ".cache" / "interop-js"

# Long for the tests, short for a hang.
TIMEOUT_S = 300


def main() -> int:
    if shutil.which("node") is None or shutil.which("npm") is None:
        sys.stdout.write("skipped: the JavaScript SDK, because node or npm is not installed\n")
        return 0
    CACHE.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", "queues.test.mjs"):
        shutil.copy(HERE / file, CACHE / file)
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=CACHE, check=True)
    with tempfile.TemporaryDirectory(prefix="bendybus-js-") as data:
        command = [str(Path(sys.executable).with_name("bendybus")), "serve", "--data", data]
        command += ["--port", "0", "--admin-port", "0", "--log-level", "warning"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            connection_string = server.stdout.readline().removeprefix("ready ").strip()
            try:
                return _tests(connection_string, Path(data)).returncode
            finally:
                server.terminate()


def _tests(connection_string: str, data: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {
        **os.environ,
        "BENDYBUS_CONNECTION_STRING": connection_string,
        # The administration client always speaks https, to a name that the certificate holds.
        "BENDYBUS_TLS_CONNECTION_STRING": connection_string.removesuffix(";UseDevelopmentEmulator=true"),
        "NODE_EXTRA_CA_CERTS": str(data / "tls" / "server.crt"),
    }
    command = ["node", "--test", "--test-concurrency=1", "queues.test.mjs"]
    return subprocess.run(command, cwd=CACHE, env=environment, check=False, timeout=TIMEOUT_S)


if __name__ == "__main__":
    raise SystemExit(main())
