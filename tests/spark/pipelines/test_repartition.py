"""Repartition: all messages in the new queue, once and in order, wherever the move was cut off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.amqp.types import Array
from bendybus.client import BusClient, encode
from bendybus.errors import (
    ArgumentError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    Unauthorized,
)
from fix_server import ServerProcess
from pyspark_servicebus.pipelines import Bus, Repartition
from pyspark_servicebus.pipelines.entities import Queues
from pyspark_servicebus.pipelines.repartition import PHASES
from spark.pipelines.conftest import Contents, MakeQueue, SendKeyed, by_key, expected, finish, interrupted

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


def move_of(bus: Bus, source: str, tmp_path: Path, ending: str = "delete") -> Repartition:
    checkpoint = str(tmp_path / "checkpoint")
    return Repartition(bus=bus, source=source, target=f"{source}-new", ending=ending, checkpoint=checkpoint)


def test_the_bus_certificate_is_trusted_for_management_too(server: ServerProcess) -> None:
    over_tls = server.connection_string.replace("UseDevelopmentEmulator=true", "")
    assert Queues(over_tls, str(server.certificate)).find("not-there") is None
    with pytest.raises(Unauthorized, match="not trusted"):
        Queues(over_tls).find("not-there")


@pytest.mark.row("S-05")
def test_a_move_that_is_cut_off_in_every_phase_loses_and_doubles_nothing(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_queue(partitioned=False, LockDuration="PT30S")
    send_keyed(source, 24)
    due = round((time.time() + 3600) * 1000)
    client.sender(source).send([encode(b"24", partition_key="k0", scheduled_enqueue_time_ms=due)])
    move = move_of(bus, source, tmp_path)
    # Told before each phase, and between two rounds of copying.
    cuts = 0
    while interrupted(move, spark, at=2):
        cuts += 1
        if (tmp_path / "checkpoint" / "repartition.json").read_text().count('"frozen"'):
            break
    # While it is frozen nobody can use either queue.
    with pytest.raises(EntityDisabled):
        client.sender(source).send([encode(b"late")])
    with pytest.raises(EntityDisabled):
        client.receiver(move.target).receive(1, timeout_s=0.1)
    # Copied, and cut off before it was compared: then a copy is lost and another doubled.
    assert interrupted(move, spark, at=2)
    copies = contents(move.target)
    assert len(copies) == 25
    number = {"sequence-numbers": Array(int, [copies[-2].sequence_number])}
    client.management(move.target).request("bendybus:complete-numbers", number)
    client.sender(move.target).send([copies[0].payload], copies[0].partition_key)
    while interrupted(move, spark, at=2):
        cuts += 1
    assert cuts >= len(PHASES) - 2
    assert finish(move, spark).details["phase"] == "done"
    moved = contents(move.target)
    assert by_key([message for message in moved if message.state == 0]) == expected(24)
    assert [message.body for message in moved if message.state == 2] == [b"24"]
    assert moved[0].application_properties["number"] == int(moved[0].body)
    queues = Queues(bus.connection_string)
    assert queues.find(source) is None
    new = queues.get(move.target)
    assert (new.text("EnablePartitioning"), new.text("LockDuration"), new.text("Status")) == (
        "true",
        "PT30S",
        "Active",
    )


@pytest.mark.row("S-05")
def test_sessions_keep_their_order_and_senders_their_name(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_queue(RequiresSession=True)
    send_keyed(source, 16, session=True)
    summary = finish(move_of(bus, source, tmp_path, ending="forward"), spark)
    assert (summary.messages, summary.details["partitioned"]) == (16, False)
    # The old name goes on taking messages, and passes them to the new queue.
    client.sender(source).send([encode(b"16", session_id="k0")], "k0")
    deadline = time.monotonic() + 30
    while len(contents(f"{source}-new")) < 17 and time.monotonic() < deadline:
        time.sleep(0.05)
    found = by_key(contents(f"{source}-new"))
    assert found == {**expected(16), "k0": [0, 4, 8, 12, 16]}


def test_what_cannot_be_moved_is_refused_and_nothing_is_changed(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source, other = make_queue(), make_queue()
    send_keyed(source, 4)
    taken = Repartition(bus=bus, source=source, target=other, checkpoint=str(tmp_path / "taken"))
    with pytest.raises(EntityExists, match=other):
        finish(taken, spark)
    with pytest.raises(EntityNotFound, match="nowhere"):
        Repartition(bus=bus, source="nowhere", target="new").check()
    with pytest.raises(ArgumentError, match="to itself"):
        Repartition(bus=bus, source=source, target=source.upper()).check()
    receiver = client.receiver(source)
    receiver.dead_letter(receiver.receive(1), "Bad")
    with pytest.raises(InvalidOperation, match="1 dead letters"):
        finish(move_of(bus, source, tmp_path), spark)
    receiver.defer(receiver.receive(1))
    with pytest.raises(InvalidOperation, match="1 deferred"):
        finish(move_of(bus, source, tmp_path), spark)
    receiver.close()
    queues = Queues(bus.connection_string)
    assert queues.find(f"{source}-new") is None
    assert queues.get(source).text("Status") == "Active"
    assert not (tmp_path / "checkpoint").exists()


def test_a_stranger_in_the_new_queue_keeps_the_old_one(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    tmp_path: Path,
) -> None:
    source = make_queue()
    send_keyed(source, 4)
    move = move_of(bus, source, tmp_path)
    queues = Queues(bus.connection_string)
    while queues.find(move.target) is None:
        assert interrupted(move, spark, at=2)
    client.sender(move.target).send([encode(b"mine")])
    with pytest.raises(InvalidOperation, match="Somebody else has sent 1 messages"):
        finish(move, spark)
    assert queues.find(source) is not None
