"""Runs the Java tests against servers of their own: `make interop`.

Needs a JDK of version 17 or later and Maven; says so plainly and passes when they are not there.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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
REPORTS = FOLDER / "surefire-reports"
# Nothing in a trust store is secret, but it wants a password.
PASSWORD = "changeit"


def main() -> int:
    if not are_installed("Java", "java", "javac", "mvn", "keytool"):
        return 0
    with (
        certificate() as trusted,
        serving(trusted) as standard,
        serving(trusted, "--tier", "premium") as premium,
        serving(trusted, "--tier", "premium", "--premium-messaging-partitions", "1") as unpartitioned,
    ):
        environment = {
            "BENDYBUS_STANDARD": standard,
            "BENDYBUS_PREMIUM": premium,
            "BENDYBUS_PREMIUM_UNPARTITIONED": unpartitioned,
            # For those tests that kill their server.
            "BENDYBUS_SERVE": f"{BENDYBUS} serve --log-level warning {shlex.join(trusted.options)}",
        }
        shutil.rmtree(REPORTS, ignore_errors=True)
        command = ["mvn", "--batch-mode", "--quiet", "test", f"-Dbuild.folder={FOLDER}", *sys.argv[1:]]
        status = run_suite([*command, f"-Dtrust={_trust(trusted)}"], HERE, environment)
        return max(status, _tell())


def _tell() -> int:
    """Says what ran; 1 if nothing did, since Maven is content with that."""
    total = 0
    for report in sorted(REPORTS.glob("TEST-*.xml")):
        suite = ElementTree.parse(report).getroot()
        ran, failed, errors, skipped = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        total += ran - skipped
        name = suite.get("name", report.stem)
        sys.stdout.write(f"{name}: {ran - failed - errors - skipped} of {ran} passed, {skipped} skipped\n")
    return 0 if total else 1


def _trust(trusted: Certificate) -> str:
    """The options by which Java trusts the certificate, as `bendybus cert` names them."""
    store = trusted.folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "bendybus", "-file", str(trusted.file)]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD]
    subprocess.run(command, check=True, capture_output=True)
    return f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword={PASSWORD}"


if __name__ == "__main__":
    raise SystemExit(main())
