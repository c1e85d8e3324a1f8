"""Runs the Go tests against a server of their own: `make interop`.

Needs Go; says so plainly and passes when it is not there.
"""

from __future__ import annotations

from pathlib import Path

from interop.other_languages import are_installed, certificate, run_suite, serving

HERE = Path(__file__).parent


def main() -> int:
    if not are_installed("Go", "go"):
        return 0
    with certificate() as trusted, serving(trusted) as connection_string:
        environment = {
            "BENDYBUS_CONNECTION_STRING": connection_string,
            # On Linux; elsewhere Go asks the system's own store.
            "SSL_CERT_FILE": str(trusted.file),
        }
        return run_suite(["go", "test", "-count=1", "./..."], HERE, environment)


if __name__ == "__main__":
    raise SystemExit(main())
