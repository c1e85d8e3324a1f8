"""Messages from the command line, against a real server."""

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
from bendybus.operations.purging import _received
from cli.conftest import Bendybus, BendybusJson, MakeQueue
from fix_kinds import SdkBus
from fix_processes import run_bendybus
from fix_server import Kind, ServerProcess


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_sent_is_received_with_everything_it_was_given(bendybus: Bendybus, partitioned: str) -> None:
    sent = bendybus(
        *(
            "send",
            partitioned,
            "--body",
            "blåbær",
            "--message-id",
            "m1",
            "--partition-key",
            "ada",
            "--subject",
            "s",
        ),
        *("--correlation-id", "c", "--content-type", "text/plain", "--to", "t", "--reply-to", "r"),
        *("--reply-to-session-id", "rs", "-p", "text=5", "-p", "number:=5", "--ttl", "1h"),
    )
    assert sent.stderr == f"Sent 1 message to '{partitioned}'.\n"
    (received,) = lines(bendybus("receive", partitioned, "--output", "json"))
    expected = {
        "messageId": "m1",
        "body": "blåbær",
        "partitionKey": "ada",
        "subject": "s",
        "correlationId": "c",
        "contentType": "text/plain",
        "to": "t",
        "replyTo": "r",
        "replyToSessionId": "rs",
        "timeToLive": "PT1H",
        "applicationProperties": {"text": "5", "number": 5},
    }
    assert received | expected == received
    assert "No message came" in bendybus("receive", partitioned, "--wait", "0.1").stderr


def test_each_line_of_standard_input_is_a_message(bendybus: Bendybus, partitioned: str) -> None:
    bendybus("send", partitioned, "--partition-key", "k", given="one\ntwo\n\nfour")
    received = lines(bendybus("receive", partitioned, "--max", "10", "-o", "json", "--wait", "0.5"))
    assert [message["body"] for message in received] == ["one", "two", "", "four"]


def test_a_file_is_one_message_and_need_not_be_text(
    bendybus: Bendybus, partitioned: str, tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"\xff\n\x00")
    bendybus("send", partitioned, "--file", "body", "--count", "2")
    received = lines(bendybus("receive", partitioned, "--max", "2", "-o", "json"))
    assert [message["bodyBase64"] for message in received] == ["/woA", "/woA"]


def test_what_receive_prints_can_be_sent(bendybus: Bendybus, partitioned: str, make_queue: MakeQueue) -> None:
    other = make_queue(Kind.UNPARTITIONED)
    bendybus("send", partitioned, "--body", "x", "--message-id", "m", "--partition-key", "k", "-p", "n:=1")
    printed = bendybus("receive", partitioned, "-o", "json").stdout
    bendybus("send", other, "--json", given=printed)
    (arrived,) = lines(bendybus("receive", other, "-o", "json"))
    assert (arrived["messageId"], arrived["partitionKey"]) == ("m", "k")
    assert arrived["applicationProperties"] == {"n": 1}


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--complete"], "Completed"),
        ([], "Completed"),
        (["--abandon"], "Abandoned"),
        (["--mode", "receive-and-delete"], "Deleted"),
    ],
)
def test_receive_says_what_it_did_with_the_messages(
    bendybus: Bendybus, partitioned: str, option: list[str], told: str
) -> None:
    bendybus("send", partitioned, "--body", "x")
    assert bendybus("receive", partitioned, *option).stderr == f"{told} 1 message of '{partitioned}'.\n"


def test_a_purge_that_finds_messages_locked_says_so_and_fails(
    server: ServerProcess, bendybus: Bendybus, attempt: Bendybus, queue: str
) -> None:
    bendybus("send", queue, "--body", "x", "--count", "5")
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        receiver = client.receiver(queue)
        assert len(receiver.receive(5)) == 5
        refused = attempt("purge", queue, "--yes")
        assert refused.returncode == 1
        assert "Purged" in refused.stderr
        assert (
            f"5 messages of '{queue}' could not be deleted, because receivers have locked" in refused.stderr
        )


def test_a_bad_line_is_told_by_its_number(attempt: Bendybus, partitioned: str) -> None:
    refused = attempt("send", partitioned, "--json", given='{"body": "a"}\n{"body": 1}\n')
    assert refused.returncode == 1
    assert refused.stderr.startswith("bendybus: line 2: 'body' must be text")


@pytest.mark.row("P-30")
def test_many_messages_are_sent_peeked_and_purged(
    bendybus: Bendybus, bendybus_json: BendybusJson, queue: str
) -> None:
    assert bendybus_json("send", queue, "--body", "x", "--count", "1200") == {"entity": queue, "sent": 1200}
    peeked = lines(bendybus("peek", queue, "--max", "5000", "-o", "json"))
    # P-30: everything, exactly once, over all partitions.
    assert len({message["sequenceNumber"] for message in peeked}) == len(peeked) == 1200
    third = peeked[2]["sequenceNumber"]
    (next_one,) = lines(bendybus("peek", queue, "--max", "1", "--from", str(third), "-o", "json"))
    assert next_one["sequenceNumber"] == third
    assert bendybus_json("purge", queue, "--yes")["purged"] == 1200
    assert "has no such messages" in bendybus("peek", queue).stderr


@pytest.mark.row("B-01")
def test_a_purge_takes_every_state_or_those_that_are_named(one_bus: SdkBus, tmp_path: Path) -> None:
    def bendybus(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"BENDYBUS_CONNECTION_STRING": one_bus.server.connection_string}
        done = run_bendybus(*arguments, environment=environment, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    def bendybus_json(*arguments: str) -> object:
        return json.loads(bendybus(*arguments, "-o", "json").stdout)

    queue = one_bus.queue()
    bendybus("send", queue, "--body", "deferred", "--count", "3")
    bendybus("receive", queue, "--max", "3", "--defer")
    bendybus("send", queue, "--body", "later", "--delay", "1h", "--count", "2")
    bendybus("send", queue, "--body", "now")
    states = {message["state"] for message in lines(bendybus("peek", queue, "-o", "json"))}
    assert states == {"active", "deferred", "scheduled"}
    of_one = bendybus_json("purge", queue, "--state", "scheduled", "--yes")
    assert of_one == {"entity": queue, "purged": 2, "scheduled": 2, "left": 0}
    purged = bendybus_json("purge", queue, "--yes")
    assert purged == {"entity": queue, "purged": 4, "active": 1, "deferred": 3, "scheduled": 0, "left": 0}


def test_purging_asks_first(attempt: Bendybus, partitioned: str) -> None:
    refused = attempt("purge", partitioned)
    assert refused.returncode == 2
    assert "pass --yes" in refused.stderr


def test_a_scheduled_message_comes_when_it_is_due(bendybus: Bendybus, partitioned: str) -> None:
    bendybus("send", partitioned, "--body", "later", "--delay", "1s")
    bendybus("send", partitioned, "--body", "much later", "--schedule-at", "2040-01-01T00:00:00Z")
    received = lines(bendybus("receive", partitioned, "--wait", "10", "-o", "json"))
    assert [message["body"] for message in received] == ["later"]
    (waiting,) = lines(bendybus("peek", partitioned, "--state", "scheduled", "-o", "json"))
    assert waiting["scheduledEnqueueTime"] == "2040-01-01T00:00:00.000Z"


def test_an_abandoned_message_comes_again(bendybus: Bendybus, partitioned: str) -> None:
    bendybus("send", partitioned, "--body", "x")
    bendybus("receive", partitioned, "--abandon")
    (again,) = lines(bendybus("receive", partitioned, "-o", "json"))
    assert again["deliveryCount"] == 1


def test_dead_letters_are_listed_with_their_reason_and_resubmitted(
    bendybus: Bendybus, bendybus_json: BendybusJson, queue: str
) -> None:
    bendybus("send", queue, "--body", "x", "--message-id", "m", "--partition-key", "k", "-p", "own=1")
    bendybus("receive", queue, "--dead-letter", "--reason", "Because", "--description", "it is so")
    listed = bendybus("dead-letter", "list", queue).stdout.splitlines()
    assert listed[0].split()[-2:] == ["Why", "Body"]
    assert listed[1].split()[-3:] == ["m", "Because", "x"]
    done = bendybus_json("dead-letter", "resubmit", queue)
    assert done == {"entity": queue, "to": queue, "resubmitted": 1}
    (again,) = lines(bendybus("receive", queue, "-o", "json"))
    assert (again["messageId"], again["partitionKey"], again["body"]) == ("m", "k", "x")
    assert again["applicationProperties"] == {"own": "1"}
    assert "no such messages" in bendybus("dead-letter", "list", queue).stderr


def test_dead_letters_can_be_sent_elsewhere_and_purged(
    bendybus: Bendybus, bendybus_json: BendybusJson, partitioned: str, make_queue: MakeQueue
) -> None:
    other = make_queue(Kind.UNPARTITIONED)
    bendybus("send", partitioned, "--body", "x", "--count", "3")
    bendybus("receive", partitioned, "--max", "3", "--dead-letter")
    assert (
        bendybus_json("dead-letter", "resubmit", partitioned, "--to", other, "--max", "1")["resubmitted"] == 1
    )
    assert len(lines(bendybus("peek", other, "-o", "json"))) == 1
    assert bendybus_json("dead-letter", "purge", partitioned, "--yes")["purged"] == 2


def test_a_dead_letter_is_not_lost_to_duplicate_detection(
    bendybus: Bendybus, attempt: Bendybus, make_queue: MakeQueue
) -> None:
    queue = make_queue(Kind.PARTITIONED, RequiresDuplicateDetection=True)
    bendybus("send", queue, "--body", "x", "--message-id", "m")
    bendybus("receive", queue, "--dead-letter")
    refused = attempt("dead-letter", "resubmit", queue)
    assert refused.returncode == 1
    assert "pass --new-ids" in refused.stderr
    bendybus("dead-letter", "resubmit", queue, "--new-ids")
    (again,) = lines(bendybus("receive", queue, "-o", "json"))
    assert again["body"] == "x"
    assert again["messageId"] != "m"


def test_receive_and_delete_leaves_nothing(bendybus: Bendybus, partitioned: str) -> None:
    bendybus("send", partitioned, "--body", "x")
    received = bendybus("receive", partitioned, "--mode", "receive-and-delete")
    assert received.stdout.splitlines()[1].endswith("  x")
    assert "no such messages" in bendybus("peek", partitioned).stderr


def test_following_goes_on_until_interrupted(
    server: ServerProcess, bendybus: Bendybus, partitioned: str, tmp_path: Path
) -> None:
    command = [
        str(Path(sys.executable).with_name("bendybus")),
        "receive",
        partitioned,
        "--follow",
        "-o",
        "json",
    ]
    environment = {**os.environ, "BENDYBUS_CONNECTION_STRING": server.connection_string}
    # A shell that runs the tests in the background has them ignore it, and they would hand that on.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as following:
        signal.signal(signal.SIGINT, ignored)
        assert following.stdout is not None
        for body in ("first", "second", "third"):
            bendybus("send", partitioned, "--body", body)
            assert json.loads(following.stdout.readline())["body"] == body
        # A message is shown before it is completed: that the third one was shown says so much of the others.
        following.send_signal(signal.SIGINT)
        rest, told = following.communicate(timeout=20)
    assert (following.returncode, rest) == (0, "")
    assert told in [f"Completed {count} messages of '{partitioned}'.\n" for count in (2, 3)]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ["send", "missing", "--body", "x"],
            1,
            "could not be found. 'bendybus queue list' and 'bendybus topic list' show what there is",
        ),
        (["receive", "missing"], 1, "could not be found"),
        (["peek", "missing"], 1, "could not be found"),
        (["send", "q", "--body", "x", "--json"], 2, "cannot be combined"),
        (
            ["send", "q", "--body", "x", "--delay", "1s", "--schedule-at", "2040-01-01"],
            2,
            "cannot be combined",
        ),
        (["send", "q", "--body", "x", "--ttl", "soon"], 2, "--ttl: 'soon' is not a duration"),
        (["send", "q", "--file", "none"], 2, "--file none cannot be read: No such file"),
        (["receive", "q", "--abandon", "--defer"], 2, "cannot be combined"),
        (["receive", "q", "--abandon", "--mode", "receive-and-delete"], 2, "nothing is left to settle"),
        (["receive", "q", "--reason", "x"], 2, "go with --dead-letter"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    attempt: Bendybus, arguments: list[str], code: int, told: str
) -> None:
    refused = attempt(*arguments)
    assert (refused.returncode, refused.stdout) == (code, "")
    assert told in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_message_that_is_too_large_is_refused_by_its_size(
    attempt: Bendybus, partitioned: str, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(bytes(300_000))
    refused = attempt("send", partitioned, "--file", "large")
    assert refused.returncode == 1
    assert "at most 262144 are allowed" in refused.stderr


def test_over_tls_messages_go_where_the_certificate_is_trusted(
    server: ServerProcess, partitioned: str, tmp_path: Path
) -> None:
    over_tls = {
        "BENDYBUS_CONNECTION_STRING": server.connection_string.replace("UseDevelopmentEmulator=true", "")
    }
    arguments = ("send", partitioned, "--body", "x")
    trusting = {**over_tls, "SSL_CERT_FILE": str(server.certificate)}
    assert run_bendybus(*arguments, environment=trusting, folder=tmp_path).returncode == 0
    refused = run_bendybus(*arguments, environment=over_tls, folder=tmp_path)
    assert refused.returncode == 1
    assert "Name it in SSL_CERT_FILE" in refused.stderr


def test_the_shell_is_offered_commands_and_the_servers_queues(server: ServerProcess, tmp_path: Path) -> None:
    environment = {"BENDYBUS_CONNECTION_STRING": server.connection_string, "HOME": str(tmp_path)}
    assert (
        run_bendybus("--install-completion", "bash", environment=environment, folder=tmp_path).returncode == 0
    )

    def offered(line: str) -> list[str]:
        """What a real bash offers when Tab is pressed at the end of the line."""
        words = line.split(" ")
        script = (
            "source ~/.bash_completions/bendybus.sh\n"
            f"COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}\n"
            f"_bendybus_completion bendybus {words[-1]} {words[-2]}\n"
            'printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, **environment, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert offered("bendybus dead-letter re") == ["resubmit"]
    assert offered("bendybus dead") == ["dead-letter"]
    assert offered("bendybus peek usual-partitioned-0") == ["usual-partitioned-0"]
    assert offered("bendybus queue create orders --forward-t") == ["--forward-to"]


def test_where_a_server_cannot_delete_in_batches_messages_are_received(
    server: ServerProcess, bendybus: Bendybus, queue: str
) -> None:
    bendybus("send", queue, "--body", "x", "--count", "600")
    with BusClient(ClientSettings.from_connection_string(server.connection_string)) as client:
        assert sum(_received(client, queue)) == 600
    assert "no such messages" in bendybus("peek", queue).stderr
