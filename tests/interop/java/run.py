"""Runs the Java tests against servers of their own: `make interop`.

Needs a JDK of version 17 or later and Maven; says so plainly and passes when they are not there.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from interop.other_languages import (
    BENDYBUS,
    CACHE,
    Certificate,
    are_installed,
    certificate,
    run_suite,
    serving,
)

HERE = Path(__file__).parent
FOLDER = CACHE / "interop-java"
# Nothing in a trust store is secret, but it wants a password.
PASSWORD = "changeit"


def main() -> int:
    if not are_installed("Java", "java", "javac", "mvn", "keytool"):
        return 0
    with (
        certificate() as trusted,
        serving(trusted) as standard,
        serving(trusted, "--tier", "premium") as premium,
    ):
        environment = {
            "BENDYBUS_STANDARD": standard,
            "BENDYBUS_PREMIUM": premium,
            # For those tests that kill their server.
            "BENDYBUS_SERVE": f"{BENDYBUS} serve --log-level warning {shlex.join(trusted.options)}",
        }
        command = ["mvn", "--batch-mode", "--quiet", "test", f"-Dbuild.folder={FOLDER}", *sys.argv[1:]]
        return run_suite([*command, f"-Dtrust={_trust(trusted)}"], HERE, environment)


def _trust(trusted: Certificate) -> str:
    """The options by which Java trusts the certificate, as `bendybus cert` names them."""
    store = trusted.folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "bendybus", "-file", str(trusted.file)]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD]
    subprocess.run(command, check=True, capture_output=True)
    return f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword={PASSWORD}"


if __name__ == "__main__":
    raise SystemExit(main())
