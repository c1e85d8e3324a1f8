"""The connections of a server from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.client import BusClient, ClientSettings
from bendybus.errors import BrokerError
from cli.conftest import Bendybus, BendybusJson
from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer


def test_connections_are_listed_and_closed(
    bendybus: Bendybus,
    bendybus_json: BendybusJson,
    attempt: Bendybus,
    server: ServerProcess,
    partitioned: str,
) -> None:
    settings = ClientSettings.from_connection_string(server.connection_string)
    with BusClient(settings) as client:
        receiver = client.receiver(partitioned)
        receiver.check()
        (mine,) = bendybus_json("connection", "list", "--entity", partitioned)
        assert mine["links"][0]["role"] == "receiver"
        assert partitioned in bendybus("connection", "list").stdout
        assert bendybus_json("connection", "close", "--entity", partitioned, "--dry-run") == {
            "matching": [mine["id"]],
            "closed": [],
        }
        assert bendybus_json("connection", "close", mine["id"])["closed"] == [mine["id"]]
        with pytest.raises(BrokerError):
            receiver.receive(1, timeout_s=5)
    assert bendybus_json("connection", "list", "--entity", partitioned) == []
    gone = attempt("connection", "close", mine["id"])
    assert (gone.returncode, gone.stderr) == (1, f"bendybus: There is no connection '{mine['id']}'.\n")
    unclear = attempt("connection", "close")
    assert unclear.returncode == 2


def test_a_server_with_several_brokers_says_that_it_lists_no_namespaces(
    start_server: StartServer, tmp_path: Path
) -> None:
    spread = start_server({"q": {}}, None, "--brokers", "2")
    refused = run_bendybus("namespace", "list", "--data", str(spread.data), environment={}, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "several brokers" in refused.stderr
