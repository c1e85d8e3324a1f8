"""The Azure SDKs as the load: a program in each language sends and receives, and counts what came.

The programs are sdk/python_load.py and sdk/Load.cs. They print one line of JSON as the load generator does.
C# is compiled as for the tests with the .NET SDK (tests/interop/dotnet).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from load import GRACE_S, LoadFailed
from measures import Measured
from process import CACHE

sys.path.insert(0, str(Path(__file__).parents[1]))
from interop.dotnet import run as dotnet

__all__ = ["SdkMissing", "run_sdk"]

PROGRAMS = Path(__file__).with_name("sdk")


class SdkMissing(Exception):
    """What the SDK needs is not on this machine."""


def run_sdk(client: str, connection_string: str, queue: str, count: int, timeout_s: float) -> Measured:
    """Moves `count` messages; LoadFailed unless each arrived exactly once. `client`: language and way."""
    language, _, way = client.partition(" ")
    command, environment = _python() if language == "python" else _dotnet()
    whole = {**os.environ, **environment}
    arguments = [plain(connection_string), queue, str(count), *filter(None, [way])]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s + GRACE_S,
            env=whole,
            check=False,
        )
    except subprocess.TimeoutExpired as hung:
        raise LoadFailed(f"the {client} client hung") from hung
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise LoadFailed(f"the {client} client ended with {done.returncode}: {said[-500:]}")
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


def plain(connection_string: str) -> str:
    """With the flag by which the SDKs leave out TLS, as the load generator does."""
    flag = "UseDevelopmentEmulator=true"
    return connection_string if flag in connection_string else f"{connection_string.rstrip(';')};{flag}"


def _python() -> tuple[list[str], Mapping[str, str]]:
    if find_spec("azure") is None or find_spec("azure.servicebus") is None:
        raise SdkMissing("azure-servicebus is not installed")
    return [sys.executable, str(PROGRAMS / "python_load.py")], {}


@cache
def _dotnet() -> tuple[list[str], Mapping[str, str]]:
    if not dotnet.can_run():
        raise SdkMissing("there is no way to compile C# here")
    return dotnet.build([PROGRAMS / "Load.cs"], CACHE / "dotnet")
