"""The pytest plugin, as somebody else's tests use it: in a pytest run of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

# Installed as it is here, the plugin comes by itself; from a folder that is only on the path it does not.
PLUGIN: Final = () if entry_points(group="pytest11", name="bendybus") else ("-p", "bendybus.pytest_plugin")


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *arguments)


def test_every_test_has_a_namespace_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from azure.servicebus import ServiceBusClient, ServiceBusMessage

        seen = set()

        @pytest.mark.parametrize("turn", range(3))
        def test_it(servicebus, servicebus_server, turn):
            assert servicebus.queues() == []
            servicebus.create_queue("orders")
            seen.add((servicebus.connection_string, servicebus_server.port))
            assert len(seen) == turn + 1 and len({port for _, port in seen}) == 1

        def test_the_sdk(servicebus):
            servicebus.create_queue("orders", lock_duration_s=5)
            with ServiceBusClient.from_connection_string(servicebus.connection_string) as client:
                with client.get_queue_sender("orders") as sender:
                    sender.send_messages(ServiceBusMessage("hello"))
            assert [str(message) for message in servicebus.messages("orders")] == ["hello"]

        def test_a_server_alone(servicebus_own_server, servicebus_server):
            assert servicebus_own_server.port != servicebus_server.port
            with servicebus_own_server.namespace() as namespace:
                assert namespace.queues() == []
        """
    )
    run(pytester, "-W", "error").assert_outcomes(passed=5)


def test_a_marker_and_a_setting_say_what_is_there_at_first(pytester: pytest.Pytester) -> None:
    described = {"Name": "sbemulatorns", "Queues": [{"Name": "from-the-file"}]}
    (pytester.path / "Config.json").write_text(json.dumps({"UserConfig": {"Namespaces": [described]}}))
    pytester.makeini("[pytest]\nservicebus_config = Config.json\naddopts = --strict-markers\n")
    pytester.makepyfile(
        """
        import pytest

        def test_the_file(servicebus):
            assert servicebus.queues() == ["from-the-file"]

        @pytest.mark.servicebus(queues={"orders": {"enable_partitioning": True}}, durable=True)
        def test_the_marker(servicebus):
            assert servicebus.queues() == ["from-the-file", "orders"]
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_who_does_not_ask_pays_for_nothing() -> None:
    code = "import sys, bendybus.pytest_plugin; print(*(name for name in sys.modules if 'bendybus' in name))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["bendybus", "bendybus.pytest_plugin"]


def test_the_entry_point_leads_to_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = import_module(project["entry-points"]["pytest11"]["bendybus"])
    assert plugin.servicebus
