"""Runs the JavaScript tests against a server of their own: `make interop`.

Then the fixture of docs/guides/testing.md for Node's test runner, which starts its own server.
Needs Node.js 20 and npm; says so plainly and passes when they are not there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from interop import testing_guide
from interop.other_languages import CACHE, are_installed, certificate, left_out, run_suite, serving
from set_ups import several_brokers

HERE = Path(__file__).parent
FOLDER = CACHE / "interop-js"


def main() -> int:
    if not are_installed("JavaScript", "node", "npm"):
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Copied to where the SDK is installed, since that is where it is looked for.
    sources = [HERE / "package.json", *sorted(HERE.glob("*.mjs"))]
    for file in sources:
        shutil.copy(file, FOLDER)
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=FOLDER, check=True)
    with certificate() as trusted, serving(trusted) as connection_string:
        environment = {
            "BENDYBUS_CONNECTION_STRING": connection_string,
            # The administration client always speaks https, to a name that the certificate holds.
            "BENDYBUS_TLS_CONNECTION_STRING": connection_string.removesuffix(";UseDevelopmentEmulator=true"),
            "NODE_EXTRA_CA_CERTS": str(trusted.file),
        }
        tests = [file.name for file in sources if file.name.endswith(".test.mjs")]
        failed = run_suite(["node", "--test", "--test-concurrency=1", *tests], FOLDER, environment)
    if several_brokers():
        left_out("because it starts its own server: the fixture of docs/guides/testing.md")
        return failed
    return run_guide() or failed


def run_guide() -> int:
    """Below the folder of the SDK, where it is looked for."""
    folder = FOLDER / "guide"
    *_, test = testing_guide.write("Node.js", folder)
    return run_suite(["node", "--test", test.name], folder, testing_guide.on_the_path())


if __name__ == "__main__":
    raise SystemExit(main())
