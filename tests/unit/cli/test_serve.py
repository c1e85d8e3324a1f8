"""The command line: arguments become settings, and a set-up error becomes one line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from bendybus.cli.main import app
from bendybus.domain.entities import Tier
from bendybus.errors import DataFolderInUse
from bendybus.server.settings import Settings
from fix_imports import imported_by

# The module: its command has the same name.
SERVE = import_module("bendybus.cli.serve")

runner = CliRunner()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that servers were started with; none really runs."""
    settings: list[Settings] = []
    monkeypatch.setattr(SERVE, "run", settings.append)
    monkeypatch.delenv("BENDYBUS_SAS_KEY", raising=False)
    return settings


def test_without_arguments_the_defaults_are_those_of_settings(started: list[Settings]) -> None:
    assert runner.invoke(app, ["serve"]).exit_code == 0
    assert started == [Settings()]


def test_arguments_become_settings(started: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENDYBUS_SAS_KEY", "mine")
    arguments = (
        "serve --data here --host ::1 --port 0 --admin-port 0 --stores 2 --tier premium --config c.json "
        "--namespace a --namespace b --tls-cert c.crt --tls-key c.key --stall-after 5 --development "
        "--log-level debug --jwt-issuer https://issuer --jwt-audience one --jwt-audience two "
        "--jwt-keys k.json"
    )
    assert runner.invoke(app, arguments.split()).exit_code == 0
    assert started == [
        Settings(
            data=Path("here"),
            host="::1",
            port=0,
            admin_port=0,
            stores=2,
            tier=Tier.PREMIUM,
            config=Path("c.json"),
            namespaces=("a", "b"),
            sas_key="mine",
            tls_cert=Path("c.crt"),
            tls_key=Path("c.key"),
            stall_after_s=5.0,
            development=True,
            log_level="debug",
            jwt_issuer="https://issuer",
            jwt_audiences=("one", "two"),
            jwt_keys="k.json",
        )
    ]


@pytest.mark.row("P-09")
def test_tiers_are_for_all_namespaces_or_for_one(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "serve --tier Standard --tier Shop=premium --premium-messaging-partitions shop=4"
    assert runner.invoke(app, arguments.split()).exit_code == 0
    monkeypatch.setenv("BENDYBUS_TIER", "premium shop=basic")
    monkeypatch.setenv("BENDYBUS_PREMIUM_MESSAGING_PARTITIONS", "1")
    assert runner.invoke(app, ["serve"]).exit_code == 0
    assert started == [
        Settings(
            tier=Tier.STANDARD,
            namespace_tiers={"shop": Tier.PREMIUM},
            namespace_premium_partitions={"shop": 4},
        ),
        Settings(tier=Tier.PREMIUM, namespace_tiers={"shop": Tier.BASIC}, premium_partitions=1),
    ]


def test_in_the_emulators_place_its_key_is_taken_unless_another_is_set(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runner.invoke(app, ["serve", "--emulator"]).exit_code == 0
    monkeypatch.setenv("BENDYBUS_SAS_KEY", "mine")
    assert runner.invoke(app, ["serve", "--emulator"]).exit_code == 0
    assert [settings.sas_key for settings in started] == ["SAS_KEY_VALUE", "mine"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--port 99999", "bendybus: --port is 99999; allowed is 0 to 65535\n"),
        ("--tier gold", "bendybus: --tier is 'gold'; allowed are basic, standard, premium\n"),
        ("--tier a=basic --tier A=basic", "bendybus: --tier is given twice for A\n"),
    ],
)
def test_a_wrong_setting_is_one_line_on_stderr_and_exit_2(
    started: list[Settings], arguments: str, told: str
) -> None:
    result = runner.invoke(app, ["serve", *arguments.split()])
    assert (result.exit_code, result.stderr, result.stdout) == (2, told, "")
    assert started == []


def test_a_server_that_refuses_to_start_is_one_line_and_exit_2(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(settings: Settings) -> None:
        raise DataFolderInUse("the data folder is in use by process 17")

    monkeypatch.setattr(SERVE, "run", run)
    result = runner.invoke(app, ["serve"])
    assert (result.exit_code, result.stderr) == (2, "bendybus: the data folder is in use by process 17\n")


def test_starting_the_server_pays_for_the_server_alone() -> None:
    # The clients, what draws tables, and Spark are for other commands.
    others = ["bendybus.client", "bendybus.management", "bendybus.cli.command", "rich", "pyspark", "pydantic"]
    assert imported_by("import bendybus.cli.serve", others) == []
