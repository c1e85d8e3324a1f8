"""Runs the Go tests against a server of their own: `make interop`.

Then the fixture of docs/guides/testing.md for Go's testing, which starts its own server.
Needs Go; says so plainly and passes when it is not there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from interop import testing_guide
from interop.other_languages import CACHE, are_installed, certificate, left_out, run_suite, serving
from set_ups import several_brokers

HERE = Path(__file__).parent
GO_TEST = ["go", "test", "-count=1", "-timeout=30m", *(["-v"] if several_brokers() else []), "./..."]


def main() -> int:
    if not are_installed("Go", "go"):
        return 0
    with certificate() as trusted, serving(trusted) as connection_string:
        environment = {
            "BENDYBUS_CONNECTION_STRING": connection_string,
            # On Linux; elsewhere Go asks the system's own store.
            "SSL_CERT_FILE": str(trusted.file),
        }
        failed = run_suite(GO_TEST, HERE, environment)
    if several_brokers():
        left_out("because it starts its own server: the fixture of docs/guides/testing.md")
        return failed
    return run_guide() or failed


def run_guide() -> int:
    """As a module that requires what this one requires."""
    folder = CACHE / "interop-go"
    testing_guide.write("Go", folder)
    for file in ("go.mod", "go.sum"):
        shutil.copy(HERE / file, folder)
    return run_suite(GO_TEST, folder, testing_guide.on_the_path())


if __name__ == "__main__":
    raise SystemExit(main())
