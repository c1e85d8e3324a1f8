"""`bendybus move` against a real server: nothing is lost, whatever goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bendybus.client import BusClient, ClientSettings
from cli.conftest import Bendybus, BendybusJson, MakeQueue
from fix_server import Kind, ServerProcess


@pytest.fixture
def other(make_queue: MakeQueue) -> str:
    return make_queue(Kind.PARTITIONED)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def peeked(bendybus: Bendybus, entity: str) -> list[dict[str, Any]]:
    return lines(bendybus("peek", entity, "--max", "5000", "-o", "json"))


def test_all_messages_move_with_their_ids_keys_and_properties(
    bendybus: Bendybus, queue: str, other: str
) -> None:
    for number in range(3):
        bendybus(
            *("send", queue, "--body", "x", "--message-id", f"m{number}", "--partition-key", "k"),
            *("-p", "n:=1", "--subject", "s", "--ttl", "1h"),
        )
    bendybus("send", queue, "--body", "many", "--count", "250")
    done = bendybus("move", queue, other)
    assert done.stderr == f"Moved 253 messages from '{queue}' to '{other}'.\n"
    assert peeked(bendybus, queue) == []
    arrived = peeked(bendybus, other)
    assert len(arrived) == 253
    keyed = [message for message in arrived if message.get("partitionKey") == "k"]
    assert [message["messageId"] for message in keyed] == ["m0", "m1", "m2"]
    assert {(message["applicationProperties"]["n"], message["subject"]) for message in keyed} == {(1, "s")}
    assert {message["timeToLive"] for message in keyed} == {"PT1H"}


def test_a_misspelt_target_loses_nothing(bendybus: Bendybus, attempt: Bendybus, partitioned: str) -> None:
    bendybus("send", partitioned, "--body", "x", "--count", "100")
    refused = attempt("move", partitioned, "archvie")
    assert refused.returncode == 1
    assert "could not be found" in refused.stderr
    received = lines(bendybus("receive", partitioned, "--max", "200", "--wait", "1", "-o", "json"))
    assert [message["deliveryCount"] for message in received] == [0] * 100


def test_some_messages_move_and_the_rest_stay(
    bendybus: Bendybus, bendybus_json: BendybusJson, queue: str, other: str
) -> None:
    bendybus("send", queue, "--body", "x", "--count", "10")
    assert bendybus_json("move", queue, other, "--count", "4") == {
        "source": queue,
        "target": other,
        "moved": 4,
        "stopped": False,
    }
    assert (len(peeked(bendybus, queue)), len(peeked(bendybus, other))) == (6, 4)


def test_messages_that_a_selector_matches_move(bendybus: Bendybus, queue: str, other: str) -> None:
    for colour in ("red", "green", "red", "blue"):
        bendybus("send", queue, "--body", colour, "-p", f"colour={colour}")
    done = bendybus("move", queue, other, "--selector", "colour = 'red'")
    assert done.stderr == f"Moved 2 messages from '{queue}' to '{other}'.\n"
    assert sorted(message["body"] for message in peeked(bendybus, queue)) == ["blue", "green"]
    assert [message["body"] for message in peeked(bendybus, other)] == ["red", "red"]


def test_a_selector_that_cannot_be_read_moves_nothing(
    bendybus: Bendybus, attempt: Bendybus, partitioned: str, other: str
) -> None:
    bendybus("send", partitioned, "--body", "x")
    refused = attempt("move", partitioned, other, "--selector", "colour = = 'red'")
    assert refused.returncode == 1
    assert "selector cannot be read" in refused.stderr
    assert len(peeked(bendybus, partitioned)) == 1


def test_dead_letters_move_as_they_are(bendybus: Bendybus, queue: str, other: str) -> None:
    bendybus("send", queue, "--body", "x", "--count", "3")
    bendybus("receive", queue, "--max", "3", "--dead-letter", "--reason", "Because")
    bendybus("move", f"{queue}/$deadletterqueue", other)
    assert peeked(bendybus, f"{queue}/$deadletterqueue") == []
    reasons = [message["applicationProperties"]["DeadLetterReason"] for message in peeked(bendybus, other)]
    assert reasons == ["Because"] * 3


def test_sessions_move_whole_and_in_order(bendybus: Bendybus, make_queue: MakeQueue, kind: Kind) -> None:
    source = make_queue(kind, RequiresSession=True)
    target = make_queue(Kind.PARTITIONED, RequiresSession=True)
    for session in ("a", "b", "c"):
        bendybus("send", source, "--session-id", session, given="1\n2\n3\n")
    bendybus("move", source, target, "--session-id", "b")
    assert [message["sessionId"] for message in peeked(bendybus, target)] == ["b"] * 3
    done = bendybus("move", source, target)
    assert done.stderr == f"Moved 6 messages from '{source}' to '{target}'.\n"
    for session in ("a", "b", "c"):
        received = bendybus("receive", target, "--session-id", session, "--max", "3", "-o", "json")
        assert [message["body"] for message in lines(received)] == ["1", "2", "3"]


def test_what_the_target_refuses_stays_and_what_it_has_taken_is_gone_from_the_source(
    bendybus: Bendybus, attempt: Bendybus, make_queue: MakeQueue, partitioned: str, tmp_path: Path
) -> None:
    small = make_queue(Kind.UNPARTITIONED, MaxMessageSizeInKilobytes=1)
    (tmp_path / "large").write_bytes(bytes(5000))
    bendybus("send", partitioned, "--body", "small", "--partition-key", "a", "--count", "3")
    bendybus("send", partitioned, "--file", "large", "--partition-key", "b")
    refused = attempt("move", partitioned, small)
    assert refused.returncode == 1
    assert "at most" in refused.stderr
    everything = peeked(bendybus, partitioned) + peeked(bendybus, small)
    assert len(everything) == 4
    assert len(peeked(bendybus, partitioned)) >= 1
    # What was given back has not been counted as delivered.
    received = bendybus("receive", partitioned, "--max", "9", "--wait", "1", "-o", "json")
    assert {message["deliveryCount"] for message in lines(received)} == {0}


def test_a_target_that_detects_duplicates_has_each_message_once(
    server: ServerProcess, bendybus: Bendybus, make_queue: MakeQueue, partitioned: str
) -> None:
    """As after a command that was killed between sending and completing."""
    target = make_queue(Kind.PARTITIONED, RequiresDuplicateDetection=True)
    for number in range(5):
        bendybus("send", partitioned, "--body", "x", "--message-id", f"m{number}")
    # These have arrived before, and were not completed at the source.
    bendybus("send", target, "--body", "x", "--message-id", "m1")
    bendybus("send", target, "--body", "x", "--message-id", "m3")
    bendybus("move", partitioned, target)
    assert peeked(bendybus, partitioned) == []
    assert sorted(message["messageId"] for message in peeked(bendybus, target)) == [f"m{n}" for n in range(5)]


def test_nothing_moves_to_where_it_would_be_dropped(
    bendybus: Bendybus, attempt: Bendybus, make_queue: MakeQueue
) -> None:
    queue = make_queue(Kind.PARTITIONED, RequiresDuplicateDetection=True)
    bendybus("send", queue, "--body", "x", "--message-id", "m")
    bendybus("receive", queue, "--dead-letter")
    refused = attempt("move", f"{queue}/$DeadLetterQueue", queue)
    assert refused.returncode == 1
    assert "pass --new-ids" in refused.stderr
    bendybus("move", f"{queue}/$DeadLetterQueue", queue, "--new-ids")
    assert len(peeked(bendybus, queue)) == 1

    topic = f"{queue}-topic"
    bendybus("topic", "create", topic)
    refused = attempt("move", queue, topic)
    assert refused.returncode == 1
    assert "without subscriptions" in refused.stderr
    bendybus("topic", "delete", topic, "--yes")
    assert attempt("move", queue, queue.upper()).returncode == 2
    assert attempt("move", queue, "x", "--selector", "a=1", "--session-id", "s").returncode == 2


def test_what_others_have_locked_stays_and_is_told(
    server: ServerProcess, bendybus: Bendybus, partitioned: str, other: str
) -> None:
    bendybus("send", partitioned, "--body", "x", "--count", "5")
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        receiver = client.receiver(partitioned)
        assert len(receiver.receive(2)) == 2
        done = bendybus("move", partitioned, other)
    assert done.stderr.splitlines() == [
        f"Moved 3 messages from '{partitioned}' to '{other}'.",
        f"'{partitioned}' still has 2: other receivers have locked them, or they came meanwhile.",
    ]


def test_an_interrupted_move_has_every_message_in_one_place(
    server: ServerProcess, bendybus: Bendybus, partitioned: str, other: str, tmp_path: Path
) -> None:
    bendybus("send", partitioned, "--body", "x" * 2000, "--count", "3000")
    command = [str(Path(sys.executable).with_name("bendybus")), "move", partitioned, other]
    environment = {**os.environ, "BENDYBUS_CONNECTION_STRING": server.connection_string}
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as moving:
        signal.signal(signal.SIGINT, ignored)
        with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
            # The first message at the target: the move is under way.
            assert client.receiver(other).receive(1, timeout_s=30)
        moving.send_signal(signal.SIGINT)
        _, told = moving.communicate(timeout=30)
    assert moving.returncode == 1, told
    assert told.startswith("Stopping after the messages that are under way.\nMoved ")
    left, moved = len(peeked(bendybus, partitioned)), len(peeked(bendybus, other))
    assert left + moved == 3000
    assert f"Moved {moved} messages" in told
    assert f"still has {left}." in told
