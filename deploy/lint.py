"""`make style` for the files of this folder: each with the tool that is made for it.

A tool that is not installed is skipped, and the output says so. Docker and Kubernetes themselves are not run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DEPLOY: Final = Path(__file__).parent
UNIT: Final = DEPLOY / "bendybus.service"
CHART: Final = DEPLOY / "helm" / "bendybus"
PROMETHEUS: Final = DEPLOY / "prometheus"

# What a user may set together. A rendered chart is checked for each.
VALUES: Final = {
    "defaults": "{}",
    "processes": "{brokers: auto, config: {UserConfig: {}}}",
    "secrets": "{tls: {existingSecret: a}, rootKey: {existingSecret: b}, options: [--require-tls]}",
    "cluster": "{replicas: 2, cluster: {url: 'postgresql://a@b/c', passwordSecret: s}, "
    "rootKey: {existingSecret: k}, stores: [{url: 'postgresql://a@b/c?schema=one', passwordSecret: s}]}",
    "databases": "{stores: [{url: 'postgresql://a@b/c', passwordSecret: s}], options: [--tier=premium]}",
}
# Of ten; a unit without any protection has 9.6.
EXPOSURE_MAX: Final = 2.0


def main() -> int:
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for what, command in checks(Path(folder)):
            tool = found(command[0])
            if tool is None:
                print(f"skipped: {what}: {command[0]} is not installed")
                continue
            done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, check=False)
            if done.returncode:
                failures += 1
                print(f"failed: {what}\n{done.stdout}{done.stderr}", end="")
    return 1 if failures else 0


def found(tool: str) -> str | None:
    """Beside Python, in .cache, or on the PATH."""
    own = f"{Path(sys.executable).parent}:{DEPLOY.parent / '.cache'}"
    return shutil.which(tool, path=own) or shutil.which(tool)


def checks(folder: Path) -> Iterator[tuple[str, list[str]]]:
    yield "Dockerfile", ["hadolint", str(DEPLOY / "Dockerfile")]
    compose = str(DEPLOY / "compose.yaml")
    yield "compose.yaml", ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose]
    # The check wants the program to be there.
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/bendybus/bin/bendybus", "/bin/true"))
    yield UNIT.name, ["systemd-analyze", "verify", str(unit)]
    threshold = f"--threshold={EXPOSURE_MAX * 10:.0f}"
    yield f"security of {UNIT.name}", ["systemd-analyze", "security", "--offline=true", threshold, str(unit)]
    yield "prometheus.yml", ["promtool", "check", "config", str(PROMETHEUS / "prometheus.yml")]
    yield "alert rules", ["promtool", "test", "rules", str(PROMETHEUS / "bendybus.rules.test.yml")]
    yield "chart", ["helm", "lint", "--strict", str(CHART)]
    for name, text in VALUES.items():
        values = folder / f"{name}.yaml"
        values.write_text(text)
        rendered = folder / name
        render = ["template", "try", str(CHART), "--values", str(values), "--output-dir", str(rendered)]
        yield f"chart with {name}", ["helm", *render]
        files = [str(file) for file in sorted(rendered.rglob("*.yaml"))]
        if files:
            yield f"chart with {name}, in Kubernetes", ["kubernetes-validate", "--strict", "--quiet", *files]


if __name__ == "__main__":
    sys.exit(main())
