"""What a server prints for those who are to connect to it."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from fix_processes import BENDYBUS


def test_a_server_on_every_address_says_how_others_reach_it(tmp_path: Path) -> None:
    arguments = ("serve", "--data", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0")
    with subprocess.Popen(
        [BENDYBUS, *arguments, "--admin-port", "0", "--no-portal"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready, network = process.stdout.readline(), process.stdout.readline()
            assert ready.startswith("ready Endpoint=sb://127.0.0.1:")
            assert network.startswith(f"network Endpoint=sb://{socket.gethostname()}:")
            assert ready.split(";")[1:] == network.split(";")[1:]
        finally:
            process.terminate()
