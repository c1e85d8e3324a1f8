"""Runs the Java tests against servers of their own: `make interop`.

Then the fixture of docs/guides/testing.md for JUnit, which starts its own server. Arguments are for Maven,
and with them the fixture is not run.
Needs a JDK of version 17 or later and Maven; says so plainly and passes when they are not there.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from interop import testing_guide
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
        serving(trusted, "--tier", "premium", "--premium-messaging-partitions", "1") as unpartitioned,
    ):
        environment = {
            "BENDYBUS_STANDARD": standard,
            "BENDYBUS_PREMIUM": premium,
            "BENDYBUS_PREMIUM_UNPARTITIONED": unpartitioned,
            # For those tests that kill their server.
            "BENDYBUS_SERVE": f"{BENDYBUS} serve --log-level warning {shlex.join(trusted.options)}",
        }
        failed = run_maven(FOLDER, environment, f"-Dtrust={_trust(trusted)}", *sys.argv[1:])
    return failed if sys.argv[1:] else run_guide() or failed


def run_guide() -> int:
    """With the same libraries, from a folder of its own."""
    folder = FOLDER / "guide"
    testing_guide.write("Java", folder)
    options = (f"-Dtests.folder={folder}", f"-Dtests.runIn={folder}", "-Dtrust=")
    return run_maven(folder / "target", testing_guide.on_the_path(), *options)


def run_maven(folder: Path, environment: Mapping[str, str], *options: str) -> int:
    """Builds into the folder; says what ran."""
    shutil.rmtree(folder / "surefire-reports", ignore_errors=True)
    command = ["mvn", "--batch-mode", "--quiet", "test", f"-Dbuild.folder={folder}", *options]
    return max(run_suite(command, HERE, environment), _tell(folder / "surefire-reports"))


def _tell(reports: Path) -> int:
    """Says what ran; 1 if nothing did, since Maven is content with that."""
    total = 0
    for report in sorted(reports.glob("TEST-*.xml")):
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
