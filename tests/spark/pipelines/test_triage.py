"""Triage: dead letters by their reasons, resubmitted or discarded, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.client import BusClient
from bendybus.errors import ArgumentError, EntityNotFound, InvalidOperation
from pyspark_servicebus.pipelines import Bus, Progress, Run, Triage
from spark.pipelines.conftest import Contents, Interrupted, MakeQueue, SendKeyed, by_key, expected, finish

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


def killed(*arguments: object) -> None:
    raise Interrupted


def bury(client: BusClient, queue: str, count: int, reason: str) -> None:
    receiver = client.receiver(queue)
    left = count
    while left:
        messages = receiver.receive(left)
        receiver.dead_letter(messages, reason, f"because of {reason}")
        left -= len(messages)
    receiver.close()


@pytest.fixture
def buried(client: BusClient, make_queue: MakeQueue, send_keyed: SendKeyed) -> str:
    """A queue with twenty dead letters: eight bad ones, then twelve late ones."""
    queue = make_queue()
    for first, count, reason in ((0, 8, "Bad"), (8, 12, "Late")):
        send_keyed(queue, count, first=first)
        bury(client, queue, count, reason)
    return queue


@pytest.mark.row("S-05")
def test_dead_letters_are_grouped_by_their_reasons(
    spark: SparkSession, bus: Bus, buried: str, contents: Contents
) -> None:
    summary = finish(Triage(bus=bus, entity=buried), spark)
    assert [(group["reason"], group["messages"]) for group in summary.details["groups"]] == [
        ("Late", 12),
        ("Bad", 8),
    ]
    assert summary.details["groups"][0]["example"] == "because of Late"
    assert len(contents(f"{buried}/$deadletterqueue")) == 20


@pytest.mark.row("S-05")
def test_chosen_letters_come_back_as_they_were_and_others_stay(
    spark: SparkSession, bus: Bus, buried: str, contents: Contents, tmp_path: Path
) -> None:
    triage = Triage(
        bus=bus, entity=buried, action="resubmit", reasons=("Late",), checkpoint=str(tmp_path / "checkpoint")
    )
    assert finish(triage, spark).messages == 12
    found = contents(buried)
    assert by_key(found) == expected(12, first=8)
    assert found[0].application_properties == {"number": int(found[0].body), "text": "five", "yes": True}
    assert found[0].message_id == f"m{int(found[0].body)}"
    left = contents(f"{buried}/$deadletterqueue")
    assert {message.application_properties["DeadLetterReason"] for message in left} == {"Bad"}
    discard = Triage(bus=bus, entity=buried, action="discard", where="partition_key = 'k0'")
    assert finish(discard, spark).messages == 2
    assert len(contents(f"{buried}/$deadletterqueue")) == 6


def test_few_letters_are_sorted_out_without_spark_and_with_the_same_result(
    spark: SparkSession, bus: Bus, buried: str, contents: Contents, tmp_path: Path
) -> None:
    listed = Triage(bus=bus, entity=buried)
    assert listed.small
    assert listed.run(None, Run()).details["groups"] == finish(listed, spark).details["groups"]
    assert not replace(listed, where="true").small
    checkpoint = str(tmp_path / "checkpoint")
    late = replace(listed, action="resubmit", reasons=("Late",), checkpoint=checkpoint)
    told: list[Progress] = []
    assert late.run(None, Run(tell=told.append)).messages == 12
    assert (told[-1].messages, told[-1].total) == (12, 12)
    assert by_key(contents(buried)) == expected(12, first=8)
    # A run on Spark goes on from there, and one without Spark after it.
    assert finish(replace(late, reasons=(), where="partition_key = 'k0'"), spark).messages == 2
    assert replace(late, action="discard", reasons=()).run(None, Run()).messages == 6
    assert replace(late, reasons=()).run(None, Run()).messages == 0
    assert contents(f"{buried}/$deadletterqueue") == []


def test_letters_of_a_run_that_was_cut_are_not_sent_again_without_spark_either(
    bus: Bus, buried: str, contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triage = Triage(bus=bus, entity=buried, action="resubmit", checkpoint=str(tmp_path / "checkpoint"))
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_servicebus.pipelines.triage._complete", killed)
        with pytest.raises(Interrupted):
            triage.run(None, Run())
    assert len(contents(f"{buried}/$deadletterqueue")) == 20
    assert triage.run(None, Run()).messages == 20
    assert sorted(int(message.body) for message in contents(buried)) == list(range(20))
    assert contents(f"{buried}/$deadletterqueue") == []


def test_a_reason_that_no_letter_has_is_an_error_and_nothing_is_done(
    spark: SparkSession, bus: Bus, buried: str, contents: Contents
) -> None:
    triage = Triage(bus=bus, entity=buried, action="discard", reasons=("Bad", "Lat"))
    for session in (None, spark):
        with pytest.raises(ArgumentError, match="has the reason 'Lat'; nothing was done"):
            triage.run(session, Run())
    with pytest.raises(ArgumentError, match="has no reason"):
        Triage(bus=bus, entity=buried, reasons=("",)).run(None, Run())
    assert len(contents(f"{buried}/$deadletterqueue")) == 20


@pytest.mark.row("S-05")
def test_letters_whose_copies_have_arrived_are_not_sent_again_after_a_cut(
    spark: SparkSession,
    bus: Bus,
    buried: str,
    client: BusClient,
    contents: Contents,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bendybus.client import BusClient as Client
    from pyspark_servicebus.pipelines import triage as module

    triage = Triage(bus=bus, entity=buried, action="resubmit", checkpoint=str(tmp_path / "checkpoint"))
    state = bus.check_readable(f"{buried}/$deadletterqueue")
    assert state is not None
    # What a run does that is killed after it has sent and before it has completed.
    with Client(bus.settings()) as killed:
        for letter in contents(f"{buried}/$deadletterqueue")[:5]:
            mark = f"{state.generation}/{letter.sequence_number}"
            key = letter.partition_key
            killed.sender(buried).send([module.revived(letter.payload, mark)], key)
    (tmp_path / "checkpoint").mkdir()
    finish(
        Triage(bus=bus, entity=buried, action="resubmit", where="false", checkpoint=triage.checkpoint), spark
    )
    (tmp_path / "checkpoint" / "triage.json").write_text('{"running": true}')
    finish(triage, spark)
    assert sorted(int(message.body) for message in contents(buried)) == list(range(20))
    assert contents(f"{buried}/$deadletterqueue") == []


def test_a_destination_that_would_drop_them_is_refused_unless_ids_are_new(
    spark: SparkSession, bus: Bus, buried: str, make_queue: MakeQueue, contents: Contents, tmp_path: Path
) -> None:
    once = make_queue(RequiresDuplicateDetection=True)
    with pytest.raises(InvalidOperation, match="ask for new ids"):
        Triage(bus=bus, entity=buried, action="resubmit", to=once).check()
    triage = Triage(
        bus=bus, entity=buried, action="resubmit", to=once, new_ids=True, checkpoint=str(tmp_path / "c")
    )
    finish(triage, spark)
    assert sorted(int(message.body) for message in contents(once)) == list(range(20))


def test_what_is_wrong_with_a_triage_is_named(spark: SparkSession, bus: Bus, buried: str) -> None:
    with pytest.raises(EntityNotFound, match="nowhere"):
        Triage(bus=bus, entity="nowhere").check()
    with pytest.raises(EntityNotFound, match="nowhere"):
        Triage(bus=bus, entity=buried, action="resubmit", to="nowhere").check()
    with pytest.raises(ArgumentError, match="none of the actions"):
        Triage(bus=bus, entity=buried, action="burn").check()
    with pytest.raises(ArgumentError, match="colour"):
        finish(Triage(bus=bus, entity=buried, where="colour = 'red'"), spark)
