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
    assert "exclude each other" in refused.stderr


def test_deferred_messages_of_sessions_are_purged(
    bendybus: Bendybus, bendybus_json: BendybusJson, make_queue: MakeQueue, kind: Kind
) -> None:
    queue = make_queue(kind, RequiresSession=True)
    for session in ("a", "b"):
        bendybus("send", queue, "--session-id", session, given="1\n2\n3\n")
        bendybus("receive", queue, "--session-id", session, "--max", "2", "--defer")
    purged = bendybus_json("purge", queue, "--yes")
    assert purged == {"entity": queue, "purged": 6, "active": 2, "deferred": 4, "scheduled": 0, "left": 0}
