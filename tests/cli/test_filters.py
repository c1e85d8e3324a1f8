"""Peeking, receiving and resubmitting some of the messages, against a real server."""

from __future__ import annotations

import json
import subprocess

import pytest

from bendybus.client import BusClient, ClientSettings
from bendybus.operations.peeking import session_filter
from cli.conftest import Bendybus, BendybusJson, MakeQueue
from fix_server import Kind, ServerProcess


def bodies(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [json.loads(line)["body"] for line in done.stdout.splitlines()]


def send_sizes(bendybus: Bendybus, queue: str, count: int) -> None:
    lines = (
        json.dumps({"body": str(number), "applicationProperties": {"size": number}})
        for number in range(count)
    )
    bendybus("send", queue, "--json", given="\n".join(lines) + "\n")


@pytest.mark.row("B-03")
def test_a_peek_with_a_selector_looks_at_all_partitions_and_keeps_to_the_count(
    bendybus: Bendybus, queue: str
) -> None:
    send_sizes(bendybus, queue, 40)
    peek = ("peek", queue, "-o", "json", "--selector", "size >= 30")
    assert sorted(bodies(bendybus(*peek, "--max", "100"))) == [str(number) for number in range(30, 40)]
    assert len(bodies(bendybus(*peek, "--max", "7"))) == 7
    assert "no such messages" in bendybus("peek", queue, "--selector", "size > 99").stderr


def test_a_selector_that_cannot_be_read_is_refused(bendybus: Bendybus, attempt: Bendybus, queue: str) -> None:
    for command in ("peek", "receive"):
        refused = attempt(command, queue, "--selector", "size >")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.count("\n") == 1


def test_a_receive_with_a_selector_leaves_the_others(bendybus: Bendybus, queue: str) -> None:
    send_sizes(bendybus, queue, 10)
    taken = bendybus("receive", queue, "-o", "json", "--selector", "size > 6", "--max", "10", "--wait", "1")
    assert sorted(bodies(taken)) == ["7", "8", "9"]
    assert sorted(bodies(bendybus("peek", queue, "-o", "json"))) == [str(number) for number in range(7)]


def test_messages_are_peeked_by_their_numbers(bendybus: Bendybus, attempt: Bendybus, queue: str) -> None:
    send_sizes(bendybus, queue, 5)
    shown = [json.loads(line) for line in bendybus("peek", queue, "-o", "json").stdout.splitlines()]
    wanted = [shown[3], shown[1]]
    numbers = [argument for each in wanted for argument in ("--sequence-number", str(each["sequenceNumber"]))]
    assert bodies(bendybus("peek", queue, "-o", "json", *numbers)) == [each["body"] for each in wanted]
    missing = attempt("peek", queue, "--sequence-number", "77")
    assert (missing.returncode, "has no message 77" in missing.stderr) == (1, True)


def test_deferred_messages_are_received_by_their_numbers_and_settled(
    bendybus: Bendybus, attempt: Bendybus, queue: str
) -> None:
    bendybus("send", queue, given="1\n2\n")
    deferred = bendybus("receive", queue, "--max", "2", "--defer", "-o", "json").stdout.splitlines()
    numbers = {json.loads(line)["body"]: str(json.loads(line)["sequenceNumber"]) for line in deferred}
    taken = bendybus("receive", queue, "--sequence-number", numbers["1"], "-o", "json")
    assert bodies(taken) == ["1"]
    assert "Completed 1 message" in taken.stderr
    bendybus("receive", queue, "--sequence-number", numbers["2"], "--dead-letter", "--reason", "Late")
    assert "Late" in bendybus("dead-letter", "list", queue).stdout
    gone = attempt("receive", queue, "--sequence-number", numbers["1"])
    assert gone.returncode == 1


def test_scheduled_messages_are_cancelled_by_their_numbers(
    bendybus: Bendybus, attempt: Bendybus, queue: str
) -> None:
    bendybus("send", queue, "--delay", "1h", given="1\n2\n3\n")
    shown = bendybus("peek", queue, "--state", "scheduled", "-o", "json").stdout.splitlines()
    numbers = {json.loads(line)["body"]: str(json.loads(line)["sequenceNumber"]) for line in shown}
    bendybus("cancel", queue, numbers["1"], numbers["3"])
    assert bodies(bendybus("peek", queue, "-o", "json")) == ["2"]
    again = attempt("cancel", queue, numbers["1"], numbers["2"], "-o", "json")
    assert again.returncode == 1
    assert json.loads(again.stdout) == {
        "entity": queue,
        "cancelled": [int(numbers["2"])],
        "missing": [int(numbers["1"])],
    }


def test_dead_letters_are_resubmitted_by_a_selector(
    bendybus: Bendybus, bendybus_json: BendybusJson, queue: str
) -> None:
    send_sizes(bendybus, queue, 6)
    bendybus("receive", queue, "--max", "3", "--dead-letter", "--reason", "Late")
    bendybus("receive", queue, "--max", "3", "--dead-letter", "--reason", "Broken")
    late = ("dead-letter", "resubmit", queue, "--selector", "DeadLetterReason = 'Late'")
    assert bendybus_json(*late, "--dry-run") == {
        "entity": queue,
        "to": queue,
        "matching": 3,
        "resubmitted": 0,
    }
    assert bodies(bendybus("peek", queue, "-o", "json")) == []
    assert bendybus_json(*late)["resubmitted"] == 3
    assert len(bodies(bendybus("peek", queue, "-o", "json"))) == 3
    broken = bendybus("dead-letter", "list", queue, "--selector", "DeadLetterReason = 'Broken'", "-o", "json")
    assert len(bodies(broken)) == 3


def test_a_dry_run_of_a_purge_counts_and_deletes_nothing(
    bendybus: Bendybus, bendybus_json: BendybusJson, queue: str
) -> None:
    bendybus("send", queue, given="1\n2\n3\n")
    bendybus("send", queue, "--delay", "1h", "--body", "x")
    bendybus("receive", queue, "--defer")
    counted = bendybus_json("purge", queue, "--dry-run")
    assert counted == {
        "entity": queue,
        "matching": 4,
        "active": 2,
        "deferred": 1,
        "scheduled": 1,
        "purged": 0,
    }
    assert len(bodies(bendybus("peek", queue, "-o", "json"))) == 4
    bendybus("receive", queue, "--max", "2", "--dead-letter")
    assert bendybus_json("dead-letter", "purge", queue, "--dry-run")["matching"] == 2


@pytest.mark.row("B-01")
def test_a_purge_takes_what_a_selector_matches_and_leaves_the_rest(
    bendybus: Bendybus, bendybus_json: BendybusJson, queue: str
) -> None:
    send_sizes(bendybus, queue, 30)
    bendybus("receive", queue, "--selector", "size = 29", "--defer")
    some = ("purge", queue, "--selector", "size >= 20")
    assert bendybus_json(*some, "--dry-run")["matching"] == 10
    done = bendybus_json(*some, "--yes")
    assert (done["purged"], done["active"], done["deferred"], done["left"]) == (10, 9, 1, 0)
    assert sorted(map(int, bodies(bendybus("peek", queue, "--max", "99", "-o", "json")))) == [*range(20)]


@pytest.mark.row("B-01")
def test_a_purge_takes_one_session_and_leaves_what_is_locked(
    bendybus: Bendybus, attempt: Bendybus, server: ServerProcess, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    for session in ("a", "b"):
        bendybus("send", queue, "--session-id", session, given="1\n2\n3\n")
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        held = client.receiver(queue, filters=session_filter("a")).receive(1)
        assert len(held) == 1
        refused = attempt("purge", queue, "--session-id", "A", "--yes", "-o", "json")
        assert refused.returncode == 1
        assert json.loads(refused.stdout)["purged"] == 2
        assert "1 message of" in refused.stderr and "locked" in refused.stderr
    assert sorted(bodies(bendybus("peek", queue, "-o", "json"))) == ["1", "1", "2", "3"]
