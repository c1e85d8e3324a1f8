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
from collections import Counter
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
    left_out,
    run_suite,
    serving,
)
from set_ups import BROKERS, CLUSTER, is_refused, several_brokers

HERE = Path(__file__).parent
FOLDER = CACHE / "interop-java"
# Nothing in a trust store is secret, but it wants a password.
PASSWORD = "changeit"
ALL_BUT_CRASHES = "*Test,!CrashTest"


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
            "BENDYBUS_SERVE": shlex.join(
                [BENDYBUS, "serve", "--log-level", "warning", *BROKERS, *trusted.options]
            ),
        }
        chosen = sys.argv[1:] or ([f"-Dtest={ALL_BUT_CRASHES}"] if CLUSTER else [])
        failed = run_maven(FOLDER, environment, f"-Dtrust={_trust(trusted)}", *chosen)
    if several_brokers():
        left_out("because it starts its own server: the fixture of docs/guides/testing.md")
        if CLUSTER:
            left_out("because it starts and kills its own server of one process: CrashTest")
        return failed
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
    code = run_suite(command, HERE, environment)
    ran, failed, refused = _tell(folder / "surefire-reports")
    # Maven is content with no tests, and calls those failed that were refused.
    return 1 if failed or not ran else 0 if refused else code


def _tell(reports: Path) -> tuple[int, int, int]:
    """Says what ran; how many passed, failed and were refused because there are several brokers."""
    total, reasons = Counter[str](), Counter[str]()
    for report in sorted(reports.glob("TEST-*.xml")):
        suite = ElementTree.parse(report).getroot()
        found = Counter[str]()
        for case in suite.iter("testcase"):
            outcome, reason = _outcome(case)
            found[outcome] += 1
            if reason:
                reasons[reason] += 1
        total += found
        name, count = suite.get("name", report.stem), found.total()
        sys.stdout.write(f"{name}: {found[PASSED]} of {count} passed, {found[SKIPPED]} skipped\n")
    for reason, count in reasons.items():
        left_out(f"{count} tests: {reason}")
    return total[PASSED], total[FAILED], total[REFUSED_HERE]


PASSED, FAILED, SKIPPED, REFUSED_HERE = "passed", "failed", "skipped", "refused"


def _outcome(case: ElementTree.Element) -> tuple[str, str | None]:
    if case.find("skipped") is not None:
        return SKIPPED, None
    trouble = [each for name in ("failure", "error") for each in case.findall(name)]
    if not trouble:
        return PASSED, None
    said = " ".join(f"{each.get('message')} {each.text}" for each in trouble)
    reason = is_refused(said) if several_brokers() else None
    return (FAILED, None) if reason is None else (REFUSED_HERE, reason)


def _trust(trusted: Certificate) -> str:
    """The options by which Java trusts the certificate, as `bendybus cert` names them."""
    store = trusted.folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "bendybus", "-file", str(trusted.file)]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD]
    subprocess.run(command, check=True, capture_output=True)
    return f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword={PASSWORD}"


if __name__ == "__main__":
    raise SystemExit(main())
