"""Managing entities from the command line, against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.management.client import ManagementClient
from cli.conftest import Bendybus, BendybusJson
from fix_processes import run_bendybus
from fix_server import ServerProcess, StartServer


@pytest.fixture
def name(server: ServerProcess) -> Iterator[str]:
    """Of queues to be: what begins with it is deleted afterwards, since a namespace holds only so many."""
    name = f"made-{uuid.uuid4().hex[:8]}"
    yield name
    with ManagementClient(ConnectionString.parse(server.connection_string)) as management:
        for entry in list(management.list("$Resources/queues")):
            if entry.name.startswith(name):
                management.delete(entry.name)


@pytest.mark.row("P-06", "P-08")
def test_a_queue_is_partitioned_unless_told_otherwise(bendybus_json: BendybusJson, name: str) -> None:
    made = bendybus_json("queue", "create", name, "--max-size", "2048", "--lock-duration", "30s")
    # P-08: what is shown is the size of all 16 partitions.
    assert (made["enablePartitioning"], made["maxSizeInMegabytes"]) == (True, 32768)
    assert made["lockDuration"] == "PT30S"
    other = bendybus_json("queue", "create", f"{name}-other", "--no-partitioned")
    assert (other["enablePartitioning"], other["maxSizeInMegabytes"]) == (False, 1024)


@pytest.mark.row("P-06", "P-09")
@pytest.mark.parametrize("partitions", [1, 4])
def test_in_premium_the_namespace_decides_what_is_partitioned(
    start_server: StartServer, tmp_path: Path, partitions: int
) -> None:
    server = start_server({}, None, "--tier", "premium", "--premium-messaging-partitions", str(partitions))
    environment = {"BENDYBUS_CONNECTION_STRING": server.connection_string}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_bendybus(*arguments, "--output", "json", environment=environment, folder=tmp_path)

    made = json.loads(run("queue", "create", "q").stdout)
    assert (made["enablePartitioning"], made["maxSizeInMegabytes"]) == (partitions > 1, 1024)
    refused = run("queue", "create", "other", "--no-partitioned" if partitions > 1 else "--partitioned")
    assert refused.returncode != 0 and "not allowed in" in refused.stderr
    shown = json.loads(run("namespace", "show").stdout)
    assert (shown["messagingSku"], shown["premiumMessagingPartitions"]) == ("Premium", partitions)


def test_every_property_can_be_given_at_creation(bendybus_json: BendybusJson, name: str) -> None:
    made = bendybus_json(
        *("queue", "create", name, "--no-partitioned", "--max-message-size", "100"),
        *("--lock-duration", "PT5S", "--duplicate-detection", "--duplicate-detection-window", "1m"),
        *("--default-message-ttl", "14d", "--dead-letter-on-expiration", "--max-delivery-count", "3"),
        *("--auto-delete-on-idle", "1h", "--status", "SendDisabled"),
        *("--user-metadata", "<ours> & theirs", "--keep-completed", "2h"),
        *("--retry-delay", "5s", "--retry-delay-factor", "3", "--retry-delay-max", "1m"),
    )
    expected = {
        "name": name,
        "maxMessageSizeInKilobytes": 100,
        "lockDuration": "PT5S",
        "requiresDuplicateDetection": True,
        "duplicateDetectionHistoryTimeWindow": "PT1M",
        "defaultMessageTimeToLive": "P14D",
        "deadLetteringOnMessageExpiration": True,
        "maxDeliveryCount": 3,
        "autoDeleteOnIdle": "PT1H",
        "status": "SendDisabled",
        "userMetadata": "<ours> & theirs",
        "keepCompleted": "PT2H",
        "retryDelay": "PT5S",
        "retryDelayFactor": 3,
        "retryDelayMax": "PT1M",
    }
    assert made | expected == made
    assert bendybus_json("queue", "show", name) == made


def test_an_update_changes_what_it_names_and_nothing_else(bendybus_json: BendybusJson, name: str) -> None:
    target = ("--forward-dead-lettered-to", "usual-partitioned-0")
    made = bendybus_json("queue", "create", name, "--max-size", "2048", "--user-metadata", "old", *target)
    changed = bendybus_json("queue", "update", name, "--max-delivery-count", "5", "--user-metadata", "")
    assert changed["maxDeliveryCount"] == 5
    assert "userMetadata" not in changed
    same = ("maxDeliveryCount", "userMetadata", "updatedAt")
    assert {key: value for key, value in changed.items() if key not in same} == {
        key: value for key, value in made.items() if key not in same
    }


def test_queues_are_listed_over_all_pages_in_a_table_and_as_json(
    bendybus: Bendybus, bendybus_json: BendybusJson, name: str
) -> None:
    bendybus("queue", "create", name)
    listed = bendybus_json("queue", "list")
    # The session's server has more than a page of 100.
    assert len(listed) > 100
    assert len({queue["name"] for queue in listed}) == len(listed)
    row = next(line for line in bendybus("queue", "list").stdout.splitlines() if line.startswith(name))
    assert row.split() == [name, "Active", "0", "0", "0", "yes", "16384"]


def test_a_deleted_queue_is_gone_and_deleting_asks_first(
    bendybus: Bendybus, attempt: Bendybus, name: str
) -> None:
    bendybus("queue", "create", name)
    refused = attempt("queue", "delete", name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pass --yes" in refused.stderr
    bendybus("queue", "delete", name, "--yes")
    gone = attempt("queue", "show", name)
    assert gone.returncode == 1
    assert gone.stderr == (
        f"bendybus: The messaging entity '{name}' could not be found. "
        "'bendybus queue list' and 'bendybus topic list' show what there is.\n"
    )


def test_the_namespace_shows_its_tier_and_what_it_holds(bendybus_json: BendybusJson) -> None:
    shown = bendybus_json("namespace", "show")
    assert shown["messagingSku"] == "Standard"
    assert shown["queues"] > 100


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["queue", "create", "usual-partitioned-0"], 1, "exists"),
        (["queue", "create", "bad*name"], 1, "'bad*name' is not allowed"),
        (["queue", "create", "x", "--max-size", "17"], 1, "MaxSizeInMegabytes is 17; it must be one of 1024"),
        (["queue", "create", "x", "--lock-duration", "soon"], 2, "is not a duration"),
        (
            ["queue", "update", "usual-partitioned-0"],
            2,
            "name a property, see 'bendybus queue update --help'",
        ),
        (["queue", "frobnicate"], 2, "frobnicate"),
    ],
)
def test_a_refusal_says_why_and_is_no_traceback(
    attempt: Bendybus, arguments: list[str], code: int, told: str
) -> None:
    refused = attempt(*arguments)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert told in " ".join(refused.stderr.replace("│", "").split())
    assert "Traceback" not in refused.stderr


def test_a_wrong_key_is_refused_and_never_shown(server: ServerProcess, tmp_path: Path) -> None:
    wrong = server.connection_string.replace(server.key, "this-is-wrong")
    refused = run_bendybus("queue", "list", "--connection-string", wrong, environment={}, folder=tmp_path)
    assert refused.returncode == 1
    assert "Check the key" in refused.stderr
    assert "this-is-wrong" not in refused.stderr + refused.stdout


def test_a_key_that_may_not_manage_creates_nothing(server: ServerProcess, tmp_path: Path, name: str) -> None:
    listens = server.connection_string.replace(server.key, "key-of-those-who-listen")
    listens = listens.replace("RootManageSharedAccessKey", "Listens")
    environment = {"SERVICEBUS_CONNECTION_STRING": listens}
    refused = run_bendybus("queue", "create", name, environment=environment, folder=tmp_path)
    assert refused.returncode == 1
    assert "the rights of its rule" in refused.stderr


def test_over_tls_the_certificate_has_to_be_trusted(server: ServerProcess, tmp_path: Path) -> None:
    over_tls = {
        "BENDYBUS_CONNECTION_STRING": server.connection_string.replace("UseDevelopmentEmulator=true", "")
    }
    trusting = {**over_tls, "SSL_CERT_FILE": str(server.certificate)}
    assert run_bendybus("namespace", "show", environment=trusting, folder=tmp_path).returncode == 0
    refused = run_bendybus("namespace", "show", environment=over_tls, folder=tmp_path)
    assert refused.returncode == 1
    assert "Name it in SSL_CERT_FILE" in refused.stderr


def test_the_server_of_the_data_folder_is_found_until_it_stops(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server({"only-here": {}})
    arguments = ("queue", "list", "--data", str(server.data))
    found = run_bendybus(*arguments, environment={}, folder=tmp_path)
    assert "only-here" in found.stdout, found.stderr
    server.stop()
    assert not (server.data / "server.json").exists()
    lost = run_bendybus(*arguments, environment={}, folder=tmp_path)
    assert (lost.returncode, lost.stdout) == (2, "")
    assert "start one with 'bendybus serve'" in lost.stderr


def test_a_server_that_was_killed_or_has_gone_is_told_in_one_line(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server({"only-here": {}})
    server.send_signal(signal.SIGKILL)
    server.wait()
    by_folder = run_bendybus("queue", "list", "--data", str(server.data), environment={}, folder=tmp_path)
    assert "no server runs on the data folder" in by_folder.stderr
    environment = {"BENDYBUS_CONNECTION_STRING": server.connection_string}
    by_name = run_bendybus("queue", "list", environment=environment, folder=tmp_path)
    assert by_name.returncode == 1
    assert by_name.stderr == (
        f"bendybus: 127.0.0.1:{server.port} cannot be reached: Connection refused. "
        "Is the server running, and is this its address?\n"
    )
