"""Entities as a Config.json: exported from one server, imported into another."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bendybus.management.config_file import INCOMPLETE
from bendybus.server.emulator_config import load_config
from fix_processes import run_bendybus
from fix_server import Properties, ServerProcess, StartServer

QUEUES: dict[str, Properties] = {
    # The destination comes later in the file.
    "a-forwards": {"ForwardTo": "orders", "ForwardDeadLetteredMessagesTo": "z-letters"},
    "orders": {
        "EnablePartitioning": True,
        "MaxSizeInMegabytes": 2048,
        "LockDuration": "PT30S",
        "UserMetadata": "123",
        "Status": "SendDisabled",
    },
    "z-letters": {"RequiresDuplicateDetection": True, "DefaultMessageTimeToLive": "P1D"},
}
TOPICS: list[Properties] = [
    {
        "Name": "news",
        "Properties": {"EnablePartitioning": True},
        "Subscriptions": [
            {"Name": "all"},
            {
                "Name": "some",
                "Properties": {"MaxDeliveryCount": 3, "ForwardTo": "orders"},
                "Rules": [
                    {
                        "Name": "big",
                        "Properties": {
                            "FilterType": "Sql",
                            "SqlFilter": {"SqlExpression": "size > 5"},
                            "Action": {"SqlExpression": "SET big = 'yes'"},
                        },
                    },
                    {
                        "Name": "ours",
                        "Properties": {
                            "FilterType": "Correlation",
                            "CorrelationFilter": {"Label": "ours", "Properties": {"n": 1, "flag": True}},
                        },
                    },
                ],
            },
        ],
    }
]


def bendybus(
    server: ServerProcess, folder: Path, *arguments: str, succeeds: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {"BENDYBUS_CONNECTION_STRING": server.connection_string}
    done = run_bendybus(*arguments, environment=environment, folder=folder)
    assert (done.returncode == 0) == succeeds, done.stderr
    return done


def exported(server: ServerProcess, folder: Path) -> dict[str, Any]:
    (only,) = json.loads(bendybus(server, folder, "export").stdout)["UserConfig"]["Namespaces"]
    return {**only, "Name": ""}


def test_what_one_server_exports_another_imports(start_server: StartServer, tmp_path: Path) -> None:
    source = start_server(QUEUES, topics=TOPICS)
    target = start_server({"orders": {}})
    bendybus(source, tmp_path, "export", "Config.json")
    # A server reads the file at its start as well.
    (described,) = load_config(tmp_path / "Config.json")
    assert [queue.path for queue in described.queues] == [*QUEUES]
    again = bendybus(source, tmp_path, "export", "Config.json", succeeds=False)
    assert "--force" in again.stderr
    bendybus(source, tmp_path, "export", "Config.json", "--force")

    bendybus(target, tmp_path, "queue", "delete", "orders", "--yes")
    would = bendybus(target, tmp_path, "import", "Config.json", "--dry-run", "-o", "json")
    steps = json.loads(would.stdout)
    assert {(step["outcome"], step["kind"], step["path"]) for step in steps} >= {
        ("created", "queue", "a-forwards"),
        ("created", "subscription", "news/Subscriptions/some"),
        ("created", "rule", "news/Subscriptions/some/Rules/ours"),
    }
    assert json.loads(bendybus(target, tmp_path, "queue", "list", "-o", "json").stdout) == []
    assert json.loads(bendybus(target, tmp_path, "import", "Config.json", "-o", "json").stdout) == steps
    assert exported(target, tmp_path) == exported(source, tmp_path)
    rules = json.loads(bendybus(target, tmp_path, "rule", "list", "news", "some", "-o", "json").stdout)
    assert [rule["name"] for rule in rules] == ["big", "ours"]
    assert rules[1]["properties"] == {"n": 1, "flag": True}


def test_entities_that_exist_stay_as_they_are(start_server: StartServer, tmp_path: Path) -> None:
    source = start_server({"orders": {"LockDuration": "PT30S"}, "more": {}})
    target = start_server({"orders": {"LockDuration": "PT10S"}})
    done = bendybus(target, tmp_path, "import", "--from", source.connection_string)
    assert done.stderr == "Created 1; 1 exist already and stay as they are.\n"
    shown = json.loads(bendybus(target, tmp_path, "queue", "show", "orders", "-o", "json").stdout)
    assert shown["lockDuration"] == "PT10S"


def test_an_import_that_was_interrupted_is_completed(start_server: StartServer, tmp_path: Path) -> None:
    source = start_server(QUEUES, topics=TOPICS)
    target = start_server({})
    bendybus(source, tmp_path, "export", "Config.json")
    bendybus(target, tmp_path, "import", "Config.json")
    bendybus(target, tmp_path, "rule", "delete", "news", "some", "ours", "--yes")
    mark = ("--user-metadata", INCOMPLETE)
    bendybus(target, tmp_path, "subscription", "update", "news", "some", *mark)
    would = bendybus(target, tmp_path, "import", "Config.json", "--dry-run")
    assert would.stderr.startswith("Would complete 1 of an interrupted import. Would create 1; ")
    done = bendybus(target, tmp_path, "import", "Config.json")
    assert done.stderr.startswith("Completed 1 of an interrupted import. Created 1; ")
    assert exported(target, tmp_path) == exported(source, tmp_path)


@pytest.mark.parametrize(
    ("namespaces", "arguments", "complaint"),
    [
        ([{"Name": "a", "Queues": [{"Name": "q", "Colour": "red"}]}], (), "unknown key 'Colour'"),
        ([{"Name": "a", "Tier": "Premium"}], (), "'Tier' is set where a server starts"),
        (
            [{"AuthorizationRules": [{"Name": "r", "PrimaryKey": "k", "Rights": ["Send"]}]}],
            (),
            "'bendybus policy create'",
        ),
        ([{"Name": "a"}, {"Name": "b"}], (), "several namespaces, a, b: choose one with --only"),
        ([{"Name": "a"}, {"Name": "b"}], ("--only", "c"), "no namespace 'c'"),
        ([{"Name": "a"}], ("--from", "Endpoint=x"), "name a FILE, or"),
    ],
)
def test_a_file_with_what_would_be_ignored_is_refused(
    server: ServerProcess,
    tmp_path: Path,
    namespaces: list[dict[str, Any]],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    (tmp_path / "Config.json").write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    refused = bendybus(server, tmp_path, "import", "Config.json", *arguments, succeeds=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert complaint in refused.stderr
