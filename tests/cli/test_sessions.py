"""Sessions from the command line, against a real server."""

from __future__ import annotations

import json

import pytest

from cli.conftest import Bendybus, BendybusJson, MakeQueue
from fix_server import Kind


@pytest.mark.row("P-13")
def test_a_session_is_received_in_order_and_alone(
    bendybus: Bendybus, bendybus_json: BendybusJson, attempt: Bendybus, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    bendybus("send", queue, "--session-id", "a", given="1\n2\n3\n")
    bendybus("send", queue, "--session-id", "b", given="4\n")

    def bodies(*arguments: str) -> list[str]:
        shown = bendybus(*arguments, "-o", "json").stdout.splitlines()
        return [json.loads(line)["body"] for line in shown]

    assert bodies("peek", queue, "--session-id", "a") == ["1", "2", "3"]
    assert bodies("receive", queue, "--session-id", "a", "--max", "2") == ["1", "2"]
    assert bodies("receive", queue, "--session-id", "b") == ["4"]
    assert bodies("receive", queue, "--next-session") == ["3"]
    assert "No message came" in bendybus("receive", queue, "--next-session", "--wait", "1").stderr
    refused = attempt("receive", queue)
    assert refused.returncode == 1
    assert "session" in refused.stderr
    bendybus("send", queue, "--session-id", "c", "--body", "x", "--count", "5")
    assert bendybus_json("purge", queue, "--state", "active", "--yes")["purged"] == 5


def test_one_session_is_asked_for_at_a_time(attempt: Bendybus) -> None:
    refused = attempt("receive", "q", "--session-id", "a", "--next-session")
    assert refused.returncode == 2
    assert "cannot be combined" in refused.stderr


def test_deferred_messages_of_sessions_are_purged(
    bendybus: Bendybus, bendybus_json: BendybusJson, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    for session in ("a", "b"):
        bendybus("send", queue, "--session-id", session, given="1\n2\n3\n")
        bendybus("receive", queue, "--session-id", session, "--max", "2", "--defer")
    purged = bendybus_json("purge", queue, "--yes")
    assert purged == {"entity": queue, "purged": 6, "active": 2, "deferred": 4, "scheduled": 0, "left": 0}


def test_sessions_are_listed_over_all_partitions(
    bendybus: Bendybus, bendybus_json: BendybusJson, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    assert bendybus_json("session", "list", queue) == []
    assert "no sessions" in bendybus("session", "list", queue).stderr
    for session in ("a", "b", "c"):
        bendybus("send", queue, "--session-id", session, "--body", "x")
    assert sorted(bendybus_json("session", "list", queue)) == ["a", "b", "c"]
    assert len(bendybus_json("session", "list", queue, "--max", "2")) == 2
    assert "b" in bendybus("session", "list", queue).stdout.split()


def test_the_state_of_a_session_is_printed_set_and_cleared(
    bendybus: Bendybus, bendybus_json: BendybusJson, attempt: Bendybus, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    bendybus("session", "state", queue, "s", "--set", "half done")
    assert bendybus("session", "state", queue, "s").stdout == "half done"
    assert bendybus_json("session", "state", queue, "s")["state"] == "half done"
    assert bendybus_json("session", "list", queue) == ["s"]
    bendybus("session", "state", queue, "s", "--clear")
    assert "has no state" in bendybus("session", "state", queue, "s").stderr
    refused = attempt("session", "state", queue, "s", "--clear", "--set", "x")
    assert (refused.returncode, "cannot be combined" in refused.stderr) == (2, True)


@pytest.mark.row("B-04")
def test_a_whole_session_is_dead_lettered_with_a_reason_and_others_stay(
    bendybus: Bendybus, bendybus_json: BendybusJson, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    bendybus("send", queue, "--session-id", "bad", given="1\n2\n3\n")
    bendybus("receive", queue, "--session-id", "bad", "--defer")
    bendybus("send", queue, "--session-id", "good", given="4\n")
    whole = ("session", "dead-letter", queue, "bad", "--reason", "Poisoned")
    assert bendybus_json(*whole, "--dry-run")["matching"] == 3
    assert bendybus_json(*whole, "--yes")["deadLettered"] == 3
    shown = [
        json.loads(line) for line in bendybus("dead-letter", "list", queue, "-o", "json").stdout.splitlines()
    ]
    assert sorted(letter["body"] for letter in shown) == ["1", "2", "3"]
    assert {letter["applicationProperties"]["DeadLetterReason"] for letter in shown} == {"Poisoned"}
    assert bendybus_json("session", "list", queue) == ["good"]


def test_deferred_messages_of_a_session_are_received_by_their_numbers(
    bendybus: Bendybus, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    bendybus("send", queue, "--session-id", "s", given="1\n2\n")
    deferred = bendybus("receive", queue, "--session-id", "s", "--defer", "-o", "json").stdout
    number = str(json.loads(deferred)["sequenceNumber"])
    taken = bendybus("receive", queue, "--session-id", "s", "--sequence-number", number, "-o", "json").stdout
    assert json.loads(taken)["body"] == "1"
    assert [
        json.loads(line)["body"] for line in bendybus("peek", queue, "-o", "json").stdout.splitlines()
    ] == ["2"]
