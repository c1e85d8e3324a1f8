"""`bendybus replay` against a real server (B-07)."""

from __future__ import annotations

import json

from cli.conftest import Bendybus, BendybusJson, MakeQueue
from fix_server import Kind


def test_completed_messages_are_counted_and_put_back(
    bendybus: Bendybus, bendybus_json: BendybusJson, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, KeepCompleted="PT1H")
    bendybus("send", queue, "--partition-key", "ada", given="1\n2\n")
    bendybus("send", queue, "--partition-key", "bob", given="3\n")
    bendybus("receive", queue, "--max", "3", "--wait", "5")
    assert "Would put 3 completed messages back" in bendybus("replay", queue, "--dry-run").stderr
    assert bendybus_json("replay", queue, "--key", "ada", "--yes") == {
        "entity": queue,
        "matching": 2,
        "replayed": 2,
    }
    shown = [json.loads(line) for line in bendybus("peek", queue, "-o", "json").stdout.splitlines()]
    assert [each["body"] for each in shown] == ["1", "2"]
    kept = bendybus("peek", f"{queue}/$completed", "-o", "json").stdout.splitlines()
    (number,) = [str(json.loads(line)["sequenceNumber"]) for line in kept]
    done = bendybus("replay", queue, "--sequence-number", number, "--to", "2999-01-01", "--yes")
    assert "Put 1 completed message back" in done.stderr
    assert "Put 0 completed messages back" in bendybus("replay", queue, "--sequence-number", number).stderr


def test_completed_messages_are_chosen_by_their_session_and_the_time_of_their_sending(
    bendybus: Bendybus, make_queue: MakeQueue
) -> None:
    queue = make_queue(Kind.PARTITIONED, KeepCompleted="PT1H")
    for session in ("a", "b"):
        bendybus("send", queue, "--session-id", session, "--body", session)
    bendybus("receive", queue, "--max", "2", "--wait", "5")
    for chosen, count in (
        (("--session", "a"), "1 completed message "),
        (("--enqueued-from", "2999-01-01"), "0 completed messages "),
        (("--enqueued-to", "2999-01-01"), "2 completed messages "),
        (("--enqueued-to", "2001-01-01"), "0 completed messages "),
    ):
        assert f"Would put {count}" in bendybus("replay", queue, *chosen, "--dry-run").stderr


def test_nothing_is_put_back_without_consent_or_from_a_time_that_cannot_be_read(
    bendybus: Bendybus, attempt: Bendybus, make_queue: MakeQueue
) -> None:
    queue = make_queue(Kind.PARTITIONED, KeepCompleted="PT1H")
    bendybus("send", queue, "--body", "1")
    bendybus("receive", queue, "--wait", "5")
    refused = attempt("replay", queue)
    assert (refused.returncode, "pass --yes" in refused.stderr) == (2, True)
    assert attempt("replay", queue, "--from", "soon").returncode == 2
    both = attempt("replay", queue, "--sequence-number", "1", "--key", "a")
    assert (both.returncode, "cannot be combined" in both.stderr) == (2, True)
    assert "Would put 1 completed message back" in bendybus("replay", queue, "--dry-run").stderr
